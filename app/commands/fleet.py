"""`heddle fleet`: the engines, their layout and its changes."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.app import checks
from heddle.app.commands import options

if TYPE_CHECKING:
    from heddle.controller import wire_fleet as wire
    from heddle.controller.client import ControllerClient

TYPER = options.help_with(
    "heddle fleet",
    "heddle fleet plan 4x8+8x4",
    "heddle fleet apply 2x4 --why 'short answers' --wait",
    "heddle fleet drain w3 --why 'its node restarts'",
    "heddle fleet weights disk /ckpt/step-120",
)


class Action(StrEnum):
    """What to do."""

    SHOW = "show"
    PLAN = "plan"
    APPLY = "apply"
    DRAIN = "drain"
    RESUME = "resume"
    WEIGHTS = "weights"
    LEVERS = "levers"


def run(
    action: Annotated[Action, typer.Argument(help="What to do.")] = Action.SHOW,
    what: Annotated[
        list[str] | None,
        typer.Argument(help="A layout as 4x8+8x4, a worker, or an owner of weights and a path."),
    ] = None,
    floor: Annotated[
        float | None, typer.Option(help="Share of GPUs that go on serving.", min=0.0, max=1.0)
    ] = None,
    run_id: options.Run = None,
    expected: Annotated[int, typer.Option(help="Trajectories to plan for.", min=0)] = 0,
    version: Annotated[str, typer.Option(help="Name of the weights; else their path.")] = "",
    wait: Annotated[bool, typer.Option(help="Return when the change is over.")] = False,
    who: options.Who = None,
    why: options.Why = "",
    controller: options.Controller = None,
    data: options.Data = None,
    token_file: options.TokenFile = None,
    json: options.Json = False,
) -> None:
    """See the engines, preview or make a layout, drain one.

    Without a layout, plan and apply take what the run's allocation policy wants.
    """
    from heddle.app import show
    from heddle.app.commands.connect import asker, controller_client

    words, who = what or [], asker(who)
    said: Any
    with controller_client(controller, data, token_file, timeout_s=3600.0) as client:
        if action in (Action.PLAN, Action.APPLY):
            said = _change(client, action, words, floor, run_id, expected, who, why, wait=wait)
        elif action in (Action.DRAIN, Action.RESUME):
            call = client.drain if action == Action.DRAIN else client.resume
            said = call(_one(words, "a worker, as w3"), who=who, why=why)
        elif action == Action.WEIGHTS:
            said = _weights(client, words, version)
        else:
            said = client.fleet()
    if json:
        show.as_json(said.model_dump())
    else:
        _print(action, said)


def _change(
    client: ControllerClient, action: Action, words: list[str], floor: float | None,
    run_id: str | None, expected: int, who: str, why: str, *, wait: bool,
) -> wire.FleetPlanState | wire.ReallocationState:  # fmt: skip
    from heddle.controller.wire_fleet import FleetApplyIn, FleetPlanIn

    asked: dict[str, Any] = {
        "layout": degrees("".join(words)) if words else None,
        "run": run_id or "default",
        "expected": expected,
        "floor": floor,
    }
    if action == Action.PLAN:
        return client.plan_fleet(FleetPlanIn(**asked))
    return client.apply_fleet(FleetApplyIn(**asked, who=who, why=why, wait=wait))


def degrees(layout: str) -> list[int]:
    """4x8+8x4 is four engines of degree 8 and eight of degree 4; 8+4 is one of each."""
    from heddle.app.errors import fail

    found: list[int] = []
    for part in layout.replace(" ", "").replace(",", "+").split("+"):
        count, times, degree = part.rpartition("x")
        numbers = (degree, count) if times else (degree,)
        if not all(number.isdigit() and 0 < int(number) <= checks.MOST_GPUS for number in numbers):
            fail(f"{layout!r} is no layout; say as 4x8+8x4: four of degree 8, eight of degree 4")
        found += [int(degree)] * (int(count) if times else 1)
    return found


def _one(words: list[str], what: str) -> str:
    from heddle.app.errors import fail

    if len(words) != 1:
        fail(f"name {what}; heddle fleet lists them")
    return words[0]


def _weights(client: ControllerClient, words: list[str], version: str) -> wire.WeightsState:
    from heddle.app.errors import fail
    from heddle.controller.wire_fleet import WeightsIn

    owner = words[0] if words else ""
    if owner not in ("engine", "disk", "trainer"):
        fail(f"{owner!r} owns no weights; say engine, trainer, or disk and a path")
    path = words[1] if len(words) > 1 else ""
    return client.declare_weights(WeightsIn(owner=owner, path=path, version=version))


def _print(action: Action, said: Any) -> None:
    from heddle.app import show

    if action == Action.SHOW:
        _fleet(said)
    elif action == Action.LEVERS:
        rows = [[row.trainer, row.lever, row.works, row.because] for row in said.levers]
        show.table(["trainer", "lever", "works", "because"], rows)
    elif action == Action.PLAN:
        _plan(said)
    elif action == Action.APPLY:
        _story(said)
    else:
        rows = [[name, str(value) or "-"] for name, value in said.model_dump().items()]
        show.table([action.value, ""], rows)


def _fleet(fleet: wire.FleetState) -> None:
    from heddle.app import show

    rows = [
        [
            w.worker_id, str(w.degree), w.state, str(w.trajectories), str(w.running),
            "-" if w.kv_usage is None else f"{w.kv_usage:.0%}", str(w.restarts), w.url,
        ]
        for w in fleet.workers
    ]  # fmt: skip
    title = f"{fleet.launcher}: {fleet.serving_gpus} of {fleet.gpus} GPUs serve"
    columns = ["worker", "GPUs", "state", "trajectories", "steps", "KV", "restarts", "url"]
    show.table(columns, rows, title=title)
    if fleet.unavailable:
        show.say(f"the layout cannot change: {fleet.unavailable}")
    for story in fleet.reallocations[:5]:
        _story(story)


def _plan(plan: wire.FleetPlanState) -> None:
    from heddle.app import show

    for number, wave in enumerate(plan.waves, 1):
        for group in wave:
            begins = ", ".join(
                f"{p.degree} GPUs of node {p.node} ({p.method})" for p in group.starts
            )
            ends = ", ".join(sorted(group.drains, key=lambda w: (len(w), w))) or "nobody"
            show.say(f"wave {number}: {ends} ends; {begins} begins")
    show.say(f"{len(plan.stays)} workers stay; at least {plan.lowest_gpus} GPUs serve all the time")
    show.say(f"cost {plan.cost_s:.0f} s; {plan.because}")
    if plan.unavailable:
        show.say(f"it cannot be applied: {plan.unavailable}")


def _story(story: wire.ReallocationState) -> None:
    from heddle.app import show

    took_s = (story.end_ns - story.start_ns) / 1e9 if story.end_ns else None
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in story.longest_s.items())
    before, after = (_short(those) for those in (story.before, story.after or story.wanted))
    time = "under way" if took_s is None else f"{took_s:.1f} s ({story.expected_s:.0f} expected)"
    show.say(f"{before} to {after}: {story.state}, {time}; {parts or 'nothing yet'}")
    show.say(f"  because {story.because}" + (f"; {story.error}" if story.error else ""))


def _short(layout: list[int]) -> str:
    from collections import Counter

    from heddle.controller.core.regroup import spelled

    return spelled(Counter(layout)) or "nothing"
