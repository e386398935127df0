"""What did every worker do, kept cell by cell so that an update recomputes only what changed?

A ledger holds the tables of cells (worker and slab of time) that sweep.py makes. `update` sweeps
the cells it is told have changed and replaces their rows; a late span reopens the cells it touches,
the others stay final. Swept at once or in a hundred updates, the rows are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from heddle.collector.activities import Bools, Columns, Ints, ints
from heddle.collector.cells import CELL_BITS, Grid
from heddle.collector.grants import Granted, Lease, Window, grant
from heddle.collector.past import Past, joined
from heddle.collector.states import STATE
from heddle.collector.sweep import LIVE_ENDS, STRIPS, Grants, Tables, replaced, sweep

SATURATED: Final = 32
"""Where nobody says: the fitted laws (14B, degree 1, H100) double a token's time near 30 at 8k."""
NOBODY: Final = -1
"""Worker code of unallocated GPUs."""


class Strips(NamedTuple):
    """Merged pieces of one state: worker and state as codes."""

    worker: Ints
    degree: Ints
    state: Ints
    start: Ints
    end: Ints
    gpus: Ints

    @property
    def amount(self) -> Ints:
        """GPU-ns of each."""
        return self.gpus * (self.end - self.start)

    def where(self, chosen: Bools | Ints) -> Strips:
        """Some of them."""
        return Strips(*(column[chosen] for column in self))


@dataclass(slots=True)
class Ledger:
    """Of one window; what is swept comes with `update`."""

    saturated: int = SATURATED
    window: Window = field(default_factory=lambda: Window(0, 0))
    gpus: int = 0
    granted: Granted = field(default_factory=Granted)
    columns: Columns = field(default_factory=lambda: Columns.of(()))
    past: Past = field(default_factory=Past)
    grid: Grid = field(default_factory=lambda: Grid(0, 0, 0))
    tables: Tables = field(default_factory=dict[str, Ints])
    swept: int = 0
    """Cells swept so far."""

    def update(
        self,
        window: Window,
        gpus: int,
        leases: Sequence[Lease],
        columns: Columns,
        dirty: Bools | None = None,
        past: Past | None = None,
    ) -> None:
        """Take the activities as they are now; *dirty* [worker, slab] changed (None: all)."""
        self.past = past or Past()
        grid = Grid.over(*window)
        workers = columns.tables.workers
        workers.many(lease.worker_id for lease in leases)
        if dirty is None or grid[:2] != self.grid[:2]:
            dirty = np.ones((len(workers), grid.slabs), np.bool_)
            self.tables = {}
        self.window, self.gpus, self.columns, self.grid = window, gpus, columns, grid
        self.granted = grant(window, gpus, leases)
        from_ns = grid.base + int(dirty.any(axis=0).argmax()) << grid.bits
        touching = joined(self.past.since(from_ns), columns)
        new = sweep(window, grid, self._grants(), touching, dirty, self.saturated)
        self.tables = replaced(self.tables, dirty, new)
        self.swept += int(dirty.sum())

    def _grants(self) -> Grants:
        codes = self.columns.tables.workers.codes
        rows = [
            (codes[worker_id], *one[1:])
            for worker_id, mine in self.granted.grants.items()
            if worker_id is not None
            for one in mine
        ]
        return Grants(*ints(rows).reshape(-1, 5).T)

    def strips(self) -> Strips:
        """Every worker's strips in order of worker id and time, then what nobody has."""
        rows = self.tables[STRIPS]
        # Those of one cell stand in order of time; few numbers sort in one pass.
        rank = self.columns.tables.workers.ranks[rows[:, 0] >> CELL_BITS]
        slab = rows[:, 0] & (1 << CELL_BITS) - 1
        order = np.argsort(slab.astype(np.int16), kind="stable")
        order = order[np.argsort(rank[order].astype(np.int16), kind="stable")]
        rows = np.ascontiguousarray(rows.T[:, order])
        found = _merged(Strips(rows[0] >> CELL_BITS, *rows[1:]))
        idle = [
            (NOBODY, 0, STATE["unallocated"], *one[2:]) for one in self.granted.grants.get(None, ())
        ]
        nobody = Strips(*ints(idle).reshape(-1, 6).T)
        return _joined([_with_ends(found, *self._live_ends()), nobody])

    def _live_ends(self) -> tuple[Ints, Ints]:
        """First and last live instant by worker; the fleet's for one that never had any."""
        cell, first, last = self.tables[LIVE_ENDS].T
        none = self.window.end_ns
        count = len(self.columns.tables.workers)
        begins, ends = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
        np.minimum.at(begins, cell >> CELL_BITS, first)
        np.maximum.at(ends, cell >> CELL_BITS, last)
        never = ends < 0
        begins[never] = first.min(initial=none)
        ends[never] = last.max(initial=-1) if len(last) else none
        return begins, ends


def _joined(parts: Sequence[Strips]) -> Strips:
    return Strips(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _merged(s: Strips) -> Strips:
    """Neighbours in time that are alike as one; they come in order."""
    if not len(s.start):
        return s
    new = np.ones(len(s.start), np.bool_)
    new[1:] = s.start[1:] != s.end[:-1]
    for column in (s.worker, s.degree, s.state, s.gpus):
        new[1:] |= column[1:] != column[:-1]
    at = np.flatnonzero(new)
    last = np.concatenate([at[1:], [len(new)]]) - 1
    return s.where(at)._replace(end=s.end[last])


def _with_ends(s: Strips, begins: Ints, ends: Ints) -> Strips:
    """Time without any trajectory cut into ramp_up, starved_gap and tail_bubble."""
    empty = s.state == STATE["starved_gap"]
    if not empty.any():
        return s
    bare = s.where(empty)
    first, last = begins[bare.worker], ends[bare.worker]
    last = np.maximum(first, last)
    ramp = bare._replace(end=np.minimum(bare.end, first))
    gap = bare._replace(start=np.maximum(bare.start, first), end=np.minimum(bare.end, last))
    tail = bare._replace(start=np.maximum(bare.start, last))
    parts, places = [s.where(~empty)], [np.flatnonzero(~empty) * 3]
    at = np.flatnonzero(empty) * 3
    for turn, (part, state) in enumerate(
        ((ramp, "ramp_up"), (gap, "starved_gap"), (tail, "tail_bubble"))
    ):
        some = part.start < part.end
        part = part.where(some)
        parts.append(part._replace(state=np.full(len(part.start), STATE[state])))
        places.append(at[some] + turn)
    return _joined(parts).where(np.argsort(np.concatenate(places)))
