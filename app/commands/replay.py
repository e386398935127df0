"""`heddle replay`: recorded trajectories through a live controller, or policies side by side."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from heddle.app.commands import options
from heddle.app.errors import fail

if TYPE_CHECKING:
    from heddle.app.compose import Stack
    from heddle.app.settings import Settings

TYPER = options.help_with(
    "heddle replay traces.parquet --preset heddle",
    "heddle replay traces.parquet --max-context 32768 --max-tool-wait 60 --limit 64 --json",
    "heddle replay --policies verl,heddle,heddle/migration=off --workload coding --seeds 3",
    "heddle replay --policies verl,heddle --rollout run-1/3 --error 0.6",
)
SPEED: Final = 100.0
"""Of the embedded fleet: recorded tool waits add up to hours, and nobody watches a replay."""


def run(
    file: Annotated[Path | None, typer.Argument(help="Parquet, one row a step.")] = None,
    policies: Annotated[
        str | None, typer.Option(help="Compare these in virtual time: preset[/choice=policy],...")
    ] = None,
    workload: Annotated[str, typer.Option(help="Generated preset to compare on.")] = "demo",
    rollout: Annotated[
        str | None, typer.Option(help="Compare on a rollout of the store.", metavar="RUN/ROLLOUT")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Rollouts to compare on.", min=1)] = 3,
    groups: Annotated[int, typer.Option(help="Groups of 16 in a generated rollout.", min=1)] = 16,
    error: Annotated[
        float | None, typer.Option(help="Lengths foreseen with this log-error; 0: known.", min=0)
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Preset to run it under.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N trajectories.", min=1)] = None,
    max_context: Annotated[
        int | None, typer.Option(help="Cut contexts to so many tokens.", min=1)
    ] = None,
    max_tool_wait: Annotated[
        float | None, typer.Option(help="Cut tool waits to so many seconds.", min=0.0)
    ] = None,
    seed: options.Seed = 0,
    speed: options.Speed = None,
    gpus: options.Gpus = None,
    model: options.Model = None,
    data: options.Data = None,
    controller: options.Controller = None,
    collector: options.Collector = None,
    token_file: options.TokenFile = None,
    otlp: Annotated[str | None, typer.Option(help="Where that collector takes spans.")] = None,
    json: options.Json = False,
) -> None:
    """Send recorded trajectories through Heddle, or compare policies on the same rollouts.

    With --policies nothing is started: the real loop decides on emulated engines in virtual time.

    Runs on a stack of its own, or on the running one at --controller. The store is compared with
    the file afterwards; exit code 1 says that they differ.
    """
    from heddle.app import recorded, show
    from heddle.app.settings import load

    if policies is not None:
        from heddle.app.commands.compare import compare

        fleet = {"gpus": gpus or 8, "model": model or "Qwen3-14B", "error": error}
        source = {"file": file, "rollout": rollout, "workload": workload, "groups": groups}
        first = {"seed": seed, "seeds": seeds, "collector": collector}
        compare(policies.split(","), source, {**fleet, **first}, json=json)
        return
    if file is None:
        fail("replay needs a FILE, or --policies to compare")
    limits = recorded.Limits(limit, max_context, max_tool_wait, seed)
    recording = recorded.load(file, limits)
    flags = {"data": data, "fleet.gpus": gpus, "fleet.model": model, "token_file": token_file}
    there = {"controller": controller, "collector": collector, "otlp": otlp}
    embedded = controller is None
    pace = {"fleet.speed": speed or (SPEED if embedded else None), "fleet.seed": seed}
    settings = load({**flags, **there, **pace})
    for note in recording.notes:
        show.say(note)
    with ExitStack() as exits:
        stack, watch = _stack(exits, settings, embedded=embedded)
        show.say(_pace(stack.clock.speed))
        result = _play(stack, watch, recording, preset, f"replay-{file.stem}")
    _report(result, recording.counts, json=json)


def _pace(speed: float) -> str:
    return f"speed x{speed:g}: one recorded minute takes {60 / speed:.2g} s"


def _stack(exits: ExitStack, settings: Settings, *, embedded: bool) -> tuple[Stack, Any]:
    """An embedded stack, or the running one that the addresses name."""
    from heddle.app import compose, show
    from heddle.app.supervise import Supervisor

    if not embedded:
        return compose.running(settings), lambda: None
    chosen = compose.settle_ports(settings, strict=False, dashboard=False, say=show.say)
    supervisor = exits.enter_context(Supervisor(chosen.data / "logs"))
    stack = compose.start(supervisor, chosen, dashboard=False, say=show.say)
    return stack, supervisor.check


def _play(
    stack: Stack, watch: Any, recording: Any, preset: str | None, name: str
) -> dict[str, Any]:
    from heddle.app import show
    from heddle.app.demo import run_name
    from heddle.app.rollouts import Session, measure

    specs = recording.trajectories
    with Session(stack, run_name(name), watch=watch) as session:
        if preset:
            why = "asked for on the command line"
            session.controller.switch(run=session.run, preset=preset, who="heddle replay", why=why)
        with show.bar(name, len(specs)) as progress:
            seen = session.play("replay", specs, progress)
        held = measure(session.collector, session.run, "replay")
    return {"run": session.run, **held, "errors": dict(seen.errors)}


def _report(result: dict[str, Any], wanted: dict[str, int], *, json: bool) -> None:
    """Print what the store holds; exit 1 naming what differs from the file."""
    from heddle.app import show

    keys = ("trajectories", "steps", "tool_calls", "output_tokens")
    if json:
        show.as_json(result)
    else:
        rows = [[k.replace("_", " "), f"{result[k]:,}", f"{wanted[k]:,}"] for k in keys]
        show.table(["", "store", "file"], rows, title=f"Run {result['run']}")
        show.OUT.print(f"makespan {result['makespan_s']:,.1f} emulated s")
    differs = [f"{k}: {result[k]} for {wanted[k]}" for k in keys if result[k] != wanted[k]]
    for name, count in result["errors"].items():
        show.say(f"{count} trajectories failed: {name}")
    if differs:
        show.say(f"heddle: the store differs from the file: {', '.join(differs)}")
        sys.exit(1)
