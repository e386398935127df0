"""When is the whole picture decided on?

A full decision looks at every live trajectory, so its price grows with them: two of one run keep
a distance that grows too. Steps of started trajectories do not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

DECIDE_PAUSE_S: Final = 40e-6
"""Wall seconds between two full decisions of a run, for each live trajectory: snapshot and decision
cost about 10 us a trajectory, so they take at most a quarter of the event loop's time. 6,400 live
ones are decided on every 0.26 s, eight every third of a millisecond."""


class Pace:
    """Calls `decide(run)` at once or as soon as the distance to the last time allows."""

    def __init__(self, decide: Callable[[str], None], live: Callable[[], int]) -> None:
        self.decisions = 0
        self._decide = decide
        self._live = live
        self._last_s: dict[str, float] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def ask(self, run: str, *, at_least_s: float = 0.0) -> None:
        """Something changed that a full decision of that run must see, `at_least_s` wall seconds
        after the last one."""
        loop = asyncio.get_running_loop()
        pause_s = max(DECIDE_PAUSE_S * self._live(), at_least_s)
        due_s = self._last_s.get(run, -at_least_s - 1.0) + pause_s
        timer = self._timers.get(run)
        if timer is not None:
            if timer.when() <= due_s:
                return
            timer.cancel()
        if loop.time() >= due_s:
            self._now(run)
        else:
            self._timers[run] = loop.call_at(due_s, self._now, run)

    def asked(self, run: str) -> bool:
        """Whether a decision of that run is going to come anyway."""
        return run in self._timers

    def close(self) -> None:
        """Nothing is decided any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _now(self, run: str) -> None:
        self._timers.pop(run, None)
        self._last_s[run] = asyncio.get_running_loop().time()
        self.decisions += 1
        self._decide(run)
