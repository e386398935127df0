"""How many trajectories may a worker hold at once?

First steps are held back; a started trajectory goes on, unless `hold-kv` finds that the contexts
at home outgrew its worker's KV and parks it. A count from means needs no prediction of any single
trajectory; the expected KV peak looks at when each is expected to end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from heddle.controller.core.book import Book
from heddle.controller.core.cost import peak_tokens
from heddle.controller.core.crowd import Crowd
from heddle.controller.core.draws import Floats, Ints
from heddle.controller.core.memory import RUNNING, TOOL, Flags
from heddle.controller.core.types import Snapshot, Worker

# The best count lay at 0.8-1.2 times what fits on a genuine engine (planning.md B.1).
KV_ROOM: Final = 1.0
# Between 0.7 and 0.9 of the room the makespan stays within 5 % (planning.md B.7).
PEAK_ROOM: Final = 0.8
# Above this share of the KV an engine evicts what returns next: everybody's prefix is computed
# again at every step. Parking down to the lower share, whoever has least to come first (the longest
# and the newest instead: 0-5 % later in four search rollouts).
PARK_ABOVE: Final = 0.95
PARK_TO: Final = 0.9
RUNNING_SLACK: Final = 1.15
"""Trajectories a worker may hold for each it can decode at once: some are in tools."""


class Allowance(Protocol):
    """What one decision may still release."""

    def maybe(self, places: Ints) -> Flags:
        """Whether `choice` of each is still worth asking for."""
        ...

    def choice(self, place: int) -> Flags | None:
        """Workers on which the fresh trajectory of that place may start now; None: on none."""
        ...

    def parks(self) -> list[tuple[int, str]]:
        """Places of started trajectories whose worker has no room for them any more, and why."""
        ...


Admission = Callable[[Snapshot, Book], Allowance]


@dataclass(slots=True)
class Counts:
    """At most so many trajectories a worker."""

    limits: Floats
    book: Book

    def maybe(self, places: Ints) -> Flags:
        """All or none."""
        return np.full(len(places), bool((self.book.held < self.limits).any()))

    def choice(self, place: int) -> Flags | None:
        """Workers below their limit."""
        _ = place
        below: Flags = self.book.held < self.limits
        return below if below.any() else None

    def parks(self) -> list[tuple[int, str]]:
        """Nobody."""
        return []


@dataclass(slots=True)
class KvPeaks:
    """Only where the expected KV peak stays within the room; an empty worker takes anyone."""

    book: Book
    crowd: Crowd
    kinds: Ints
    """Length class of each place, four to an octave."""
    room: Floats
    most: Floats
    """KV tokens and trajectories a worker may hold."""
    full: Flags
    """Classes that did not fit once: not tried again in this decision."""

    def maybe(self, places: Ints) -> Flags:
        """Unless their class did not fit."""
        return ~self.full[self.kinds[places]]

    def choice(self, place: int) -> Flags | None:
        """Workers whose expected peak stays within the room with it."""
        kind = self.kinds[place]
        if self.full[kind]:
            return None
        crowd = self.crowd
        fits: Flags = crowd.peaks_with(place) <= self.room
        fits &= crowd.count < self.most
        fits |= crowd.count == 0
        if fits.any():
            return fits
        self.full[kind] = True
        return None

    def parks(self) -> list[tuple[int, str]]:
        """Where the contexts at home no longer fit, those in tools that have least to come."""
        book, facts = self.book, self.book.facts
        grown = book.step_growth() / 2 * (facts.state == RUNNING)
        context = np.where(book.home >= 0, facts.context + grown, 0.0)
        at = np.maximum(book.home, 0)
        held = np.bincount(at, weights=context, minlength=len(book.names))
        found: list[tuple[int, str]] = []
        for worker in np.flatnonzero(held > PARK_ABOVE * self.crowd.kv).tolist():
            idle = np.flatnonzero((book.home == worker) & (facts.state == TOOL))
            free = held[worker] - PARK_TO * self.crowd.kv[worker]
            because = f"{held[worker]:,.0f} tokens of context do not fit {book.names[worker]}"
            for place in idle[np.argsort(facts.expected[idle], kind="stable")].tolist():
                if free <= 0:
                    break
                if not book.snapshot.trajectories[place].moving:
                    free -= context[place]
                    found.append((place, because))
        return found


def unlimited(snapshot: Snapshot, book: Book) -> Allowance:
    """Every step goes at once."""
    return Counts(np.full(len(snapshot.workers), math.inf), book)


def hold_count(snapshot: Snapshot, book: Book) -> Allowance:
    """As many as fit the KV room at their mean expected peak, and the running cap; at least 1."""
    live = snapshot.trajectories
    mean = sum(peak_tokens(t, snapshot.rates) for t in live) / max(len(live), 1)
    return Counts(np.array([float(_room(w, mean)) for w in snapshot.workers]), book)


def hold_kv(snapshot: Snapshot, book: Book) -> Allowance:
    """A first step goes only where the expected KV peak fits with it."""
    _ = snapshot
    crowd = book.crowd
    kinds = (np.log2(np.maximum(crowd.outlook.tokens, 64.0)) * 4).astype(np.intp)
    full: Flags = np.zeros(int(kinds.max(initial=0)) + 1, dtype=bool)
    return KvPeaks(book, crowd, kinds, PEAK_ROOM * crowd.kv, crowd.running * RUNNING_SLACK, full)


def _room(worker: Worker, mean_peak_tokens: float) -> int:
    fits = KV_ROOM * worker.latency.kv_tokens / max(mean_peak_tokens, 1.0)
    return max(1, min(int(fits), worker.latency.max_running))


ADMISSIONS: Final[dict[str, Admission]] = {
    "none": unlimited,
    "hold-count": hold_count,
    "hold-kv": hold_kv,
}
WATCHFUL: Final = frozenset({"hold-kv"})
"""Policies that look at started trajectories too."""
