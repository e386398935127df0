"""`heddle demo`: one rollout under two presets, end to end, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from heddle.app.commands import options

if TYPE_CHECKING:
    from heddle.app.compose import Stack

TYPER = options.help_with("heddle demo", "heddle demo --once --json --trajectories 32 --gpus 4")
SPEED: Final = 20.0
VERDICT: Final = {
    "heddle": "heddle won", "verl": "heddle lost", "draw": "a draw", None: "no winner"
}  # fmt: skip


def run(
    trajectories: Annotated[int, typer.Option(help="Trajectories of each rollout.", min=1)] = 256,
    gpus: options.Gpus = None,
    seed: options.Seed = 0,
    speed: options.Speed = None,
    data: options.Data = None,
    once: Annotated[bool, typer.Option("--once", help="Exit after printing.")] = False,
    dashboard: Annotated[bool, typer.Option(help="Serve the pages too.")] = True,
    json: options.Json = False,
) -> None:
    """Run one rollout under two presets, and compare.

    The fleet is emulated: presets verl and heddle play the same trajectories, paired. Where this
    machine ran behind (host lag above 10 % of the trajectories' time), nobody is declared to have
    won; then take fewer --trajectories or a lower --speed.
    """
    from heddle.app import compose, demo, show
    from heddle.app.rollouts import Session
    from heddle.app.settings import load
    from heddle.app.supervise import Supervisor

    flags = {"fleet.gpus": gpus, "fleet.speed": speed or SPEED, "fleet.seed": seed}
    settings = load({"data": data, **flags})
    settings.fleet.workers = ()
    wanted = demo.DemoOptions(trajectories=trajectories, seed=seed)
    with Supervisor(settings.data / "logs") as supervisor:
        stack = compose.launch(
            supervisor, settings, strict=False, dashboard=dashboard, say=show.say
        )
        run_id = demo.run_name("demo")
        with Session(stack, run_id, watch=supervisor.check, seed=seed) as session:
            result = demo.run_demo(session, wanted, show.bar)
        if json:
            show.as_json(result)
        else:
            _print(result, stack, once=once)
        if not once:
            show.say("Ctrl-C stops everything.")
            supervisor.stay()


def _print(result: dict[str, Any], stack: Stack, *, once: bool) -> None:
    from heddle.app import lag, show

    verl, heddle = result["presets"]["verl"], result["presets"]["heddle"]
    fleet = result["emulated"]
    gain = verl["makespan_s"] / max(heddle["makespan_s"], 1e-9)
    show.table(
        ["rollout", "verl", "heddle", "heddle / verl"],
        [*_facts(verl, heddle), *_causes(verl, heddle)],
        title=f"Run {result['run']}: {verl['trajectories']} trajectories on {verl['gpus']} GPUs",
    )
    show.OUT.print(f"\nSpeed-up of heddle over verl: {gain:.2f}x ({VERDICT[result['winner']]}).")
    if result["winner"] is None and (
        why := lag.sentence(result["host_lag"], "the comparison does")
    ):
        show.OUT.print(why, markup=False, soft_wrap=True)
    elif not result["host_lag"]["trustworthy"]:
        show.OUT.print(_despite_lag(verl, heddle), soft_wrap=True)
    show.OUT.print(
        f"All of it is emulated: {fleet['model']} on {fleet['system']}, x{fleet['speed']:g}; "
        "no GPU was used, and the seconds are emulated seconds.",
        soft_wrap=True,
    )
    if stack.has_dashboard:
        # With --once the pages end with this command; what it played is in the store.
        how = "heddle up shows it again at " if once else ""
        show.OUT.print(f"Dashboard: {how}{stack.settings.dashboard_url}", soft_wrap=True)


def _facts(verl: dict[str, Any], heddle: dict[str, Any]) -> list[list[str]]:
    def row(name: str, key: str, form: str = "{:,.0f}") -> list[str]:
        pair = [verl[key], heddle[key]]
        ratio = f"{pair[1] / pair[0]:.2f}" if all(pair) and key == "makespan_s" else ""
        return [name, *("-" if v is None else form.format(v) for v in pair), ratio]

    bounds = heddle["lower_bounds_s"].items()
    return [
        row("makespan (s)", "makespan_s", "{:,.1f}"),
        row("predicted makespan (s)", "predicted_makespan_s", "{:,.1f}"),
        ["host lag", *(_share(side["host_lag"]["share"]) for side in (verl, heddle)), ""],
        ["host lag, critical path (s)", *(_path_s(side) for side in (verl, heddle)), ""],
        *([f"lower bound, {_spaced(n)} (s)", f"{s:,.1f}", f"{s:,.1f}", ""] for n, s in bounds),
        row("layout (GPUs a worker)", "layout", "{}"),
        row("trajectories", "trajectories"),
        row("steps", "steps"),
        row("tool calls", "tool_calls"),
        row("moves", "moves"),
    ]


def _path_s(side: dict[str, Any]) -> str:
    critical_s = side["host_lag"]["critical_s"]
    return "-" if critical_s is None else f"{critical_s:,.1f}"


def _despite_lag(*sides: dict[str, Any]) -> str:
    slower = max(sides, key=lambda side: side["makespan_s"])
    return (
        f"This machine ran behind: up to {_path_s(slower)} s of the slower makespan are its own "
        "lag. Who won stands all the same: it is the shorter one even without them."
    )


def _causes(verl: dict[str, Any], heddle: dict[str, Any]) -> list[list[str]]:
    """GPU-seconds by cause, largest of verl's first."""
    mine, theirs = heddle["gpu_ns"], verl["gpu_ns"]
    states = sorted(theirs | mine, key=lambda s: (-theirs.get(s, 0), -mine.get(s, 0), s))
    rows = [["", "", "", ""], ["GPU-seconds by cause", "", "", ""]]
    for state in states:
        before, after = theirs.get(state, 0), mine.get(state, 0)
        ratio = f"{after / before:.2f}" if before and after else ""
        rows.append([f"  {_spaced(state)}", f"{before / 1e9:,.1f}", f"{after / 1e9:,.1f}", ratio])
    total = [sum(theirs.values()), sum(mine.values())]
    ratio = f"{total[1] / max(total[0], 1):.2f}"
    return [*rows, ["  GPUs x wall", *(f"{ns / 1e9:,.1f}" for ns in total), ratio]]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _spaced(name: str) -> str:
    return name.replace("_", " ")
