"""What time is it for the fleet, when an emulated one runs faster than the wall?

Every process of a stack is given the same origin and speed, so all stamp the same emulated
nanoseconds: origin + speed * (wall - origin). Speed 1 is the wall clock itself.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """Fleet time from wall time; `origin_ns` is UTC nanoseconds, `speed` fleet seconds a second."""

    origin_ns: int = 0
    speed: float = 1.0

    @classmethod
    def of(cls, origin_ns: int, speed: float) -> Clock:
        """Without an origin (0) a fleet that is not as fast as the wall begins now: UTC since 1970
        times 20 has no room in 64 bits."""
        return cls(origin_ns or (0 if speed == 1.0 else time.time_ns()), speed)

    def now_ns(self) -> int:
        """UTC nanoseconds in fleet time."""
        wall_ns = time.time_ns()
        if self.speed == 1.0:
            return wall_ns
        return self.origin_ns + int((wall_ns - self.origin_ns) * self.speed)

    def now_s(self) -> float:
        """Seconds since the origin, in fleet time: small enough that a float keeps microseconds."""
        return (self.now_ns() - self.origin_ns) / 1e9

    def wall_s(self, fleet_s: float) -> float:
        """How many wall seconds a span of fleet seconds takes."""
        return fleet_s / self.speed

    async def sleep(self, fleet_s: float) -> None:
        """Wait that many fleet seconds; a negative wait is none."""
        await asyncio.sleep(max(fleet_s, 0.0) / self.speed)
