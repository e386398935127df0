"""How long did each trajectory do what, kept by trajectory so that only changed ones are summed?

A pure partition: where activities overlap (parallel calls of one agent) the one that engines work
on comes first, so each nanosecond counts once. Most trajectories do one thing after the other: then
lengths add up, and the rest of its life is the orchestrator's. The others are swept.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from heddle.collector.activities import (
    KIND,
    KINDS,
    LIVE,
    OPEN,
    Bools,
    Columns,
    Ints,
    Tables,
    together,
)
from heddle.collector.cells import CELL_BITS, Edges, Grid, cut, ordered
from heddle.collector.lives import ends
from heddle.collector.timeline import RANKED

_ORDER: Final = [KIND[kind] for kind in RANKED]
_RANK: Final = np.array([_ORDER.index(at) if at < LIVE else LIVE for at in range(len(KINDS))])
_LIVING: Final = _ORDER.index(KIND["live"])
_AT_ONCE: Final = 1 << 19
"""Cells swept together: their number and a time inside one share 64 bits, up to 10 days of it."""
_NOWHERE: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Doings:
    """Nanoseconds of every trajectory by RANKED kind; rows of `state` are by trajectory code."""

    tables: Tables = field(default_factory=Tables)
    state: Ints = field(default_factory=lambda: _blank(0))
    """First start, last end, what lasts and since when, and by RANKED kind what is over."""
    tangled: Columns = field(default_factory=lambda: Columns.of(()))
    """Activities of those that do several things at once, or outside of their life."""

    def updated(self, rows: Columns, whose: Bools | None = None) -> Doings:
        """With every activity, OPEN where it lasts, of the trajectories of *whose* (None: all)."""
        rows = rows.where(rows.named())
        count = len(rows.tables.trajectories)
        state, tangled = _blank(count), self.tangled
        if whose is None:
            tangled = rows.where(slice(0))
        else:
            state[: len(self.state)] = self.state
            state[whose] = _blank(1)
            tangled = tangled.where(~whose[tangled.trajectory])
        simple = _sum(rows, state)
        odd = rows.where(~simple[rows.trajectory])
        return replace(self, tables=rows.tables, state=state, tangled=_both(tangled, odd))

    def totals(self, until_ns: int) -> tuple[Ints, Ints, Ints]:
        """Codes of the trajectories seen, how long each lasted, and by RANKED kind [., kind], when
        what lasts ends then."""
        first, last, doing, since = self.state[:, :4].T
        spent = self.state[:, 4:].copy()
        last = np.where(last == OPEN, until_ns, last)
        lasting = np.flatnonzero(doing >= 0)
        spent[lasting, doing[lasting]] += until_ns - since[lasting]
        spent[:, _LIVING] = np.where(last > first, last - first, 0) - spent.sum(axis=1)
        if len(self.tangled):
            rows = self.tangled.closed(until_ns)
            rows = rows.where(rows.named())
            first, last = first.copy(), last.copy()
            odd = np.unique(self.tangled.trajectory)
            first[odd], last[odd] = (
                each[odd] for each in ends(rows.trajectory, rows.start, rows.end, len(first))
            )
            spent[odd] = _swept(rows, len(first))[odd]
        seen = np.flatnonzero(last > first)
        return seen, last[seen] - first[seen], spent[seen]


def _blank(count: int) -> Ints:
    state = np.zeros((count, 4 + len(RANKED)), np.int64)
    state[:, 0], state[:, 1], state[:, 2] = _NOWHERE, -_NOWHERE, -1
    return state


def _both(some: Columns, more: Columns) -> Columns:
    return together([some, more]) if len(some) else more


def _sum(rows: Columns, state: Ints) -> Bools:
    """Fill in the state of the trajectories that do one thing after the other; which do."""
    count = len(state)
    first, last = ends(rows.trajectory, rows.start, rows.end, count)
    living = rows.kind == KIND["live"]
    length = rows.end - rows.start
    lived = np.zeros(count, np.int64)
    np.add.at(lived, rows.trajectory[living], length[living])
    seen = last > first
    simple = seen & (lived == np.where(seen, last - first, 0))
    doing = np.flatnonzero(~living)
    whose, start, end = rows.trajectory[doing], rows.start[doing], rows.end[doing]
    order = ordered(whose, start)
    owner, until = whose[order], end[order]
    clash = (owner[1:] == owner[:-1]) & (start[order][1:] < until[:-1])
    simple[owner[1:][clash]] = False
    state[simple, 0], state[simple, 1] = first[simple], last[simple]
    plain = simple[whose]
    whose, start, end = whose[plain], start[plain], end[plain]
    rank = _RANK[rows.kind[doing][plain]]
    lasts = end == OPEN
    state[whose[lasts], 2], state[whose[lasts], 3] = rank[lasts], start[lasts]
    over = ~lasts
    place = whose[over] * state.shape[1] + 4 + rank[over]
    np.add.at(state.reshape(-1), place, end[over] - start[over])
    return simple


def _swept(rows: Columns, count: int) -> Ints:
    """By trajectory and RANKED kind, each nanosecond once."""
    spent = np.zeros((count, len(RANKED)), np.int64)
    if not len(rows):
        return spent
    grid = Grid.over(int(rows.start.min()), int(rows.end.max()), wider=2)
    step = max(_AT_ONCE // grid.slabs, 1)
    for at in range(0, count, step):
        some = rows.where((rows.trajectory >= at) & (rows.trajectory < at + step))
        if len(some):
            _part(grid, some, spent)
    return spent


def _part(grid: Grid, rows: Columns, spent: Ints) -> None:
    pieces = cut(grid, rows.trajectory, rows.start, rows.end)
    edges = Edges.of(grid, pieces)
    rank = _RANK[rows.kind[pieces.row]]
    doing = np.full(len(edges.length), LIVE)
    for at in reversed(range(len(RANKED))):
        doing[edges.level(0, of=rank == at) > 0] = at
    some = np.flatnonzero((doing < LIVE) & (edges.length > 0))
    whose = edges.cell[some] >> CELL_BITS
    np.add.at(spent, (whose, doing[some]), edges.length[some])
