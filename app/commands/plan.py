"""`heddle plan`: the layout for lengths to come, or what the controller decided for its rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.app.commands import options
from heddle.app.errors import fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.controller.emulator.workload import TrajectorySpec

TYPER = options.help_with(
    "heddle plan", "heddle plan --workload coding --gpus 64 --model Qwen3-32B", "heddle plan --json"
)


def run(
    workload: Annotated[
        str | None, typer.Option(help="Plan for lengths like this generated preset's.")
    ] = None,
    groups: Annotated[int, typer.Option(help="Groups of 16 to plan for.", min=1)] = 16,
    rollout: Annotated[
        str | None, typer.Option(help="Plan for this rollout's lengths.", metavar="RUN/ROLLOUT")
    ] = None,
    gpus: options.Gpus = None,
    model: options.Model = None,
    system: options.System = None,
    seed: options.Seed = 0,
    controller: options.Controller = None,
    collector: options.Collector = None,
    json: options.Json = False,
) -> None:
    """Show what was decided, or plan with nothing running."""
    from heddle.app import show
    from heddle.app.commands.connect import controller_client, plain

    planning = workload is not None or rollout is not None
    if workload is not None and rollout is not None:
        fail("plan takes lengths from --workload or from --rollout, not from both")
    if not planning and (gpus or model or system):
        fail("--gpus, --model and --system plan for lengths: name --workload or --rollout too")
    if planning:
        from heddle.app.commands.compare import stored
        from heddle.controller.emulator.workload import generate

        lengths = (
            stored(rollout, collector)
            if rollout is not None
            else generate(str(workload), groups=groups, seed=seed)
        )
        asked = (gpus or 8, model or "Qwen3-14B", system or "h100_sxm")
        _print(_planned(lengths, seed, asked), json=json)
        return
    with controller_client(controller, None, None) as client:
        told = plain(client.plan())
    if json:
        show.as_json(told)
        return
    for plan in told["plans"]:
        rows = [[key, "-" if value is None else str(value)] for key, value in plan.items()]
        show.table(["plan", ""], rows)
    if not told["plans"]:
        show.say("no rollout is open")


def _planned(
    lengths: Sequence[TrajectorySpec], seed: int, asked: tuple[int, str, str]
) -> list[dict[str, Any]]:
    """Every allocation's layout for those lengths, the quickest first."""
    import numpy as np

    from heddle.app.rollouts import work_of
    from heddle.controller.core.allocation import ALLOCATIONS
    from heddle.controller.laws import laws

    gpus, model, system = asked
    known = laws(system, model)
    works = [work_of(one) for one in lengths]
    told: list[dict[str, Any]] = []
    for name, allocate in ALLOCATIONS.items():
        degree = name.removeprefix("fixed-")
        if degree.isdigit() and (int(degree) > gpus or int(degree) not in known):
            continue
        layout = allocate(works, known, gpus, np.random.default_rng(seed))
        told.append(
            {
                "allocation": name,
                "predicted_makespan_s": layout.makespan_s,
                "layout": "+".join(map(str, layout.degrees)),
                "because": layout.because,
            }
        )
    return sorted(told, key=lambda row: row["predicted_makespan_s"])


def _print(told: list[dict[str, Any]], *, json: bool) -> None:
    from heddle.app import show

    if json:
        show.as_json(told)
        return
    rows = [[f"{v:,.0f}" if isinstance(v, float) else str(v) for v in row.values()] for row in told]
    show.table(list(told[0]), rows)
