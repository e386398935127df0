"""What is there to say of the fleet as it is now, and of a change to come?"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from heddle.controller import wire_fleet as wire
from heddle.controller.core.regroup import Place, Regroup
from heddle.controller.core.worth import Verdict
from heddle.controller.costs import METHODS
from heddle.controller.errors import EngineError
from heddle.controller.fleet.engine import Capabilities, EngineLoad
from heddle.controller.fleet.launcher import Health
from heddle.controller.levers import TABLE
from heddle.controller.live import LiveWorker
from heddle.controller.reallocation import Reallocator
from heddle.controller.steering import Steered
from heddle.controller.story import Story
from heddle.controller.wire import WorkerState

ASK_S: Final = 2.0
FLAGS: Final = ("priority", "metrics", "trace", "storage", "plugin", "memory_saver")


async def fleet_state(up: Any) -> wire.FleetState:
    """Asks every engine for its load; one that does not answer in time says nothing."""
    moves: Reallocator = up.reallocator
    workers = list(up.fleet.workers.values())
    loads = await asyncio.gather(*(_load(worker) for worker in workers))
    return wire.FleetState(
        launcher=moves.launcher.kind,
        nodes=list(moves.launcher.nodes),
        gpus=sum(moves.launcher.nodes) or sum(up.fleet.degrees),
        layout=list(up.fleet.degrees),
        serving_gpus=moves.serving_gpus,
        unavailable=moves.unavailable,
        weights=weights_state(moves),
        workers=[_worker(up, w, load) for w, load in zip(workers, loads, strict=True)],
        asleep=[
            wire.SleeperState(url=sleeper.url, place=place_state(place))
            for place, sleeper in moves.blocks.asleep.items()
        ],
        reallocations=[story_state(story) for story in reversed(moves.stories)],
        costs=_costs(moves, up.fleet.degrees),
        levers=[wire.LeverState(**row._asdict()) for row in TABLE],
    )


def weights_state(moves: Reallocator) -> wire.WeightsState:
    """Who owns the weights."""
    weights = moves.weights
    return wire.WeightsState(
        owner=weights.owner,
        path=weights.path,
        version=weights.version,
        unavailable=weights.unavailable,
    )


def story_state(story: Story) -> wire.ReallocationState:
    """One change."""
    return wire.ReallocationState(
        id=story.id,
        state=story.state,
        error=story.error,
        before=list(story.before),
        wanted=list(story.wanted),
        after=list(story.after),
        because=story.because,
        who=story.who,
        waves=story.waves,
        start_ns=story.start_ns,
        end_ns=story.end_ns,
        expected_s=story.expected_s,
        gain_s=story.gain_s,
        floor_gpus=story.floor_gpus,
        lowest_gpus=story.lowest_gpus,
        moved=story.moved,
        longest_s=story.longest(),
        phases=[wire.PhaseState(**asdict(phase)) for phase in story.phases],
    )


def plan_state(
    moves: Reallocator,
    before: Sequence[int],
    degrees: Sequence[int],
    plan: Regroup,
    verdict: Verdict,
    floor_gpus: int,
    makespan_s: float | None,
) -> wire.FleetPlanState:
    """A change before it happens."""
    return wire.FleetPlanState(
        before=list(before),
        layout=sorted(degrees, reverse=True),
        available=not moves.unavailable,
        unavailable=moves.unavailable,
        change=verdict.change,
        because=verdict.because,
        stays=list(plan.stays),
        waves=[
            [
                wire.GroupState(
                    drains=list(group.drains),
                    starts=[place_state(p, moves.blocks.asleep_at(p)) for p in group.starts],
                )
                for group in wave
            ]
            for wave in plan.waves
        ],
        floor_gpus=floor_gpus,
        lowest_gpus=plan.lowest_gpus,
        cost_s=moves.cost_s(plan),
        gain_s=verdict.gain_s,
        makespan_s=makespan_s,
    )


def place_state(place: Place, slept: object | None = None) -> wire.PlaceState:
    """A block; with who sleeps there, how an engine would begin."""
    method = "wake" if slept else "launch"
    return wire.PlaceState(node=place.node, first=place.first, degree=place.degree, method=method)


async def _load(worker: LiveWorker) -> EngineLoad | None:
    try:
        return await asyncio.wait_for(worker.engine.observe(), ASK_S)
    except (EngineError, TimeoutError):
        return None


def worker_state(up: Any, worker: LiveWorker) -> WorkerState:
    """A worker as the controller knows it, without asking its engine."""
    steered = up.loop.steering.of.get(worker.id, Steered())
    return WorkerState(
        worker_id=worker.id,
        url=worker.url,
        degree=worker.degree,
        alive=worker.alive,
        running=worker.running,
        trajectories=sum(t.worker == worker.id for t in up.loop.trajectories.values()),
        kv_tokens=worker.latency.kv_tokens,
        launched=worker.launched,
        draining=worker.draining,
        missing=list(up.fleet.can[worker.id].missing),
        priority_changes=steered.changes,
        preemptions=steered.told.preemptions,
    )


def _worker(up: Any, worker: LiveWorker, load: EngineLoad | None) -> wire.FleetWorker:
    moves: Reallocator = up.reallocator
    can: Capabilities = up.fleet.can[worker.id]
    place = moves.blocks.of.get(worker.id)
    health = moves.launcher.health().get(moves.blocks.process_of(worker.id), Health("serving"))
    here = [t for t in up.loop.trajectories.values() if t.worker == worker.id]
    return wire.FleetWorker(
        **worker_state(up, worker).model_dump(),
        takes=worker.takes,
        state=_state(worker, health),
        place=place_state(place) if place else None,
        queued=load.queued if load else None,
        engine_running=load.running if load else None,
        kv_used_tokens=load.kv_used_tokens if load else None,
        kv_usage=load.kv_used_tokens / load.kv_tokens if load and load.kv_tokens else None,
        context_tokens=sum(t.context_tokens for t in here),
        restarts=health.restarts,
        said=health.said,
        node=health.node,
        can={name: bool(getattr(can, name)) for name in FLAGS},
        sleep=moves.blocks.why_stop(worker.id) if place else "it was not launched here",
    )


def _state(worker: LiveWorker, health: Health) -> str:
    if not worker.alive:
        return "waiting to be started again" if health.state == "waiting" else "does not answer"
    return "draining" if worker.draining else "serving"


def _costs(moves: Reallocator, degrees: Sequence[int]) -> list[wire.CostState]:
    known = moves.costs.measured()
    wanted = {d for d, _ in known} | set(Counter(degrees))
    rows: list[wire.CostState] = []
    for degree in sorted(wanted):
        for method in METHODS:
            seconds = moves.costs.expected_s(degree, method)
            measured = known.get((degree, method), (0.0, 0))[1]
            rows.append(
                wire.CostState(degree=degree, method=method, seconds=seconds, measured=measured)
            )
    return rows
