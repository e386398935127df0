"""How does one group of GPUs change hands, and back again when an engine does not come up?

drain -> stop or sleep -> launch or wake -> weights -> flush -> rejoin. What ended is begun again at
its old place when anything fails on the way; other groups of the same wave are not touched by it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from heddle.controller.blocks import Blocks
from heddle.controller.core.regroup import Group, Place
from heddle.controller.draining import DRAIN_S, Drain
from heddle.controller.errors import ControllerError, EngineError
from heddle.controller.fleet.launcher import Launcher, Started
from heddle.controller.fleet.workers import Fleet
from heddle.controller.leases import Leases
from heddle.controller.live import LiveWorker
from heddle.controller.loop import Loop
from heddle.controller.story import Story
from heddle.controller.weights import Weights

READY_S: Final = 1800.0
"""Fleet seconds a launch may take, 0 for any: the slowest public one of a large model took 695."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a regroup works with."""

    loop: Loop
    launcher: Launcher
    blocks: Blocks
    weights: Weights
    leases: Leases
    story: Story

    @property
    def fleet(self) -> Fleet:
        """The workers."""
        return self.loop.fleet


class Regrouping:
    """One group's change; `run` returns whether it happened, False when it was undone."""

    def __init__(
        self, parts: Parts, group: Group, begins: Sequence[str], *, leaving: Collection[str]
    ) -> None:
        self._p = parts
        self._group = group
        self._begins = dict(zip(begins, group.starts, strict=True))
        self._old = [parts.fleet.workers[w] for w in group.drains]
        self._was = {w: parts.blocks.of[w] for w in group.drains}
        self._by_hand = {w.id: w.draining for w in self._old}
        """Why somebody had drained it before: undone is not resumed."""
        self._drain = Drain(parts.loop, self._old, leaving)
        self._ended: list[str] = []
        self.problem = ""

    def drain(self) -> None:
        """Its old engines take no more steps, and nobody is carried there: before any group of the
        wave looks for room."""
        for worker in self._old:
            worker.drain(self._p.story.because, self._p.story.mark(worker.id))

    async def run(self, ready_s: float = READY_S, drain_s: float = DRAIN_S) -> bool:
        """The change, or its undoing."""
        try:
            await self._drain.until_empty(self._emptied, drain_s)
            await self._give_up()
            await self._bring(ready_s)
        except (ControllerError, TimeoutError) as error:
            self.problem = str(error) or f"no engine within {ready_s:g} s"
            await self._undo()
            return False
        finally:
            self._p.story.moved += self._drain.moved
        return True

    def _emptied(self, worker: LiveWorker) -> None:
        # Its GPUs stand still since its last step, however late that is seen here.
        through_ns = worker.through_ns or None
        with self._p.story.phase("drain", worker.id, worker.degree, until_ns=through_ns):
            pass

    async def _give_up(self) -> None:
        """Every old engine leaves its GPUs; all of them, before any new one begins."""
        await asyncio.gather(*(self._leave(worker) for worker in self._old))
        for worker in self._old:
            with self._p.story.phase("freed", worker.id, worker.degree):
                self._p.leases.left(worker)

    async def _leave(self, worker: LiveWorker) -> None:
        p = self._p
        sleeps = worker.alive and p.blocks.falls_asleep(worker.id)
        if sleeps:
            sleeps = await self._sleep(worker)
        if not sleeps:
            with p.story.phase("stop", worker.id, worker.degree):
                await p.launcher.end(p.blocks.process_of(worker.id))
            p.blocks.ended(worker.id)
        self._ended.append(worker.id)

    async def _sleep(self, worker: LiveWorker) -> bool:
        """Whether it sleeps; one that cannot is stopped."""
        with contextlib.suppress(EngineError):
            with self._p.story.phase("sleep", worker.id, worker.degree):
                await worker.wire.sleep()
            self._p.blocks.fell_asleep(worker.id, worker.url)
            return True
        return False

    async def _bring(self, ready_s: float) -> None:
        """All engines of the group, each from the moment its GPUs were free."""
        free_ns = self._p.loop.clock.now_ns()
        tasks = [
            asyncio.create_task(self._one(worker, place, free_ns))
            for worker, place in self._begins.items()
        ]
        try:
            async with asyncio.timeout(self._p.loop.clock.wall_s(ready_s) if ready_s else None):
                await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _one(self, worker_id: str, place: Place, free_ns: int) -> None:
        p, slept = self._p, self._p.blocks.asleep_at(place)
        p.story.mark(worker_id, free_ns)
        with p.story.phase("wake" if slept else "launch", worker_id, place.degree):
            started = await self._serving(worker_id, place)
            # Now, and not between its flush and its first step: GPUs would wait for the answer.
            met = await p.fleet.meet(started.url)
        await self._fit(worker_id, started, place)
        with p.story.phase("rejoin", worker_id, place.degree):
            await p.leases.rejoin(worker_id, started, free_ns, met)

    async def _serving(self, worker_id: str, place: Place) -> Started:
        """Who sleeps there, awake; else a new one."""
        p, slept = self._p, self._p.blocks.asleep_at(place)
        if slept is None:
            started = await p.launcher.start(worker_id, place)
            p.blocks.began(worker_id, place)
            return started
        await p.fleet.engine(slept.url).wake()
        p.blocks.woke(place, worker_id)
        return Started(worker_id=worker_id, url=slept.url, degree=place.degree)

    async def _fit(self, worker_id: str, started: Started, place: Place) -> None:
        """The weights everybody serves, and no prefix of older ones."""
        p, engine = self._p, self._p.fleet.engine(started.url)
        if not (p.weights.loads or p.blocks.version):
            return
        with p.story.phase("weights", worker_id, place.degree):
            if not await p.weights.bring(engine) and p.blocks.version:
                await p.weights.check(engine, p.blocks.version)
        with p.story.phase("flush", worker_id, place.degree):
            await engine.flush()

    async def _undo(self) -> None:
        """The old engines serve again where they were."""
        for worker_id in self._begins:
            await self._take_back(worker_id)
        back = [self._again(w.id, self._was[w.id]) for w in self._old if w.id in self._ended]
        found = await asyncio.gather(*back, return_exceptions=True)
        for worker in self._old:
            self._p.fleet.workers.get(worker.id, worker).draining = self._by_hand[worker.id]
        failed = [str(error) for error in found if isinstance(error, BaseException)]
        self.problem += "".join(f"; and its old engine: {sentence}" for sentence in failed)

    async def _take_back(self, worker_id: str) -> None:
        p, worker = self._p, self._p.fleet.workers.get(worker_id)
        if worker is not None:
            worker.draining = self.problem
            with contextlib.suppress(ControllerError):
                await Drain(p.loop, [worker], self._begins).until_empty(lambda _: None)
            p.leases.left(worker)
        await p.launcher.end(p.blocks.process_of(worker_id))
        p.blocks.ended(worker_id)

    async def _again(self, worker_id: str, place: Place) -> None:
        since_ns = self._p.story.since_ns(worker_id)
        if worker_id in self._p.fleet.workers:
            self._p.leases.left(self._p.fleet.workers[worker_id])
        with self._p.story.phase("back", worker_id, place.degree):
            started = await self._serving(worker_id, place)
            await self._p.leases.rejoin(worker_id, started, since_ns)
