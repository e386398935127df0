"""Which workers take steps now, and which of them died?

An engine that lost a connection is asked whether it lives before it is given up; a dead one is
asked again and again and comes back by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, NamedTuple, cast

from heddle.controller.clock import Clock
from heddle.controller.core.types import Latency
from heddle.controller.errors import Conflict, EngineError
from heddle.controller.fleet.engine import Capabilities, Engine, Steered
from heddle.controller.live import LiveWorker

EVERYWHERE_S: Final = 30.0
WORKS_S: Final = 5.0
"""An engine that needs longer for three tokens is not back."""
Told = Callable[[LiveWorker], object]
LawOf = Callable[[int], Latency]
"""Degree -> what the planner believes of such an engine."""


class Met(NamedTuple):
    """An engine, and what it said of itself; None: nothing."""

    engine: Steered
    said: Capabilities | None


class Fleet:
    """Workers by id, in the order they joined."""

    def __init__(self, clock: Clock, law_of: LawOf, engine_at: Callable[[str], Steered]) -> None:
        self._clock = clock
        self._law_of = law_of
        self._engine_at = engine_at
        self.workers: dict[str, LiveWorker] = {}
        self.can: dict[str, Capabilities] = {}
        """Worker id -> what its engine said when it joined."""
        self.lost: Told = _nobody
        """Told of a worker that died..."""
        self.back: Told = _nobody
        """... and of one that answers again: another engine at the same address."""
        self.joined: Told = _nobody
        """Told of an engine that was launched and takes steps..."""
        self.left: Told = _nobody
        """... and of one whose GPUs go to another."""
        self.changing = 0
        """Regroups under way: while nobody takes steps, these are held and not refused."""
        self._generation: dict[str, int] = {}

    @property
    def alive(self) -> list[LiveWorker]:
        """Those that answer."""
        return [w for w in self.workers.values() if w.alive]

    @property
    def taking(self) -> list[LiveWorker]:
        """Those that take steps: the living that do not drain."""
        return [w for w in self.workers.values() if w.takes]

    @property
    def degrees(self) -> tuple[int, ...]:
        """The layout as it is."""
        return tuple(w.degree for w in self.workers.values())

    async def meet(self, url: str) -> Met:
        """Ask an engine what it is and can; Conflict when no step may go there."""
        engine = self._engine_at(url)
        said = await self._asked(engine)
        if said is not None and said.refused:
            message = f"the engine at {engine.url} is not taken in: {said.refused}"
            raise Conflict(message)
        return Met(engine, said)

    async def join(
        self,
        worker_id: str | None,
        url: str,
        degree: int | None,
        *,
        launched: bool = False,
        met: Met | None = None,
    ) -> LiveWorker:
        """Take an engine in; what it says of its degree and room wins over the belief."""
        engine, said = met or await self.meet(url)
        worker_id = worker_id or self._free_id(engine.url)
        generation = self._next_generation(worker_id)
        worker = LiveWorker(
            id=worker_id,
            engine=engine,
            latency=_believed(self._law_of, said, degree),
            generation=generation,
            launched=launched,
            storage=said.storage if said is not None else "",
            alive=said is not None,
            joined_ns=self._clock.now_ns(),
        )
        self.workers[worker_id] = worker
        self.can[worker_id] = said or Capabilities()
        return worker

    def engine(self, url: str) -> Engine:
        """What carries calls to that address: any but an engine of a fleet in virtual time."""
        return cast("Engine", self._engine_at(url))

    def leave(self, worker_id: str) -> LiveWorker | None:
        """It takes no more steps; None when it was not there."""
        worker = self.workers.pop(worker_id, None)
        if worker is not None:
            worker.alive = False
        return worker

    @property
    def serves(self) -> bool:
        """Whether a step may come: somebody takes it now, or will when draining or regrouping
        ends."""
        # Every step asks, and nearly always the first one lives.
        for worker in self.workers.values():
            if worker.alive:
                return True
        return bool(self.changing)

    def arrange(self) -> None:
        """Highest degrees first, as layouts are written."""
        by_degree = sorted(self.workers.values(), key=lambda w: -w.degree)
        self.workers = {w.id: w for w in by_degree}

    def at(self, url: str) -> LiveWorker | None:
        """The worker of that address."""
        return next((w for w in self.workers.values() if w.url == url.rstrip("/")), None)

    async def suspect(self, worker: LiveWorker, *, proven: bool = False) -> bool:
        """Ask whether it lives; marks it dead if it does not answer. Returns whether it lives.

        One that stood still is not asked: it is dead until it has `proven` that it works.
        """
        if worker.wedged and not proven:
            return False
        said = await self._asked(worker.engine)
        if said is not None and said.refused:
            said = None
        lives = said is not None
        worker.wedged = worker.wedged and not lives
        before, worker.alive = worker.alive, lives
        if self.workers.get(worker.id) is worker and lives != before:
            if said is not None:
                self.can[worker.id] = said
                worker.storage = said.storage
                worker.generation = self._next_generation(worker.id)
                worker.joined_ns = self._clock.now_ns()
            (self.back if lives else self.lost)(worker)
        return lives

    def wedge(self, worker: LiveWorker) -> None:
        """It answers and gets on with nothing: dead until it works again."""
        worker.wedged, worker.alive = True, False
        self.lost(worker)

    async def revive(self) -> Iterable[LiveWorker]:
        """Ask every dead one; returns those that are back."""
        dead = [w for w in self.workers.values() if not w.alive]
        found = await asyncio.gather(*(self._revived(w) for w in dead))
        return [w for w, lives in zip(dead, found, strict=True) if lives]

    async def _revived(self, worker: LiveWorker) -> bool:
        proven = worker.wedged and await _works(worker)
        return await self.suspect(worker, proven=proven)

    async def everywhere(self, path: str, body: bytes) -> dict[str, int]:
        """POST the same to every live engine; worker id -> status, 0 where none came."""
        workers = self.alive
        headers = {"content-type": "application/json"}
        found = await asyncio.gather(
            *(asyncio.wait_for(w.wire.send(path, body, headers), EVERYWHERE_S) for w in workers),
            return_exceptions=True,
        )
        return {
            w.id: 0 if isinstance(reply, BaseException) else reply.status
            for w, reply in zip(workers, found, strict=True)
        }

    def _next_generation(self, worker_id: str) -> int:
        self._generation[worker_id] = number = self._generation.get(worker_id, -1) + 1
        return number

    async def _asked(self, engine: Steered) -> Capabilities | None:
        try:
            return await engine.capabilities()
        except EngineError:
            return None

    def _free_id(self, url: str) -> str:
        known = self.at(url)
        if known is not None:
            return known.id
        number = 0
        while f"w{number}" in self.workers:
            number += 1
        return f"w{number}"


async def _works(worker: LiveWorker) -> bool:
    """Whether three tokens go through its scheduler."""
    rid = f"heddle-works-{worker.id}-{worker.ended}-{worker.generation}"
    headers = {"Content-Type": "application/json"}
    try:
        await asyncio.wait_for(worker.engine.warm(b"1,2,3", rid, headers), WORKS_S)
    except (EngineError, TimeoutError):
        return False
    return True


def _nobody(worker: LiveWorker) -> None:
    _ = worker


def _believed(law_of: LawOf, said: Capabilities | None, degree: int | None) -> Latency:
    law = law_of(degree or (said.degree if said else 0) or 1)
    if said is None:
        return law
    return replace(
        law,
        kv_tokens=said.kv_tokens or law.kv_tokens,
        max_running=said.max_running or law.max_running,
    )
