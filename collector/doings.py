"""How long did each trajectory do what, kept cell by cell (cells.py) like the workers' ledger?

A pure partition: where activities overlap (parallel calls of one agent) the one that engines work
on comes first, so each nanosecond counts once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from heddle.collector.activities import KIND, KINDS, LIVE, Bools, Columns, Ints
from heddle.collector.cells import CELL_BITS, Edges, Grid, cut
from heddle.collector.lives import ends
from heddle.collector.sweep import Tables, replaced
from heddle.collector.timeline import RANKED

_ORDER: Final = [KIND[kind] for kind in RANKED]
_RANK: Final = np.array([_ORDER.index(at) if at < LIVE else LIVE for at in range(len(KINDS))])
_TABLE: Final = "doings"
_WIDER: Final = 2
"""There are a hundred times as many trajectories as workers, each with little in a slab."""
_AT_ONCE: Final = 1 << 19
"""Cells swept together: their number and a time inside one share 64 bits, up to 10 days of it."""


@dataclass(slots=True)
class Doings:
    """Nanoseconds of every trajectory by RANKED kind."""

    grid: Grid = field(default_factory=lambda: Grid(0, 0, 0))
    tables: Tables = field(default_factory=dict[str, Ints])
    columns: Columns = field(default_factory=lambda: Columns.of(()))

    def update(self, columns: Columns, dirty: Bools | None = None) -> None:
        """Take the activities as they are now; *dirty* [trajectory, slab] changed (None: all)."""
        grid = grid_of(columns)
        if dirty is None or grid[:2] != self.grid[:2]:
            dirty = np.ones((len(columns.tables.trajectories), grid.slabs), np.bool_)
            self.tables = {}
        self.grid, self.columns = grid, columns
        self.tables = replaced(self.tables, dirty, {_TABLE: _sweep(grid, columns, dirty)})

    def totals(self) -> tuple[Ints, Ints, Ints]:
        """Codes of the trajectories seen, how long each lasted, and by RANKED kind [., kind]."""
        columns, own = self.columns, self.columns.named()
        count = len(columns.tables.trajectories)
        first, last = ends(columns.trajectory[own], columns.start[own], columns.end[own], count)
        seen = np.flatnonzero(last > first)
        spent = np.zeros((count, len(RANKED)), np.int64)
        rows = self.tables[_TABLE]
        np.add.at(spent, rows[:, 0] >> CELL_BITS, rows[:, 1:])
        return seen, last[seen] - first[seen], spent[seen]


def grid_of(columns: Columns) -> Grid:
    """Over everything that trajectories did, the window or not."""
    own = columns.named()
    if not own.any():
        return Grid.over(0, 1)
    span = int(columns.start[own].min()), int(columns.end[own].max())
    return Grid.over(*span, wider=_WIDER)


def _sweep(grid: Grid, columns: Columns, dirty: Bools) -> Ints:
    """Rows of cell and nanoseconds by kind."""
    changed: Bools = np.any(dirty, axis=1)
    touched = np.flatnonzero(columns.named() & changed[columns.trajectory])
    rows = columns.where(touched)
    step = max(_AT_ONCE // grid.slabs, 1)
    found = [np.zeros((0, 1 + len(RANKED)), np.int64)]
    for first in range(0, len(columns.tables.trajectories), step):
        some = (rows.trajectory >= first) & (rows.trajectory < first + step)
        if some.any():
            found.append(_part(grid, rows.where(some), dirty))
    return np.concatenate(found)


def _part(grid: Grid, rows: Columns, dirty: Bools) -> Ints:
    pieces = cut(grid, rows.trajectory, rows.start, rows.end, dirty)
    edges = Edges.of(grid, pieces)
    rank = _RANK[rows.kind[pieces.row]]
    doing = np.full(len(edges.length), LIVE)
    for at in reversed(range(len(RANKED))):
        doing[edges.level(0, of=rank == at) > 0] = at
    some = np.flatnonzero((doing < LIVE) & (edges.length > 0))
    cells, place = np.unique(edges.cell[some], return_inverse=True)
    spent = np.zeros((len(cells), len(RANKED)), np.int64)
    np.add.at(spent, (place, doing[some]), edges.length[some])
    return np.concatenate([cells[:, None], spent], axis=1)
