"""What would a fleet have done with this workload, decided by the real loop, in virtual time?

Event by event: the controller's own loop, mover, rollout planning and beliefs on a virtual clock,
with emulated engines behind their port. No policy is written here a second time. Bit-equal under a
seed; the result carries the hashes of engine truth and workload.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from heddle.controller.beliefs import Beliefs
from heddle.controller.blocks import Blocks
from heddle.controller.core.policies import preset_switches
from heddle.controller.core.regroup import Place, nodes_of
from heddle.controller.core.types import CoreError, Latency, Switches
from heddle.controller.costs import Costs
from heddle.controller.emulator.engine import PauseMode
from heddle.controller.emulator.plain import Plain
from heddle.controller.emulator.players import Players, RecordingLeases, RecordingSpans
from heddle.controller.emulator.port import VirtualEngine
from heddle.controller.emulator.records import (
    DeathRecord,
    PassRecord,
    RolloutResult,
    SyncRecord,
    WorkerRecord,
)
from heddle.controller.emulator.request import EngineConfig
from heddle.controller.emulator.span import SpanCache
from heddle.controller.emulator.tiers import TreeStorage
from heddle.controller.emulator.truth import TruthParams, load_truth, truth_hash
from heddle.controller.emulator.virtual import VirtualClock, VirtualLoop
from heddle.controller.emulator.workload import TrajectorySpec, workload_hash
from heddle.controller.fleet.launcher import Ended, Health, Returned, Started, nobody
from heddle.controller.fleet.workers import Fleet
from heddle.controller.journal import Journal
from heddle.controller.laws import law_of, laws
from heddle.controller.layouts import Layouts, T
from heddle.controller.loop import Loop
from heddle.controller.pins import Pin
from heddle.controller.reallocation import Reallocator
from heddle.controller.rollouts import Rollouts
from heddle.controller.switches import Switchboard
from heddle.controller.weights import Weights
from heddle.controller.wire import GroupIn, RolloutBegin
from heddle.models.history import GroupHistory

RUN: Final = "virtual"
ORIGIN_NS: Final = 1_700_000_000_000_000_000
_GC_YOUNG: Final = 1_000_000
_pass_record: Final = PassRecord._make
SPEED: Final = 20.0
"""Emulated seconds a wall second of the loop's own timers counts for, as in the demo."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death(Plain):
    """An engine dies `at_s` after the rollout began; it comes back empty at `back_s`, if ever."""

    worker_id: str
    at_s: float
    back_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync(Plain):
    """Every engine gets new weights `at_s` after the rollout began."""

    at_s: float
    version: str
    mode: PauseMode = "retract"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup(Plain):
    """Everything that shapes a rollout beside its workload and its policies."""

    gpus: int = 8
    layout: tuple[int, ...] | None = None
    """Degrees of the engines; None: the allocation policy decides."""
    system: str = "h100_sxm"
    model: str = "Qwen3-14B"
    seed: int = 0
    history: GroupHistory | None = None
    """What earlier rollouts taught; it is learned from during the rollout (give each its own)."""
    beliefs: Beliefs | None = None
    """Instead of the controller's own predictions, as for an oracle."""
    laws: Mapping[int, Latency] | None = None
    """What the planner believes of the engines; None: the shipped profile."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """Settings of every engine; system, model, degree, name and truth seed are set here."""
    storage: bool = False
    """Whether engines of one degree share a storage below their host tiers (`engine.host`)."""
    slow_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds each iteration of that worker takes longer, unknown to the planner."""
    arrivals_s: Sequence[float] | None = None
    deaths: Sequence[Death] = ()
    syncs: Sequence[Sync] = ()
    first: int | None = None
    """End when so many trajectories have finished."""
    cutoff_s: float | None = None
    """End at that time whatever runs."""


class Virtual:
    """One fleet with its controller on one virtual loop; play once."""

    def __init__(
        self, workload: Sequence[TrajectorySpec], switches: Switches, setup: Setup
    ) -> None:
        self.setup = setup
        self.loop = VirtualLoop(SPEED)
        self.players = Players(self.loop, workload, RUN, "r0")
        self.engines: dict[str, VirtualEngine] = {}
        self._storages: dict[int, TreeStorage] = {}
        self.nodes = nodes_of(setup.gpus) if setup.layout is None else ()
        self.ended: Ended = nobody
        self.returned: Returned = nobody
        self.result = RolloutResult(
            switches=switches,
            layout=(),
            seed=setup.seed,
            system=setup.system,
            model=setup.model,
            workload_hash=workload_hash(workload),
            truth_hash="",
        )
        self._origin_s = 0.0
        self._params = replace(setup.engine.truth, seed=setup.seed)
        self._spans = RecordingSpans(self.result, SPEED)
        self._leases = RecordingLeases(self.result)
        self._journal = _QuietJournal(None)
        self.controller = self._controller(switches)
        self.players.result, self.players.controller = self.result, self.controller

    def play(self) -> RolloutResult:
        """Run it to its end."""
        thresholds = gc.get_threshold()
        # What a rollout leaves behind is kept to its end: looking for garbage among it finds none.
        gc.set_threshold(_GC_YOUNG, *thresholds[1:])
        try:
            return self._play()
        finally:
            gc.set_threshold(*thresholds)

    def _play(self) -> RolloutResult:
        began_s = time.process_time()
        begun: list[asyncio.Task[None]] = []

        def begin() -> None:
            begun.append(self.loop.create_task(self._begin()))
            begun[0].add_done_callback(self.loop.stop)

        self.loop.at(0.0, begin)
        self.loop.run()
        begun[0].result()
        self.loop.run()
        self._close()
        self.result.cpu_s = time.process_time() - began_s
        return self.result

    # the launcher's port: the controller's rollouts call it

    kind = "virtual"
    why_not = "engines in virtual time are not put to sleep"

    async def open(self) -> None:
        """It is open."""

    async def start(self, worker_id: str, place: Place) -> Started:
        """At once."""
        return self._start(int(worker_id[1:]), place.degree)

    async def end(self, worker_id: str) -> None:
        """Nobody asks for it."""

    def health(self) -> dict[str, Health]:
        """Nobody asks for it."""
        return {}

    async def stop(self) -> None:
        """Nothing to stop."""

    def _controller(self, switches: Switches) -> Loop:
        clock = VirtualClock(self.loop, ORIGIN_NS)
        believed = self.setup.laws or laws(self.setup.system, self.setup.model)
        switchboard = Switchboard(self._journal, "verl")
        switchboard.set(None, asdict(switches), who="replay", why="", at_ns=ORIGIN_NS)
        beliefs = self.setup.beliefs or Beliefs()
        if self.setup.history is not None:
            beliefs.histories[RUN] = self.setup.history
        fleet = Fleet(clock, law_of(believed), lambda url: self.engines[url])
        controller = Loop(
            clock=clock,
            rng=np.random.default_rng(self.setup.seed),
            fleet=fleet,
            switchboard=switchboard,
            journal=self._journal,
            beliefs=beliefs,
            spans=self._spans,
            thread=None,
        )
        moves = Reallocator(
            controller,
            self,
            Blocks(fleet.can, weight_bytes=0, why_not=self.why_not),
            Costs(self._journal, self.setup.system, self.setup.model),
            Weights(),
            self._leases,
        )
        layouts = Layouts(controller, moves, believed, self.setup.gpus, solve=_in_no_time)
        self._rollouts = Rollouts(controller, believed, moves, layouts, self._leases)
        return controller

    async def _begin(self) -> None:
        if self.setup.layout is not None:
            for i, degree in enumerate(self.setup.layout):
                one = self._start(i, degree)
                await self.controller.fleet.join(one.worker_id, one.url, one.degree)
        self.controller.start()
        reply = await self._rollouts.begin(self._asked())
        self.result.layout = tuple(reply.layout)
        self.result.predicted_makespan_s = reply.predicted_makespan_s
        self.result.because = reply.because
        self._spans.origin_ns = self._leases.origin_ns = self.controller.clock.now_ns()
        self._origin_s = self.loop.now_s
        self._spans.records = {p.record.trajectory_id: p.record for p in self.players.players}
        for death in self.setup.deaths:
            self.loop.at(self._origin_s + death.at_s, self._die, death)
        for sync in self.setup.syncs:
            self.loop.at(self._origin_s + sync.at_s, self._sync, sync)
        if self.setup.cutoff_s is not None:
            self.loop.at(self._origin_s + self.setup.cutoff_s, self.loop.stop)
        self.players.begin(self.setup.arrivals_s, self.setup.first)

    def _asked(self) -> RolloutBegin:
        groups: dict[str, GroupIn] = {}
        for player in self.players.players:
            spec = player.spec
            known = groups.get(spec.group_id)
            if known is None:
                groups[spec.group_id] = GroupIn(
                    group=spec.group_id, task=spec.task, samples=1, prompt_tokens=spec.prompt_tokens
                )
            else:
                known.samples += 1
        return RolloutBegin(
            run=RUN, rollout="r0", expected=len(self.players.players), groups=list(groups.values())
        )

    def _start(self, index: int, degree: int) -> Started:
        worker_id = f"w{index}"
        url = f"virtual://{worker_id}"
        config = replace(
            self.setup.engine,
            system=self.setup.system,
            model=self.setup.model,
            degree=degree,
            worker_id=worker_id,
            # Engines of one fleet do not stutter in step.
            truth=replace(self._params, seed=self._params.seed * 1009 + index),
        )
        truth = load_truth(config.system, config.model, degree, config.truth)
        storage = self._storages.setdefault(degree, TreeStorage(SpanCache()))
        engine = VirtualEngine(
            self.loop, url, config, truth, self.players.context_of,
            storage if self.setup.storage else None,
        )  # fmt: skip
        engine.slow_down(self.setup.slow_s.get(worker_id, 0.0))
        self.engines[url] = engine
        capacity = engine.engine.scheduler.capacity
        self.result.workers.append(WorkerRecord(worker_id, degree, capacity, truth.hash))
        return Started(worker_id=worker_id, url=url, degree=degree)

    def _die(self, death: Death) -> None:
        engine = self.engines[f"virtual://{death.worker_id}"]
        lost = engine.die()
        at_s = self.loop.now_s - self._origin_s
        self.result.deaths.append(DeathRecord(death.worker_id, at_s, lost))
        if death.back_s is not None:
            self.loop.at(self._origin_s + death.back_s, engine.come_back)

    def _sync(self, sync: Sync) -> None:
        for engine in self.engines.values():
            if engine.alive:
                engine.pause(sync.mode)
                at_s = self.loop.now_s
                engine.load_weights(sync.version, partial(self._synced, engine, sync, at_s))

    def _synced(self, engine: VirtualEngine, sync: Sync, at_s: float) -> None:
        self.result.syncs.append(
            SyncRecord(
                engine.config.worker_id,
                sync.version,
                at_s - self._origin_s,
                self.loop.now_s - self._origin_s,
            )
        )

    def _close(self) -> None:
        result, origin_s, now_s = self.result, self._origin_s, self.loop.now_s
        result.makespan_s = now_s - origin_s
        result.trajectories = [player.record for player in self.players.players]
        result.events = self.loop.events
        result.failures = self.controller.failures
        result.decisions = self.controller.pace.decisions
        result.truth_hash = _fleet_hash(self.setup.engine, self._params, result)
        for engine in self.engines.values():
            result.passes += _merged(engine.config.worker_id, engine.log(now_s), origin_s, now_s)
        self.players.over = self._spans.over = True
        closing = self.loop.create_task(self._end())
        closing.add_done_callback(self.loop.stop)
        self.loop.run()
        self._journal.close()

    async def _end(self) -> None:
        self._rollouts.close()
        await self.controller.close()


class _QuietJournal(Journal):
    """Nobody restarts a virtual controller: pins need not be written."""

    def pin(self, pin: Pin) -> None:
        """Nowhere."""

    def unpin(self, run: str, trajectory: str) -> None:
        """Nowhere."""


async def _in_no_time(solve: Callable[[], T], /) -> T:
    """Virtual time stands still meanwhile, and there is one thread."""
    return solve()


def run_rollout(
    workload: Sequence[TrajectorySpec],
    *,
    preset: str = "heddle",
    switches: Switches | None = None,
    setup: Setup | None = None,
    **changes: Any,
) -> RolloutResult:
    """Play the workload under a preset (or any switches); `changes` are fields of `Setup`.

    `run_rollout(generate("demo"), preset="verl", gpus=8, layout=(1,) * 8, seed=3)`
    """
    if not workload:
        message = "a rollout has at least one trajectory; this workload has none"
        raise CoreError(message)
    setup = replace(setup or Setup(), **changes)
    if setup.gpus < 1 or setup.seed < 0 or (setup.layout is not None and not setup.layout):
        message = "a rollout has a seed of at least 0, at least one GPU and a layout of engines"
        raise CoreError(message)
    if setup.arrivals_s is not None and len(setup.arrivals_s) != len(workload):
        message = f"{len(setup.arrivals_s)} arrivals are not those of {len(workload)} trajectories"
        raise CoreError(message)
    return Virtual(workload, switches or preset_switches(preset), setup).play()


def _merged(
    worker_id: str, passes: Sequence[tuple[str, float, float]], origin_s: float, end_s: float
) -> list[PassRecord]:
    """Within the window; passes of one kind that follow each other at once are one."""
    rows: list[PassRecord] = []
    before, before_s = "", 0.0
    for state, since_s, until_s in passes:
        first_s = (since_s if since_s > origin_s else origin_s) - origin_s
        last_s = (until_s if until_s < end_s else end_s) - origin_s
        if last_s <= first_s:
            continue
        if state == before and first_s == before_s:
            first_s = rows.pop().start_s
        rows.append(_pass_record((worker_id, state, first_s, last_s)))
        before, before_s = state, last_s
    return rows


def _fleet_hash(engine: EngineConfig, params: TruthParams, result: RolloutResult) -> str:
    """12 hex digits of the sweeps, the truth's parameters and the engines' settings."""
    degrees = sorted({worker.degree for worker in result.workers})
    said = [truth_hash(load_truth(result.system, result.model, d, params)) for d in degrees]
    kept = astuple(replace(engine, system=result.system, model=result.model, truth=params))
    # Without a host tier nothing is said of it, so that older hashes stay.
    kept = kept[:-1] if engine.host is None else kept
    return blake2b(repr((said, kept)).encode(), digest_size=6).hexdigest()
