"""How is a running rollout accounted for again when only some of its trajectories changed?

`Following` keeps what every trajectory did (what is over apart, past.py), the workers' ledger and
the trajectories' doings. An update gathers the changed trajectories anew, finds where what they did
differs from before, and sweeps those cells and the time gone by since. Nothing depends on how the
changes came: followed in a hundred updates or read at once, the result is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from heddle.collector.accounting import Accounts, accounts_of
from heddle.collector.activities import (
    KIND,
    OPEN,
    Activity,
    Bools,
    Columns,
    Ints,
    Tables,
    together,
)
from heddle.collector.cells import Grid, ordered
from heddle.collector.doings import Doings
from heddle.collector.facts import Facts, facts_of, until, window_of
from heddle.collector.grants import Window, grant
from heddle.collector.ledger import Ledger
from heddle.collector.past import Past, hashed, in_both, marks
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
    past: Past = field(default_factory=Past)
    """What trajectories did that is over."""
    own: Columns | None = None
    """What else they did, OPEN where it lasts."""
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
        whose, apart, past, near = None, None, Past(), new
        if own is not None and changed is not None:
            whose = np.zeros(len(self.tables.trajectories), np.bool_)
            whose[self.tables.trajectories.many(changed)] = True
            old, past, near, came = self._again(own, whose, new)
            apart = old, came, new.where(new.kind == KIND["tool"])
        args = rows.rollout, rows.frames, rows.workers, window, near, rows.fleet, past
        facts, common = facts_of(*args)
        self._sweep(facts, apart, common)
        self.doings = self.doings.updated(new, whose)
        self._sum(part, rows.laws, None if whose is None else changed)
        self.common, self.provisional = common, provisional
        self.past, self.own = past.settled(near, window.end_ns) if provisional else (past, near)
        return facts, accounts_of(self.ledger, facts.leases)

    def _again(
        self, own: Columns, whose: Bools, new: Columns
    ) -> tuple[Columns, Past, Columns, Columns]:
        """Of what those trajectories did: what is no more, the past without it, all that is near,
        and what of it was not there."""
        past, gone, known = self.past.without(whose, new)
        mine, came = whose[own.trajectory], new.where(~known)
        return together([own.where(mine), *gone]), past, together([own.where(~mine), came]), came

    def _sum(self, part: Frames, laws: Mapping[int, Law], changed: Iterable[str] | None) -> None:
        """Keep the sums of every trajectory's steps; None: all changed."""
        told = sums(part.steps, laws)
        if changed is not None and self.sums is not None:
            same = ~pl.col("trajectory_id").is_in([*changed])
            told = pl.concat([self.sums.filter(same), told])
        self.sums = told

    def _sweep(
        self, facts: Facts, apart: tuple[Columns, Columns, Columns] | None, common: Columns
    ) -> None:
        """Sweep the cells in which the two differ (the third: all calls of those trajectories), and
        the time gone by; all without them."""
        dirty = None
        before = self.ledger.window
        if apart is not None and self.common is not None and self._same_grants(facts):
            old, new, calls = apart
            lines = differences(together([old, self.common]), together([new, common]), calls)
            grid = Grid.over(*facts.window)
            owners = len(self.tables.workers)
            dirty = _marked(grid, owners, lines.closed(facts.window.end_ns))
            dirty[:, int(grid.slab(np.array([before.end_ns - 1]))[0]) :] = True
        args = facts.window, facts.gpus, facts.leases, facts.near, dirty, facts.past
        self.ledger.update(*args)

    def _same_grants(self, facts: Facts) -> bool:
        """Whether GPUs are held as before, as far as that went."""
        before = self.ledger.window
        if (before.start_ns, self.ledger.gpus) != (facts.window.start_ns, facts.gpus):
            return False
        now = grant(Window(*before), facts.gpus, facts.leases)
        return now.grants == self.ledger.granted.grants


def differences(old: Columns, new: Columns, calls: Columns) -> Columns:
    """Intervals in which the two differ, on the worker and of the trajectory that differs.

    An activity that only ends at another time differs between its two ends; a tool call beside
    other *calls* all along, since the one that ends last is blamed for all of its time.
    """
    both = together([old, new])
    one, two = (marks(rows) for rows in (old, new))
    apart = ~np.concatenate(in_both(one, two))
    rows, is_new = both.where(apart), (np.arange(len(both)) >= len(old))[apart]
    _, place = np.unique(hashed(rows), return_inverse=True)
    count = int(place.max(initial=-1)) + 1
    least, most = np.full(count, OPEN), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(least, place, rows.end)
    np.maximum.at(most, place, rows.end)
    balance = np.zeros(count, np.int64)
    np.add.at(balance, place, np.where(is_new, 1, -1))
    paired = balance[place] == 0
    ends_only = paired & ~_beside(rows, calls)
    start = np.where(ends_only, np.minimum(least[place], rows.end), rows.start)
    end = np.where(paired, most[place], rows.end)
    times = rows.kind, start, end
    return Columns(rows.tables, rows.worker, *times, rows.trajectory, rows.name)


def _beside(rows: Columns, calls: Columns) -> Bools:
    """Which are tool calls that overlap two or more of *calls* of their trajectory: not only
    themselves."""
    order = ordered(calls.trajectory, calls.start)
    whose, begun, over = calls.trajectory[order], calls.start[order], calls.end[order]
    # Where any two overlap, so do two that follow each other.
    if not ((whose[1:] == whose[:-1]) & (begun[1:] < over[:-1])).any():
        return np.zeros(len(rows), np.bool_)
    times = np.unique(np.concatenate([calls.start, calls.end, rows.start, rows.end]))

    def key(whose: Ints, at: Ints) -> Ints:
        return whose * (len(times) + 1) + np.searchsorted(times, at)

    whose = rows.trajectory
    begun, over = np.sort(key(calls.trajectory, calls.start)), key(calls.trajectory, calls.end)
    until = np.searchsorted(begun, key(whose, rows.end), side="left")
    since = np.searchsorted(np.sort(over), key(whose, rows.start), side="right")
    return (rows.kind == KIND["tool"]) & (until - since > 1)


def _marked(grid: Grid, workers: int, apart: Columns) -> Bools:
    """[worker, slab] that any of these intervals touches."""
    some = apart.start < apart.end
    change = np.zeros((workers, grid.slabs + 1), np.int64)
    np.add.at(change, (apart.worker[some], grid.slab(apart.start[some])), 1)
    np.subtract.at(change, (apart.worker[some], grid.slab(apart.end[some] - 1) + 1), 1)
    return np.cumsum(change, axis=1)[:, :-1] > 0
