"""How many trajectories may a worker hold at once?

Only first steps are held back: a started trajectory always goes on. A count from means needs no
prediction of any single trajectory; the expected KV peak looks at when each is expected to end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from heddle.controller.core.book import Book
from heddle.controller.core.cost import peak_tokens
from heddle.controller.core.crowd import Peaks
from heddle.controller.core.types import Snapshot, Trajectory, Worker

# The best count lay at 0.8-1.2 times what fits on a genuine engine (planning.md B.1).
KV_ROOM: Final = 1.0
# Between 0.7 and 0.9 of the room the makespan stays within 5 % (planning.md B.7).
PEAK_ROOM: Final = 0.8
RUNNING_SLACK: Final = 1.15
"""Trajectories a worker may hold for each it can decode at once: some are in tools."""


class Allowance(Protocol):
    """What one decision may still release."""

    def choice(self, trajectory: Trajectory) -> list[str]:
        """Workers on which that fresh trajectory may start now, in their order."""
        ...

    def take(self, trajectory: Trajectory, worker: str) -> None:
        """It starts there."""
        ...


Admission = Callable[[Snapshot, Book], Allowance]


@dataclass(slots=True)
class Counts:
    """At most so many trajectories a worker."""

    limits: Mapping[str, float]
    book: Book

    def choice(self, trajectory: Trajectory) -> list[str]:
        """Workers below their limit."""
        _ = trajectory
        held = self.book.held
        return [w for w, limit in self.limits.items() if held[w] < limit]

    def take(self, trajectory: Trajectory, worker: str) -> None:
        """The book counts it."""


@dataclass(slots=True)
class KvPeaks:
    """Only where the expected KV peak stays within the room; an empty worker takes anyone."""

    book: Book
    peaks: Peaks
    full: set[int] = field(default_factory=set[int])
    """Length classes that did not fit once: not tried again in this decision."""

    def choice(self, trajectory: Trajectory) -> list[str]:
        """Workers whose expected peak stays within the room with it."""
        crowd = self.peaks.crowd
        row = crowd.outlook.rows[trajectory.id]
        kind = int(math.log2(max(float(crowd.outlook.tokens[row]), 64.0)) * 4)
        if kind in self.full:
            return []
        fits = self.peaks.highest_with(row) <= PEAK_ROOM * crowd.kv
        fits &= crowd.count < crowd.running * RUNNING_SLACK
        fits |= crowd.count == 0
        if not fits.any():
            self.full.add(kind)
            return []
        names = list(crowd.at)
        return [names[i] for i in np.flatnonzero(fits)]

    def take(self, trajectory: Trajectory, worker: str) -> None:
        """Its KV counts from now on."""
        crowd = self.peaks.crowd
        self.peaks.add(crowd.outlook.rows[trajectory.id], crowd.at[worker])


def unlimited(snapshot: Snapshot, book: Book) -> Allowance:
    """Every step goes at once."""
    return Counts({w.id: math.inf for w in snapshot.workers}, book)


def hold_count(snapshot: Snapshot, book: Book) -> Allowance:
    """As many as fit the KV room at their mean expected peak, and the running cap; at least 1."""
    live = snapshot.trajectories
    mean = sum(peak_tokens(t, snapshot.rates) for t in live) / max(len(live), 1)
    return Counts({w.id: _room(w, mean) for w in snapshot.workers}, book)


def hold_kv(snapshot: Snapshot, book: Book) -> Allowance:
    """A first step goes only where the expected KV peak fits with it."""
    if not snapshot.workers:
        return Counts({}, book)
    crowd = book.crowd
    peaks, homes = Peaks(crowd), list[int]()
    rows: list[int] = []
    for trajectory in snapshot.trajectories:
        home = crowd.at.get(trajectory.worker or "")
        if home is not None and not book.is_away(trajectory):
            rows.append(crowd.outlook.rows[trajectory.id])
            homes.append(home)
    if rows:
        np.add.at(peaks.held, np.array(homes), peaks.of(np.array(rows)))
    return KvPeaks(book, peaks)


def _room(worker: Worker, mean_peak_tokens: float) -> int:
    fits = KV_ROOM * worker.latency.kv_tokens / max(mean_peak_tokens, 1.0)
    return max(1, min(int(fits), worker.latency.max_running))


ADMISSIONS: Final[dict[str, Admission]] = {
    "none": unlimited,
    "hold-count": hold_count,
    "hold-kv": hold_kv,
}
