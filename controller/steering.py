"""Which requests that an engine already has should stand elsewhere in its queue now?

A priority leaves with its request and grows old there: a switch changes the order, a prediction
changes when siblings end, and who is there for too long rises. Where the engine has Heddle's plugin
and it was verified, a new one goes after it: at most one change a request and interval, one call a
worker, never for a priority that the client chose. Where it was not, what waits here is ordered
here (late binding) and what waits in the engine keeps what it was sent with.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from heddle.controller.beliefs import Beliefs
from heddle.controller.core.priority import AGE_S, aged, band
from heddle.controller.errors import EngineError
from heddle.controller.fleet.engine import Priorities
from heddle.controller.fleet.workers import Fleet
from heddle.controller.live import LiveTrajectory, LiveWorker, Step
from heddle.controller.switches import Switchboard
from heddle.controller.table import Table

INTERVAL_S: Final = 0.5
"""Wall seconds between two changes of one request, and between two looks that nobody asked for: the
plugin itself makes no more of them."""
COUNT_S: Final = 5.0
"""Wall seconds between two looks at what plugins count: SGLang itself counts no preemptions."""
UNRANKED: Final = 0
"""Under an order without bands all are equal, and SGLang goes by arrival."""


@dataclass(slots=True)
class Steered:
    """What was done to one worker's queue."""

    changes: int = 0
    failures: int = 0
    told: Priorities = field(default_factory=Priorities)


class Steering:
    """Looks at the running steps of engines with a plugin while it runs."""

    def __init__(
        self,
        fleet: Fleet,
        table: Table,
        switchboard: Switchboard,
        beliefs: Beliefs,
        believe: Callable[[LiveTrajectory], None],
        now_ns: Callable[[], int],
    ) -> None:
        self._fleet = fleet
        self._table = table
        self._switchboard = switchboard
        self._beliefs = beliefs
        self._believe = believe
        self._now_ns = now_ns
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._counted_s = float("-inf")
        self.of: dict[str, Steered] = {}
        self.failures = 0

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._looking(), name="heddle-steering")

    async def close(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def ask(self) -> None:
        """The order changed: look now."""
        self._asked.set()

    async def look(self) -> None:
        """Once over all of them, then every worker is told at the same time."""
        workers = {w.id: w for w in self._fleet.alive if self._fleet.can[w.id].plugin}
        if not workers:
            return
        wanted: dict[str, list[tuple[Step, int]]] = {}
        for trajectory in self._table.by_key.values():
            if trajectory.running:
                for step, priority in self._changes(trajectory):
                    if step.granted is not None and step.granted.worker.id in workers:
                        wanted.setdefault(step.granted.worker.id, []).append((step, priority))
        now_s = asyncio.get_running_loop().time()
        if now_s - self._counted_s >= COUNT_S:
            self._counted_s = now_s
            for worker in workers:
                wanted.setdefault(worker, [])
        await asyncio.gather(*(self._tell(workers[w], those) for w, those in wanted.items()))

    def _changes(self, trajectory: LiveTrajectory) -> Iterator[tuple[Step, int]]:
        """Its running steps that should have another priority now."""
        switches = self._switchboard.of(trajectory.run)
        if trajectory.believed != switches.prediction:
            self._believe(trajectory)
        fact, before = trajectory.fact(), trajectory.steered
        longest_s = (self._now_ns() - min(s.released_ns for s in trajectory.running)) / 1e9
        age = int(longest_s / AGE_S)
        if before is not None and before[0] is fact and before[1] is switches and before[2] == age:
            return
        trajectory.steered = fact, switches, age
        # Fresh until its first step has ended: its worker holds none of it that could be lost.
        asked = fact._replace(worker=None) if not fact.steps else fact
        rank = band(switches.order, asked, self._beliefs.rates(trajectory.run))
        priority = aged(rank, longest_s) or UNRANKED
        now_s = asyncio.get_running_loop().time()
        for step in trajectory.running:
            if step.asked_priority is not None or (step.priority or UNRANKED) == priority:
                continue
            if now_s - step.steered_s < INTERVAL_S:
                trajectory.steered = None  # too early: next time
                continue
            step.steered_s = now_s
            yield step, priority

    async def _tell(self, worker: LiveWorker, changes: list[tuple[Step, int]]) -> None:
        mine = self.of.setdefault(worker.id, Steered())
        port = self._fleet.can[worker.id].plugin
        wanted = {step.granted.rid: priority for step, priority in changes if step.granted}
        try:
            mine.told = await worker.wire.prioritise(port, wanted)
        except EngineError:
            mine.failures += 1
            for step, _ in changes:
                step.trajectory.steered = None
            return
        mine.changes += len(wanted)
        for step, priority in changes:
            step.priority = priority

    async def _looking(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), INTERVAL_S)
            self._asked.clear()
            try:
                await self.look()
            except Exception:  # noqa: BLE001 (queues go on as they are; counted, shown in healthz)
                self.failures += 1
