"""What happened in the cells that changed: strips, shares of blame and use, how full, surplus?

One vectorised pass over the activities that touch those cells. Tables are integer arrays whose
first column is the cell (cells.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from heddle.collector.activities import KIND, KINDS, Bools, Columns, Ints, Kind
from heddle.collector.cells import CELL_BITS, Cut, Edges, Grid, cut
from heddle.collector.grants import Window
from heddle.collector.shares import Rows, disjoint, share
from heddle.collector.states import BLAMED_KINDS, BUSY, STATE, STATES, classify, live

Table: TypeAlias = npt.NDArray[np.int64]
Tables: TypeAlias = dict[str, Table]
STRIPS: Final = "strips"
"""cell, degree, state, start, end, gpus"""
LIVE_ENDS: Final = "live"
"""cell, first and last live instant in it"""
EFFECTIVE: Final = "effective"
"""cell, GPU-ns of its busy time times min(batch, saturated)"""
SURPLUS: Final = "surplus"
"""cell, from and until when its worker had work to give"""
USED: Final = "used"
_EMPTY: Final = np.zeros((0, 4), np.int64)
_RUNNING: Final[tuple[Kind, ...]] = ("prefill", "decode")
_WAITING: Final[tuple[Kind, ...]] = ("held", "queued")
_IS_BUSY: Final = np.isin(np.arange(len(STATES)), [STATE[state] for state in BUSY])


class Grants(NamedTuple):
    """Of workers: code, degree, start, end and GPUs; never two at once."""

    worker: Ints
    degree: Ints
    start: Ints
    end: Ints
    gpus: Ints


class _Pieces(NamedTuple):
    """The cells cut at every edge, with what is observed in each piece."""

    edges: Edges
    rows: Cut
    seen: Columns
    """The activities that `rows` point into."""
    counts: dict[Kind, Ints]
    gpus: Ints
    degree: Ints
    state: Ints


def sweep(
    window: Window, grid: Grid, grants: Grants, columns: Columns, dirty: Bools, saturated: int
) -> Tables:
    """The tables of the dirty cells [worker, slab]."""
    pieces = _pieces(window, grid, grants, columns, dirty)
    tables = {
        STRIPS: _strips(pieces),
        LIVE_ENDS: _live_ends(pieces),
        EFFECTIVE: _effective(pieces, saturated),
        SURPLUS: _surplus(pieces, saturated),
    }
    for state, kinds in BLAMED_KINDS.items():
        owed = pieces.state == STATE[state]
        tables |= _shared(state, pieces, owed, kinds)
    return tables | _shared(USED, pieces, _IS_BUSY[pieces.state], _RUNNING)


def replaced(kept: Tables, dirty: Bools, new: Tables) -> Tables:
    """The kept rows of clean cells and the new ones of dirty cells."""
    workers, slabs = dirty.shape
    # By cell as one number: a look-up by two took three times as long.
    clean = np.zeros((workers, 1 << CELL_BITS), np.bool_)
    clean[:, :slabs] = ~dirty
    clean = clean.reshape(-1)
    found: Tables = {}
    for name, rows in new.items():
        old = kept.get(name, rows[:0])
        stays = np.flatnonzero(clean.take(old[:, 0]))
        found[name] = np.concatenate([old.take(stays, axis=0), rows])
    return found


def shares(tables: Tables, name: str) -> Rows:
    """The shares of that state, or of USED."""
    owed, rest = tables[name], tables[f"{name} rest"]
    return Rows(*owed.T, *rest.T)


def _pieces(window: Window, grid: Grid, grants: Grants, columns: Columns, dirty: Bools) -> _Pieces:
    seen, start, end = _touching(window, grid, columns, dirty)
    rows = cut(grid, seen.worker, start, end, dirty)
    held = cut(grid, grants.worker, grants.start, grants.end, dirty)
    edges = Edges.of(grid, rows, held)
    kind = seen.kind[rows.row]
    counts: dict[Kind, Ints] = {name: edges.level(0, of=kind == KIND[name]) for name in KINDS}
    return _Pieces(
        edges,
        rows,
        seen,
        counts,
        edges.level(1, grants.gpus[held.row]),
        edges.level(1, grants.degree[held.row]),
        classify({name: counts[name] > 0 for name in KINDS}),
    )


def _touching(
    window: Window, grid: Grid, columns: Columns, dirty: Bools
) -> tuple[Columns, Ints, Ints]:
    """The activities that may touch a dirty cell, and their times cut to the window."""
    start = np.maximum(columns.start, window.start_ns)
    end = np.minimum(columns.end, window.end_ns)
    first = np.where(dirty.any(axis=1), dirty.argmax(axis=1), grid.slabs)
    last = grid.slabs - 1 - dirty[:, ::-1].argmax(axis=1)
    touching = start < end
    touching &= grid.slab(end - 1) >= first[columns.worker]
    touching &= grid.slab(start) <= last[columns.worker]
    at = np.flatnonzero(touching)
    return columns.where(at), start[at], end[at]


def _runs(pieces: _Pieces, chosen: Bools, *same: Ints) -> tuple[Ints, Ints]:
    """First and last piece of each row of chosen pieces that follow each other and are alike."""
    at = np.flatnonzero(chosen & (pieces.edges.length > 0))
    if not len(at):
        return at, at
    breaks = np.diff(at) != 1
    for values in same:
        breaks |= np.diff(values[at]) != 0
    starts = np.concatenate([[True], breaks])
    return at[starts], at[np.concatenate([breaks, [True]])]


def _table(*columns: Ints) -> Table:
    return np.stack(columns, axis=1).astype(np.int64)


def _strips(p: _Pieces) -> Table:
    first, last = _runs(p, p.gpus > 0, p.state, p.degree, p.gpus, p.edges.cell[:-1])
    at = p.edges.at
    return _table(
        p.edges.cell[first], p.degree[first], p.state[first], at[first], at[last + 1], p.gpus[first]
    )


def _live_ends(p: _Pieces) -> Table:
    on = live({name: p.counts[name] > 0 for name in KINDS})
    at = np.flatnonzero(on & (p.edges.length > 0))
    cells, first = np.unique(p.edges.cell[at], return_index=True)
    last = np.concatenate([first[1:], [len(at)]])[: len(first)] - 1
    return _table(cells, p.edges.at[at[first]], p.edges.at[at[last] + 1])


def _effective(p: _Pieces, saturated: int) -> Table:
    at = np.flatnonzero(_IS_BUSY[p.state] & (p.gpus > 0) & (p.edges.length > 0))
    batch = np.minimum(_sum(p.counts, _RUNNING)[at], saturated)
    cells, first = np.unique(p.edges.cell[at], return_index=True)
    amount = p.gpus[at] * p.edges.length[at] * batch
    return _table(cells, np.add.reduceat(amount, first) if len(first) else first)


def _surplus(p: _Pieces, saturated: int) -> Table:
    on = (_sum(p.counts, _RUNNING) > saturated) | (_sum(p.counts, _WAITING) > 0)
    first, last = _runs(p, on, p.edges.cell[:-1])
    return _table(p.edges.cell[first], p.edges.at[first], p.edges.at[last + 1])


def _sum(counts: Mapping[Kind, Ints], kinds: tuple[Kind, ...]) -> Ints:
    return counts[kinds[0]] + counts[kinds[1]]


def _shared(name: str, p: _Pieces, owed: Bools, kinds: tuple[Kind, ...]) -> Tables:
    """Rows of the owed pieces, shared by the trajectories that do one of *kinds* in them."""
    amount = np.where(owed, p.gpus * p.edges.length, 0)
    if not amount.any():
        return {name: _EMPTY[:, :4], f"{name} rest": _EMPTY[:, :3]}
    doing = np.zeros(len(KINDS), np.bool_)
    doing[[KIND[one] for one in kinds]] = True
    whose = p.seen.trajectory[p.rows.row]
    mine = np.flatnonzero(doing[p.seen.kind[p.rows.row]] & (whose > 0))
    row = p.rows.row[mine]
    tools = p.seen.name[row] if kinds == ("tool",) else np.zeros(len(row), np.int64)
    ranks = p.seen.tables.tools.ranks[tools]
    lo, hi = p.edges.lo[0][mine], p.edges.hi[0][mine]
    spans = disjoint(whose[mine], tools, lo, hi, p.seen.end[row], ranks)
    rows = share(p.edges, amount, spans)
    return {name: _table(*rows[:4]), f"{name} rest": _table(*rows[4:])}
