"""What can an operator ask and change about the layout? Part of the control plane.

A preview changes nothing; what is applied goes on after the answer, and GET /fleet tells how far it
is.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import APIRouter, Request

from heddle.controller import fleet_view, wire, wire_fleet
from heddle.controller.core.worth import Verdict
from heddle.controller.draining import Drain
from heddle.controller.errors import BadRequest, Conflict, ControllerError
from heddle.controller.live import LiveWorker

router = APIRouter(prefix="/heddle/v1")
_BACKGROUND: Final[set[asyncio.Task[None]]] = set()


@router.get("/fleet", response_model=wire_fleet.FleetState)
async def fleet(request: Request) -> Any:
    """Workers with their engines' load, changes with their phases, costs and levers."""
    return await fleet_view.fleet_state(_up(request))


@router.post("/fleet/plan", response_model=wire_fleet.FleetPlanState)
async def plan(request: Request, asked: wire_fleet.FleetPlanIn) -> Any:
    """What a change would be: nothing happens."""
    return (await _planned(_up(request), asked))[0]


@router.post("/fleet/apply", response_model=wire_fleet.ReallocationState)
async def apply(request: Request, asked: wire_fleet.FleetApplyIn) -> Any:
    """Change the layout; asked for by degrees it happens whatever it gains."""
    up = _up(request)
    said, because = await _planned(up, asked)
    if asked.layout is None and not said.change:
        raise Conflict(said.because)
    task = up.reallocator.begin(
        said.layout,
        because=asked.why or because,
        who=asked.who,
        rollouts=list(up.loop.open_rollout.items()),
        floor_gpus=said.floor_gpus,
        gain_s=said.gain_s,
    )
    story = up.reallocator.stories[-1]
    if asked.wait:
        await asyncio.shield(task)
    return fleet_view.story_state(story)


@router.post("/fleet/weights", response_model=wire_fleet.WeightsState)
async def weights(request: Request, asked: wire_fleet.WeightsIn) -> Any:
    """Who brings weights to engines that join, from now on."""
    if asked.owner == "disk" and not asked.path:
        message = "owner `disk` needs the path of the weights, one folder a version"
        raise BadRequest(message)
    moves = _up(request).reallocator
    moves.weights.declare(asked.owner, asked.path, asked.version)
    return fleet_view.weights_state(moves)


@router.post("/workers/{worker_id}/drain", response_model=wire.WorkerState)
async def drain(request: Request, worker_id: str, asked: wire_fleet.DrainIn) -> Any:
    """No new steps there; its trajectories are moved while their tools run."""
    up, worker = _up(request), _worker(request, worker_id)
    if not worker.draining:
        worker.draining = asked.why or f"asked for by {asked.who}"
        leaving = Drain(up.loop, [worker], [worker_id])
        task = asyncio.create_task(_emptied(leaving), name=f"heddle-drain-{worker_id}")
        _BACKGROUND.add(task)
        task.add_done_callback(_BACKGROUND.discard)
    up.loop.poke()
    return fleet_view.worker_state(up, worker)


@router.post("/workers/{worker_id}/resume", response_model=wire.WorkerState)
async def resume(request: Request, worker_id: str, asked: wire_fleet.DrainIn) -> Any:
    """It takes steps again."""
    _ = asked
    up, worker = _up(request), _worker(request, worker_id)
    if up.reallocator.unavailable and up.fleet.changing:
        raise Conflict(up.reallocator.unavailable)
    worker.draining = ""
    up.loop.poke()
    return fleet_view.worker_state(up, worker)


async def _emptied(leaving: Drain) -> None:
    # What still runs after that long stays; the worker goes on draining.
    try:
        await leaving.until_empty(lambda _: None)
    except ControllerError:
        return


async def _planned(up: Any, asked: wire_fleet.FleetPlanIn) -> tuple[wire_fleet.FleetPlanState, str]:
    moves = up.reallocator
    if not moves.launcher.nodes:
        raise Conflict(moves.unavailable)
    found = await up.rollouts.layouts.considered(asked)
    floor_gpus = moves.floor_gpus(asked.floor)
    change = moves.plan(found.degrees, floor_gpus)
    cost_s = moves.cost_s(change)
    verdict: Verdict = up.rollouts.layouts.judged(asked.run, found.works, found.degrees, cost_s)
    said = fleet_view.plan_state(
        moves, up.fleet.degrees, found.degrees, change, verdict, floor_gpus, found.makespan_s
    )
    return said, f"{found.because}; {verdict.because}"


def _up(request: Request) -> Any:
    return request.app.state.up()


def _worker(request: Request, worker_id: str) -> LiveWorker:
    known = _up(request).fleet.workers
    if worker_id not in known:
        message = f"no worker {worker_id!r}; there are: {', '.join(sorted(known)) or 'none'}"
        raise BadRequest(message)
    return known[worker_id]
