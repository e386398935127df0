"""How long did each commit take? A histogram that costs nothing to keep."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

EDGES_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


@dataclass(slots=True)
class Timings:
    """Counts by bucket; the last one is everything longer."""

    edges: tuple[float, ...] = EDGES_S
    counts: list[int] = field(default_factory=lambda: [0] * (len(EDGES_S) + 1))
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(self.edges, seconds)] += 1
        self.total_s += seconds
