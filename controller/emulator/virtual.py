"""How does asyncio code run when time is only counted?

An event loop without sockets: what is due next happens next, and time jumps there. Equal times keep
the order in which they were asked for, so a run repeats bit for bit. It serves callbacks, tasks,
timers and futures; everything else of the interface raises NotImplementedError.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final

from heddle.controller.clock import Clock


class VirtualLoop(asyncio.AbstractEventLoop):
    """`now_s` counts fleet seconds; asyncio's own times are wall seconds of a fleet at `speed`."""

    def __init__(self, speed: float = 20.0) -> None:
        self.speed = speed
        self.now_s = 0.0
        self.events = 0
        self._coming: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._asked = 0
        self._stopped = False
        self._failure: BaseException | None = None

    def at(self, fleet_s: float, callback: Callable[..., object], *args: Any) -> None:
        """Call it at that fleet time, or now if that has passed."""
        self._asked += 1
        due_s = fleet_s if fleet_s > self.now_s else self.now_s
        heapq.heappush(self._coming, (due_s, self._asked, callback, args))

    def stop(self, *_: object) -> None:
        """Let `run` return once what is happening now has happened."""
        self._stopped = True

    def run(self) -> None:
        """Go on until stopped or nothing is left to do; a callback's error ends it."""
        self._stopped = False
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            self._run()
        finally:
            asyncio._set_running_loop(outer)

    def _run(self) -> None:
        ready, coming, next_of = self._ready, self._coming, heapq.heappop
        while not self._stopped:
            if ready:
                while ready:
                    callback, args = ready.popleft()
                    callback(*args)
                if self._failure is not None:
                    self._check()
            elif coming:
                self.now_s, _, callback, args = next_of(coming)
                self.events += 1
                callback(*args)
            else:
                return

    def _check(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    # what asyncio asks of a loop

    def time(self) -> float:
        return self.now_s / self.speed

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        # A handle of its own for each call would cost as much as the calls themselves.
        self._ready.append(
            (callback, args) if context is None else (context.run, (callback, *args))
        )
        return _UNDERWAY

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self._timer(self.now_s + delay * self.speed, callback, args, context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self._timer(when * self.speed, callback, args, context)

    def _timer(
        self, due_s: float, callback: Callable[..., object], args: Any, context: Context | None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(due_s / self.speed, callback, args, self, context)
        self.at(due_s, self._ring, timer)
        return timer

    def _ring(self, timer: asyncio.TimerHandle) -> None:
        if not timer.cancelled():
            timer._run()
            self._check()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **named: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, **named)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._failure = self._failure or context.get("exception")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing: a cancelled timer is skipped when its time comes."""


class _Underway(asyncio.Handle):
    """What `call_soon` returns: nothing of it can be taken back."""

    def __init__(self) -> None:
        """No callback of its own."""

    def cancel(self) -> None:
        raise NotImplementedError


_UNDERWAY: Final = _Underway()


class VirtualClock(Clock):
    """The fleet time of a virtual loop."""

    __slots__ = ("_loop",)

    def __init__(self, loop: VirtualLoop, origin_ns: int) -> None:
        super().__init__(origin_ns, loop.speed)
        object.__setattr__(self, "_loop", loop)

    def now_ns(self) -> int:
        """UTC nanoseconds in fleet time."""
        return self.origin_ns + round(self._loop.now_s * 1e9)
