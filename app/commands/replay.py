"""`heddle replay`: recorded trajectories through a live controller, or policies side by side."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from heddle.app import checks
from heddle.app.commands import options
from heddle.app.errors import fail

if TYPE_CHECKING:
    from heddle.app.compose import Stack
    from heddle.app.settings import Settings

TYPER = options.help_with(
    "heddle replay traces.parquet --preset heddle",
    "heddle replay traces.parquet --max-context 32768 --max-tool-wait 60 --limit 64 --json",
    "heddle replay --policies verl,heddle,heddle/migration=off --workload coding --seeds 3",
    "heddle replay traces.parquet --controller http://gpu1:8600 --vocabulary 151000",
    "heddle replay --policies verl,heddle --rollout run-1/3 --error 0.6",
    "heddle replay --policies ablation --workload coding --groups 50 --seeds 1 --workers 2",
    "heddle replay --policies heddle --gpus 8,16,32 --barrier first:200 --workers 2",
    "heddle replay --policies verl,heddle --rollout run-1/3 --save --ray local",
)
SPEED: Final = 100.0
"""Of the embedded fleet: recorded tool waits add up to hours, and nobody watches a replay."""
COMPARED_ALONE: Final = (
    "workload", "rollout", "seeds", "groups", "error", "barrier", "arrivals", "workers", "ray",
    "save",
)  # fmt: skip
"""What a file that is sent again has no use for..."""
SENT_ALONE: Final = (
    "preset", "limit", "max_context", "max_tool_wait", "vocabulary", "speed", "data", "controller",
    "token_file",
)  # fmt: skip
"""... and what a comparison has none for."""

Policies = Annotated[
    str | None,
    typer.Option(help="Compare these in virtual time: preset[/choice=policy],... or ablation."),
]
Stored = Annotated[
    str | None, typer.Option(help="Compare on a rollout of the store.", metavar="RUN/ROLLOUT")
]
Error = Annotated[
    float | None,
    typer.Option(
        help="Lengths foreseen with this log-error; 0: known.", min=0, callback=options.finite
    ),
]
Barrier = Annotated[
    str, typer.Option(help="When a compared rollout ends: all, first:N or cutoff:SECONDS.")
]
Arrivals = Annotated[
    float,
    typer.Option(
        help="Compared trajectories arrive over so many seconds.", min=0, callback=options.finite
    ),
]
GpusList = Annotated[
    str | None, typer.Option(help="GPUs of the fleet; several to compare fleets: 32,64,128.")
]
Ray = Annotated[
    str | None,
    typer.Option(help="Compare on a Ray cluster: its address, or `local`.", metavar="ADDRESS"),
]
Save = Annotated[
    bool, typer.Option("--save", help="Keep the comparison in the store: query `replays`.")
]
Otlp = Annotated[str | None, typer.Option(help="Where that collector takes spans.")]
MaxContext = Annotated[int | None, typer.Option(help="Cut contexts to so many tokens.", min=1)]
MaxToolWait = Annotated[
    float | None,
    typer.Option(help="Cut tool waits to so many seconds.", min=0.0, callback=options.finite),
]
Vocabulary = Annotated[
    int, typer.Option(help="Token ids sent are below this; at most the engine's.", min=2)
]


def run(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="Parquet, one row a step.")] = None,
    policies: Policies = None,
    workload: Annotated[str, typer.Option(help="Generated preset to compare on.")] = "demo",
    rollout: Stored = None,
    seeds: Annotated[int, typer.Option(help="Rollouts to compare on.", min=1)] = 3,
    groups: Annotated[int, typer.Option(help="Groups of 16 in a generated rollout.", min=1)] = 16,
    error: Error = None,
    preset: Annotated[str | None, typer.Option(help="Preset to run it under.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N trajectories.", min=1)] = None,
    max_context: MaxContext = None,
    max_tool_wait: MaxToolWait = None,
    vocabulary: Vocabulary = 32_000,
    seed: options.Seed = 0,
    speed: options.Speed = None,
    barrier: Barrier = "all",
    arrivals: Arrivals = 0.0,
    workers: Annotated[int, typer.Option(help="Processes that compare without --ray.", min=1)] = 1,
    ray: Ray = None,
    save: Save = False,
    gpus: GpusList = None,
    model: options.Model = None,
    data: options.Data = None,
    controller: options.Controller = None,
    collector: options.Collector = None,
    token_file: options.TokenFile = None,
    otlp: Otlp = None,
    json: options.Json = False,
) -> None:
    """Send recorded trajectories again, or compare policies.

    With --policies nothing is started: the real loop decides on emulated engines in virtual time.
    Else on a stack of its own, or the running one at --controller: exit code 1 says that the store
    differs from the file. With a host lag above 10 % of the trajectories' time no figure counts.
    """
    from heddle.app.commands.compare import compare, fleets_of

    _check(context, compares=policies is not None)
    if policies is not None:
        fleet = {"gpus": fleets_of(gpus), "model": model, "error": error, "workers": workers}
        fleet |= {"barrier": barrier, "arrivals_s": arrivals, "seed": seed, "seeds": seeds}
        source = {"file": file, "rollout": rollout, "workload": workload, "groups": groups}
        fleet |= {"collector": collector, "otlp": otlp, "save": save, "ray": ray}
        return compare(policies.split(","), source, fleet, json=json)
    flags = {"data": data, "fleet.gpus": fleets_of(gpus)[0] if gpus else None, "otlp": otlp}
    flags |= {"token_file": token_file, "fleet.speed": speed, "fleet.seed": seed}
    flags |= {"fleet.model": model, "controller": controller, "collector": collector}
    sent = {"preset": preset, "vocabulary": vocabulary}
    return _replay(file, (limit, max_context, max_tool_wait, seed), flags, sent, json=json)


def _check(context: typer.Context, *, compares: bool) -> None:
    """Refuse what the other kind of replay takes: it would change nothing here."""
    others = SENT_ALONE if compares else COMPARED_ALONE
    given = [
        f"--{name.replace('_', '-')}"
        for name in others
        if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"
    ]
    if given and compares:
        fail(f"{', '.join(given)}: only where a FILE is sent again, without --policies")
    if given:
        fail(f"{', '.join(given)}: only where --policies are compared; name them too")


def _replay(
    file: Path | None, cuts: Any, flags: dict[str, Any], sent: dict[str, Any], *, json: bool
) -> None:
    from heddle.app import recorded, show
    from heddle.app.settings import load

    if file is None:
        fail("replay needs a FILE, or --policies to compare")
    checks.preset(sent["preset"])
    recording = recorded.load(file, recorded.Limits(*cuts))
    embedded = flags["controller"] is None
    if embedded and flags["fleet.speed"] is None:
        flags["fleet.speed"] = SPEED
    settings = load(flags)
    for note in recording.notes:
        show.say(note)
    with ExitStack() as exits:
        stack, watch = _stack(exits, settings, embedded=embedded)
        show.say(_pace(stack.clock.speed))
        result = _play(stack, watch, recording, sent, f"replay-{file.stem}")
    _report(result, recording.counts, json=json)


def _pace(speed: float) -> str:
    return f"speed x{speed:g}: one recorded minute takes {60 / speed:.2g} s"


def _stack(exits: ExitStack, settings: Settings, *, embedded: bool) -> tuple[Stack, Any]:
    """An embedded stack, or the running one that the addresses name."""
    from heddle.app import compose, show
    from heddle.app.supervise import Supervisor

    if not embedded:
        return compose.running(settings), lambda: None
    supervisor = exits.enter_context(Supervisor(settings.data / "logs"))
    stack = compose.launch(supervisor, settings, strict=False, dashboard=False, say=show.say)
    return stack, supervisor.check


def _play(
    stack: Stack, watch: Any, recording: Any, sent: dict[str, Any], name: str
) -> dict[str, Any]:
    from heddle.app import show
    from heddle.app.demo import run_name
    from heddle.app.lag import host_lag
    from heddle.app.rollouts import Session, measure

    specs, preset, vocabulary = recording.trajectories, sent["preset"], sent["vocabulary"]
    with Session(stack, run_name(name), watch=watch, vocabulary=vocabulary) as session:
        if preset:
            why = "asked for on the command line"
            session.controller.switch(run=session.run, preset=preset, who="heddle replay", why=why)
        with show.bar(name, len(specs)) as progress:
            seen = session.play("replay", specs, progress)
        held = measure(session.collector, session.run, "replay")
        behind = host_lag(session.collector, session.run, "replay", seen)
    return {"run": session.run, **held, "host_lag": behind, "errors": dict(seen.errors)}


def _report(result: dict[str, Any], wanted: dict[str, int], *, json: bool) -> None:
    """Print what the store holds; exit 1 naming what differs from the file."""
    from heddle.app import lag, show

    keys = ("trajectories", "steps", "tool_calls", "output_tokens")
    if json:
        show.as_json(result)
    else:
        held = {k: "–" if result[k] is None else f"{result[k]:,}" for k in keys}
        rows = [[k.replace("_", " "), held[k], f"{wanted[k]:,}"] for k in keys]
        show.table(["", "store", "file"], rows, title=f"Run {result['run']}")
        share = result["host_lag"]["share"]
        behind = "not measured" if share is None else f"{share:.1%}"
        show.OUT.print(f"makespan {result['makespan_s']:,.1f} emulated s; host lag {behind}")
        if why := lag.sentence(result["host_lag"], "these figures do"):
            show.OUT.print(why, markup=False, soft_wrap=True)
    differs = [f"{k}: {result[k]} for {wanted[k]}" for k in keys if result[k] != wanted[k]]
    for name, count in result["errors"].items():
        show.say(f"{count} trajectories failed: {name}")
    if differs:
        show.say(f"heddle: the store differs from the file: {', '.join(differs)}")
        sys.exit(1)
