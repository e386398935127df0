"""Do lengths spread as widely as they were predicted to, and if not, by how much more?

Each trajectory's first prediction is held against what it came to: finished ones by their total,
running ones by what they have passed already, without which the early finishers alone would make
every predictor look wrong. Only ever widens, and never by more than MOST.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from heddle.controller.core.types import Length
from heddle.models.lognormal import FAR_Z, Z90, mills

PRIOR: Final = 24.0
"""Trajectories' worth of trust in the predictor before anything finished."""
EVERY: Final = 16
"""Finished trajectories between two looks: one look costs 1 us a trajectory."""
ROUNDS: Final = 6
"""Of expectation and maximization: the seventh changes the factor by less than 1 %."""
MOST: Final = 4.0
LEAST_SIGMA: Final = 0.02
"""What predictions of an oracle are taken to claim."""


@dataclass(slots=True)
class Calibration:
    """Of one run."""

    factor: float = 1.0
    """By which the log-spread of predictions is too small; 1 where they hold."""
    _told: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    _running: dict[str, float] = field(default_factory=dict[str, float])
    _squares: float = 0.0
    _finished: int = 0
    covered: int = 0
    """Of what ended, how many did so between the p10 and p90 first told."""

    def predicted(self, trajectory: str, length: Length) -> None:
        """Its length before its first token; later predictions are not asked about."""
        if trajectory not in self._told and length.p50 > 0:
            sigma = math.log(max(length.p90 / length.p50, 1.0)) / Z90
            self._told[trajectory] = math.log(length.p50), max(sigma, LEAST_SIGMA)

    def survives(self, trajectory: str, tokens: float) -> None:
        """It goes on after so many."""
        if (z := self._z(trajectory, tokens)) is not None:
            self._running[trajectory] = z

    def ended(self, trajectory: str, tokens: float, *, truncated: bool) -> None:
        """It is over; a truncated one would have gone on."""
        z = self._z(trajectory, tokens)
        if z is None:
            return
        if truncated:
            self._running[trajectory] = z
            return
        self._running.pop(trajectory, None)
        self._squares += z * z
        self.covered += abs(z) <= Z90
        self._finished += 1
        if self._finished % EVERY == 0:
            self._look()

    @property
    def ended_count(self) -> int:
        """Whose first prediction can be judged; the early ones are the short ones."""
        return self._finished

    def widened(self, length: Length) -> Length:
        """The same middle; spread and mean as the rollout says."""
        if self.factor <= 1.0 or length.p50 <= 0:
            return length
        below, above = length.p10 / length.p50, length.p90 / length.p50
        sigma = math.log(max(above, 1.0)) / Z90
        return length._replace(
            p10=length.p50 * below**self.factor,
            p90=length.p50 * above**self.factor,
            mean=length.mean * math.exp((self.factor**2 - 1.0) * sigma**2 / 2),
        )

    def _z(self, trajectory: str, tokens: float) -> float | None:
        told = self._told.get(trajectory)
        return (math.log(max(tokens, 1.0)) - told[0]) / told[1] if told else None

    def _look(self) -> None:
        variance, count = self.factor**2, PRIOR + self._finished + len(self._running)
        for _ in range(ROUNDS):
            scale = math.sqrt(variance)
            beyond = sum(_square_beyond(z / scale) for z in self._running.values())
            variance = (PRIOR + self._squares + variance * beyond) / count
        self.factor = min(max(math.sqrt(variance), 1.0), MOST)


def _square_beyond(z: float) -> float:
    """Mean square of a standard normal known to exceed z."""
    return 1.0 if z < -FAR_Z else 1.0 + z / mills(z)
