"""When was each trajectory live anywhere, and which one was live last?"""

from __future__ import annotations

import numpy as np

from heddle.collector.activities import KIND, Columns, Ints
from heddle.collector.grants import Window
from heddle.collector.shares import Spans


def live_spans(columns: Columns) -> Spans:
    """Disjoint times in which each trajectory did anything, in order of trajectory and time."""
    own = np.flatnonzero(columns.named())
    whose, start, end = columns.trajectory[own], columns.start[own], columns.end[own]
    count = len(columns.tables.trajectories)
    first, last = ends(whose, start, end, count)
    # Where `live` covers a whole life (facts.py makes it so) the rest need not be sorted.
    lives = columns.kind[own] == KIND["live"]
    spans = _union(whose[lives], start[lives], end[lives])
    whole = np.zeros(count, np.bool_)
    fits = (spans.lo == first[spans.trajectory]) & (spans.hi == last[spans.trajectory])
    whole[spans.trajectory[fits]] = True
    rest = ~whole[whose]
    more = _union(whose[rest], start[rest], end[rest])
    kept = whole[spans.trajectory]
    return Spans(*(np.concatenate([one[kept], two]) for one, two in zip(spans, more, strict=True)))


def ends(whose: Ints, start: Ints, end: Ints, count: int) -> tuple[Ints, Ints]:
    """First start and last end of each of *count* trajectories."""
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first, whose, start)
    np.maximum.at(last, whose, end)
    return first, last


def _union(whose: Ints, start: Ints, end: Ints) -> Spans:
    order = np.lexsort((start, whose))
    whose, start, end = whose[order], start[order], end[order]
    ranked = np.unique(end, return_inverse=True)[1]
    times = np.unique(end)
    # Ends as ranks: a running maximum within each trajectory then fits 64 bits.
    reach = np.maximum.accumulate(ranked + whose * (len(times) + 1)) - whose * (len(times) + 1)
    new = np.ones(len(whose), np.bool_)
    new[1:] = (whose[1:] != whose[:-1]) | (start[1:] > times[reach[:-1]])
    at = np.flatnonzero(new)
    until = np.concatenate([at[1:], [len(new)]])[: len(at)] - 1
    return Spans(whose[at], np.zeros(len(at), np.int64), start[at], times[reach[until]])


def last_live(window: Window, columns: Columns) -> int | None:
    """Code of the trajectory that ends last within *window*; ties: the one that started first,
    then by id."""
    own = columns.named()
    whose = columns.trajectory[own]
    first, last = ends(
        whose, columns.start[own], columns.end[own], len(columns.tables.trajectories)
    )
    inside = np.flatnonzero((first < window.end_ns) & (last > window.start_ns))
    if not len(inside):
        return None
    ranks = columns.tables.trajectories.ranks
    end = np.minimum(last[inside], window.end_ns)
    return int(inside[np.lexsort((ranks[inside], first[inside], -end))[0]])
