"""How is a running rollout accounted for again when only some of its trajectories changed?

`Following` keeps what every trajectory did, the workers' ledger and the trajectories' doings. An
update gathers the changed trajectories anew, finds where what they did differs from before, and
sweeps those cells and the time gone by since. Nothing depends on how the changes came: followed in
a hundred updates or read at once, the result is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from heddle.collector.accounting import Accounts, accounts_of
from heddle.collector.activities import OPEN, Activity, Bools, Columns, Ints, Tables, together
from heddle.collector.cells import Grid
from heddle.collector.doings import Doings, grid_of
from heddle.collector.facts import Facts, facts_of, until, window_of
from heddle.collector.grants import Window, grant
from heddle.collector.ledger import Ledger
from heddle.collector.sums import Law, sums
from heddle.collector.trails import Frames, trails


@dataclass(frozen=True, slots=True)
class Rows:
    """What an update is told of one rollout."""

    rollout: Mapping[str, Any]
    frames: Frames
    workers: pl.DataFrame
    now_ns: int
    laws: Mapping[int, Law] = field(default_factory=dict[int, Law])
    fleet: Sequence[Activity] = ()


@dataclass(slots=True)
class Following:
    """Of one rollout, from its first look on."""

    tables: Tables = field(default_factory=Tables)
    ledger: Ledger = field(default_factory=Ledger)
    doings: Doings = field(default_factory=Doings)
    own: Columns | None = None
    """What trajectories did, OPEN where it lasts."""
    common: Columns | None = None
    """The rest: leases covered, the fleet's own."""
    provisional: bool = False
    sums: pl.DataFrame | None = None
    """Of every trajectory's steps (sums.py)."""

    def look(
        self, rows: Rows, changed: Iterable[str] | None = None, part: Frames | None = None
    ) -> tuple[Facts, Accounts]:
        """Account for the rows; *part* are those of the *changed* trajectories (None: all)."""
        window = window_of(rows.rollout, rows.frames, rows.workers, rows.now_ns)
        provisional = rows.rollout.get("end_ns") is None
        own = self.own if provisional and self.provisional and changed is not None else None
        # What ends ends everything that lasts: then all is gathered anew.
        part = rows.frames if part is None or own is None else part
        new = trails(part, self.tables, until(window, provisional), provisional=provisional)
        old, kept = None, new
        if own is not None and changed is not None:
            whose = np.zeros(len(self.tables.trajectories), np.bool_)
            whose[self.tables.trajectories.many(changed)] = True
            mine = whose[own.trajectory]
            old, kept = own.where(mine), together([own.where(~mine), new])
        facts, common = facts_of(rows.rollout, rows.frames, rows.workers, window, kept, rows.fleet)
        self._sweep(facts, old, new, common)
        told = sums(part.steps, rows.laws)
        if old is not None and self.sums is not None and changed is not None:
            same = ~pl.col("trajectory_id").is_in([*changed])
            told = pl.concat([self.sums.filter(same), told])
        self.sums = told
        self.own, self.common, self.provisional = kept, common, provisional
        return facts, accounts_of(self.ledger, facts.leases)

    def _sweep(self, facts: Facts, old: Columns | None, new: Columns, common: Columns) -> None:
        """Sweep the cells in which old and new differ, and the time gone by; all without old."""
        by_worker = by_trajectory = None
        columns, before = facts.activities, self.ledger.window
        if old is not None and self.common is not None and self._same_grants(facts):
            apart = differences(together([old, self.common]), together([new, common]))
            apart = apart.closed(facts.window.end_ns)
            grid, tables = Grid.over(*facts.window), self.tables
            by_worker = _marked(grid, len(tables.workers), apart.worker, apart)
            gone = int(grid.slab(np.array([before.end_ns - 1]))[0])
            by_worker[:, gone:] = True
            grid = grid_of(columns)
            by_trajectory = _marked(grid, len(tables.trajectories), apart.trajectory, apart)
            gone = int(grid.slab(np.array([before.end_ns - 1]))[0])
            running = columns.trajectory[columns.end == facts.window.end_ns]
            by_trajectory[running, gone:] = True
        self.ledger.update(facts.window, facts.gpus, facts.leases, columns, by_worker)
        self.doings.update(columns, by_trajectory)

    def _same_grants(self, facts: Facts) -> bool:
        """Whether GPUs are held as before, as far as that went."""
        before = self.ledger.window
        if (before.start_ns, self.ledger.gpus) != (facts.window.start_ns, facts.gpus):
            return False
        now = grant(Window(*before), facts.gpus, facts.leases)
        return now.grants == self.ledger.granted.grants


def differences(old: Columns, new: Columns) -> Columns:
    """Intervals in which the two differ, on the worker and of the trajectory that differs.

    An activity that only ends at another time differs between its two ends.
    """
    both = together([old, new])
    key = _hashed(both)
    full = key * np.uint64(0x9E3779B97F4A7C15) + both.end.astype(np.uint64)
    one, two = full[: len(old)], full[len(old) :]
    apart = np.concatenate([~_among(one, two), ~_among(two, one)])
    rows, key = both.where(apart), key[apart]
    is_new = np.arange(len(both))[apart] >= len(old)
    _, place = np.unique(key, return_inverse=True)
    count = int(place.max(initial=-1)) + 1
    least, most = np.full(count, OPEN), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(least, place, rows.end)
    np.maximum.at(most, place, rows.end)
    sides = np.zeros((count, 2), np.bool_)
    sides[place, is_new.astype(np.int64)] = True
    both_sides: Bools = np.all(sides, axis=1)
    paired = both_sides[place]
    start = np.where(paired, np.minimum(least[place], rows.end), rows.start)
    end = np.where(paired, most[place], rows.end)
    times = rows.kind, start, end
    return Columns(rows.tables, rows.worker, *times, rows.trajectory, rows.name)


def _hashed(rows: Columns) -> Any:
    """64 bits of everything but the end; two of a million rows meet once in 10^7 rollouts."""
    mixed = np.zeros(len(rows), np.uint64)
    for column in (rows.worker, rows.kind, rows.trajectory, rows.name, rows.start):
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(32)
    return mixed


def _among(some: Any, known: Any) -> Bools:
    """Which of *some* are known."""
    known = np.sort(known)
    if not len(known):
        return np.zeros(len(some), np.bool_)
    place = np.minimum(np.searchsorted(known, some), len(known) - 1)
    return known[place] == some


def _marked(grid: Grid, owners: int, owner: Ints, apart: Columns) -> Bools:
    """[owner, slab] that any of these intervals touches."""
    some = apart.start < apart.end
    change = np.zeros((owners, grid.slabs + 1), np.int64)
    np.add.at(change, (owner[some], grid.slab(apart.start[some])), 1)
    np.subtract.at(change, (owner[some], grid.slab(apart.end[some] - 1) + 1), 1)
    return np.cumsum(change, axis=1)[:, :-1] > 0
