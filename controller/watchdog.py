"""Does every engine that has steps get on with them?

Health is not progress: a scheduler that hangs leaves an HTTP server that answers. Progress is a
step that ends, a chunk of a stream, or another count in what the engine says of its load. Where
there is none of it for `wedged_s`, and another engine lives that does get on, the engine is wedged:
it takes no more steps, those it has go on elsewhere and are aborted there, and it comes back once
it prefills three tokens. While none gets on, weights are being loaded or everybody is paused:
nothing is done.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Final

from heddle.controller.errors import EngineError, EngineLost
from heddle.controller.fleet.engine import EngineLoad
from heddle.controller.fleet.workers import Fleet
from heddle.controller.live import LiveWorker
from heddle.controller.table import Table

WEDGED_S: Final = 60.0
"""Longer than a pass of any engine, prefill of a 100k context included."""
LOOKS: Final = 12
"""In that time."""


@dataclass(slots=True)
class _Seen:
    """Of one worker: what it looked like, and since when."""

    counted: tuple[int, int]
    since_s: float
    load: EngineLoad | None = None


class Watchdog:
    """Looks at every worker with steps while it runs; `wedged` counts what it found."""

    def __init__(self, fleet: Fleet, table: Table, wedged_s: float = WEDGED_S) -> None:
        self._fleet = fleet
        self._table = table
        self._wedged_s = wedged_s
        self._seen: dict[str, _Seen] = {}
        self._task: asyncio.Task[None] | None = None
        self.wedged = 0
        self.failures = 0

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._looking(), name="heddle-watchdog")

    async def close(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def look(self) -> None:
        """Once over all; what stands still is asked for its load, and given up after a while."""
        now_s = asyncio.get_running_loop().time()
        busy = [w for w in self._fleet.alive if w.running]
        self._seen = {w.id: self._seen[w.id] for w in busy if w.id in self._seen}
        await asyncio.gather(*(self._one(worker, now_s) for worker in busy))
        still = [w for w in busy if now_s - self._seen[w.id].since_s >= self._wedged_s]
        if len(still) < len(self._fleet.alive):
            for worker in still:
                self._give_up(worker)

    async def _one(self, worker: LiveWorker, now_s: float) -> None:
        counted = worker.ended, worker.events
        seen = self._seen.get(worker.id)
        if seen is None or seen.counted != counted:
            self._seen[worker.id] = _Seen(counted, now_s)
            return
        try:
            load = await worker.engine.observe()
        except EngineError:
            return
        if seen.load is not None and seen.load != load:
            seen.since_s = now_s
        seen.load = load

    def _give_up(self, worker: LiveWorker) -> None:
        self.wedged += 1
        self._fleet.wedge(worker)
        because = f"the engine at {worker.url} answers but makes no progress"
        for trajectory in self._table.by_key.values():
            for step in trajectory.running:
                if step.granted is not None and step.granted.worker is worker:
                    step.give_up(EngineLost(because))

    async def _looking(self) -> None:
        while True:
            await asyncio.sleep(self._wedged_s / LOOKS)
            try:
                await self.look()
            except Exception:  # noqa: BLE001 (the look must go on; counted, shown in healthz)
                self.failures += 1
