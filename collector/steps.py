"""Where and when was every step, when its own row leaves something out?

A step without an end lasts to its trajectory's next one, one without a worker is at home where the
trajectory was. Vectorised; times and codes are integers, NONE stands for null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from heddle.collector.activities import KIND, NONE, Bools, Columns, Ints, Names, Tables, ints

_PART_COLUMNS: Final = ("held_ns", "queue_ns", "prefill_ns", "decode_ns")


@dataclass(slots=True)
class Steps:
    """Rows in order of trajectory, start and step index."""

    whose: Ints
    index: Ints
    home: Ints
    start: Ints
    end: Ints
    parts: list[Ints]
    """Held, queue, prefill and decode of each."""
    same: Bools
    """Whether the next row is of the same trajectory; one shorter."""

    def close(self, lives: Lives, until_ns: int) -> None:
        """Give an end to those without."""
        end = lives.end[self.whose]
        last = np.maximum(np.where(end == NONE, until_ns, end), self.start)
        following = np.where(self.same, self.start[1:], last[:-1])
        following = np.concatenate([following, last[-1:]])
        self.end = np.where(self.end == NONE, following, self.end)

    def after(self, whose: Ints, at: Ints) -> Ints:
        """The first row of each trajectory that starts after that instant, or of the next one."""
        times = np.unique(np.concatenate([self.start, at]))
        size = len(times) + 1
        keys = self.whose * size + np.searchsorted(times, self.start)
        return np.searchsorted(keys, whose * size + np.searchsorted(times, at), side="right")


@dataclass(slots=True)
class Lives:
    """By trajectory code: its rows of steps [first, past), its own span's start and end."""

    first: Ints
    past: Ints
    start: Ints
    end: Ints

    @classmethod
    def of(cls, steps: Steps, told: tuple[Ints, ...], count: int) -> Lives:
        """*told* are codes, starts and ends of trajectories."""
        start, end = np.full(count, NONE), np.full(count, NONE)
        start[told[0]], end[told[0]] = told[1], told[2]
        every = np.arange(count)
        first = np.searchsorted(steps.whose, every)
        return cls(first, np.searchsorted(steps.whose, every, side="right"), start, end)

    def first_start(self, steps: Steps, known: Ints) -> Ints:
        """Of its first step; its end where it has none."""
        if not len(steps.start):
            return self.end[known]
        at = np.minimum(self.first[known], len(steps.start) - 1)
        has = self.first[known] < self.past[known]
        return np.where(has, steps.start[at], self.end[known])


def codes(names: pl.Series, table: Names) -> Ints:
    """Codes of names; 0 for null."""
    # Each name is looked up once, whatever its rows: three times as fast as replacing them.
    encoded = names.to_arrow().dictionary_encode()
    known = encoded.dictionary.to_pylist()
    table.many(sorted(name for name in known if name not in table.codes))
    found = ints([*map(table.codes.__getitem__, known), 0])
    place = encoded.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)
    return found[place.astype(np.int64)]


def steps_of(frame: pl.DataFrame, tables: Tables) -> Steps:
    """Steps that have a trajectory and a start."""
    known = frame.filter(pl.col("trajectory_id").is_not_null() & pl.col("start_ns").is_not_null())
    found, told_twice = _in_order(known, tables)
    # What comes first may not depend on which came first.
    return _in_order(known.sort("span_id"), tables)[0] if told_twice else found


def _in_order(known: pl.DataFrame, tables: Tables) -> tuple[Steps, bool]:
    """Steps by trajectory, start and index, ties as they come; whether there are any."""
    whose = codes(known["trajectory_id"], tables.trajectories)
    start, index, end, *parts = (
        known[name].fill_null(NONE).to_numpy().astype(np.int64)
        for name in ("start_ns", "step_index", "end_ns", *_PART_COLUMNS)
    )
    order = np.lexsort((index, start, whose))
    worker = codes(known["worker_id"], tables.workers)[order]
    whose, index, start = whose[order], index[order], start[order]
    same = whose[1:] == whose[:-1]
    twice = same & (start[1:] == start[:-1]) & (index[1:] == index[:-1])
    steps = Steps(
        whose,
        index,
        _homes(whose, worker),
        start,
        end[order],
        [part[order] for part in parts],
        same,
    )
    return steps, bool(twice.any())


def _homes(whose: Ints, worker: Ints) -> Ints:
    """Its own worker, else that of the step before, else the first one known."""
    rows = np.arange(len(whose))
    begin = np.searchsorted(whose, whose)
    past = np.searchsorted(whose, whose, side="right")
    known = worker > 0
    before = np.maximum.accumulate(np.where(known, rows, -1))
    beyond = np.minimum.accumulate(np.where(known, rows, len(rows))[::-1])[::-1]
    source = np.where(before >= begin, before, np.where(beyond < past, beyond, -1))
    return np.where(source >= 0, worker[source], 0) if len(rows) else worker


def end_of_lives(
    lives: Lives, steps: Steps, calls_of: Ints, call_end: Ints, until_ns: int, *, provisional: bool
) -> None:
    """A life lasts as long as anything in it; without an end of its own, while the rollout runs,
    until now."""
    open_ended = lives.end == NONE
    end = np.where(open_ended, 0, lives.end)
    np.maximum.at(end, steps.whose, steps.end)
    np.maximum.at(end, calls_of, call_end)
    lasting = open_ended if provisional else open_ended & (end == 0)
    lives.end = np.where(lasting, np.maximum(end, until_ns), end)


def slices_of(frame: pl.DataFrame, tables: Tables, steps: Steps) -> tuple[Columns, Ints]:
    """Engine slices at home where their step is, and bits of the kinds each step has of them.

    A slice belongs to the latest step of its trajectory that its middle falls into.
    """
    said = np.zeros(len(steps.whose), np.int64)
    if frame.is_empty() or not len(said):
        return Columns.of((), tables), said
    whose = codes(frame["trajectory_id"], tables.trajectories)
    start, end = (frame[name].to_numpy().astype(np.int64) for name in ("start_ns", "end_ns"))
    kind = ints(frame["kind"].replace_strict(KIND, return_dtype=pl.Int64).to_numpy())
    middle = start + (end - start) // 2
    step = np.maximum(steps.after(whose, middle) - 1, 0)
    inside = (steps.whose[step] == whose) & (middle < steps.end[step])
    inside &= steps.start[step] <= middle
    step, kind = step[inside], kind[inside]
    np.bitwise_or.at(said, step, 1 << kind)
    tool = np.zeros(len(step), np.int64)
    home = steps.home[step]
    return Columns(tables, home, kind, start[inside], end[inside], whose[inside], tool), said
