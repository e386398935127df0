"""How does a pure engine meet real time?

Reads the clock, hands its time to the engine, arms one timer for the next event and settles the
futures of what finished. One asyncio loop, no task of its own.
"""

from __future__ import annotations

import asyncio
from math import inf, isinf

from heddle.controller.clock import Clock
from heddle.controller.emulator.engine import Engine
from heddle.controller.emulator.request import Finished, Request
from heddle.controller.emulator.tracing import EngineSpans


class Runner:
    """The engine in clock time; every engine call of the HTTP face goes through `now`."""

    def __init__(
        self, engine: Engine, clock: Clock, port: int = 0, spans: EngineSpans | None = None
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.port = port
        self.spans = spans
        self.streams = self.begun = 0
        """Open now, and ever."""
        self.asked = self.applied = 0
        """Changes of priorities."""
        self.lag_s = 0.0
        """The most fleet seconds that something was handed out after it was due."""
        self._due_s = inf
        self._last_s = self.began_s = self.ended_s = clock.now_s()
        """Since `ended_s` nothing has ended: an idle engine is idle since then."""
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: dict[str, asyncio.Future[Finished]] = {}

    def now(self) -> float:
        """Fleet seconds since the origin; never runs backwards, whatever the wall clock does."""
        self._last_s = max(self._last_s, self.clock.now_s())
        return self._last_s

    def stamp(self, at_s: float) -> float:
        """A fleet time as UTC seconds, as `meta_info` carries it."""
        return self.clock.origin_ns / 1e9 + at_s

    def submit(self, request: Request, traceparent: str | None = None) -> asyncio.Future[Finished]:
        self.engine.submit(request, self.now())
        if self.spans is not None:
            self.spans.begun(request, traceparent)
        future: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
        self._waiting[request.rid] = future
        self.settle()
        return future

    def abort(self, rid: str | None) -> int:
        count = self.engine.abort(rid, self.now())
        self.settle()
        return count

    def prioritise(self, wanted: dict[str, int]) -> None:
        """As Heddle's plugin inside SGLang: new priorities for requests it has."""
        self.settle()
        self.asked += len(wanted)
        self.applied += self.engine.scheduler.reorder(wanted)

    def catch_up(self) -> None:
        """Settle what is due already. A hundred streams that end at once are woken before the loop
        looks at its timers again, and take longer to write than the fleet has until the next."""
        if self._due_s <= self.now():
            self.settle()

    def settle(self) -> None:
        """Hand out what ended and arm the timer for what comes next."""
        for finished in self.engine.advance(self.now()):
            self.ended_s = max(self.ended_s, finished.at_s)
            if self.spans is not None:
                self.spans.ended(finished)
            future = self._waiting.pop(finished.rid, None)
            if future is not None and not future.done():
                future.set_result(finished)
            self.lag_s = max(self.lag_s, self.now() - finished.at_s)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due_s = due_s = self.engine.next_event_s()
        if not isinf(due_s):
            wait_s = max(0.0, self.clock.wall_s(due_s - self.now()))
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.settle)

    async def standstill(self) -> None:
        """Until the iteration under way when the engine was paused is over."""
        self.settle()
        while self.engine.paused is not None and not isinf(self.engine.next_event_s()):
            await self.clock.sleep(self.engine.next_event_s() - self.now())
            self.settle()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.spans is not None:
            self.spans.close()
