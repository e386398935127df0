"""Which activities of a running rollout are over, so that an update need not look at them again?

Kept in chunks by when they ended. An update reads a chunk only where a cell that it sweeps reaches
back that far, or where one of its trajectories changed what it did then; what the whole rollout is
asked for (when a trajectory lived, what was decoded) stands ready for each chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from heddle.collector.activities import KIND, OPEN, Bools, Columns, Ints, together
from heddle.collector.lives import ends

KEEP_NS: Final = 20 * 10**9
"""Activities stay near that long after they end: most spans come by then."""
LEAST: Final = 4_096
"""Fewer are not worth a chunk."""
CHUNKS: Final = 24


@dataclass(frozen=True)
class Chunk:
    """Activities of trajectories, none of which lasts."""

    rows: Columns

    @cached_property
    def until_ns(self) -> int:
        """When the last one ended."""
        return int(self.rows.end.max(initial=-OPEN))

    @cached_property
    def live(self) -> Columns:
        """Where trajectories lived: this covers everything they did."""
        return self.rows.where(self.rows.kind == KIND["live"])

    @cached_property
    def decoding(self) -> Columns:
        """What was decoded."""
        return self.rows.where(self.rows.kind == KIND["decode"])

    @cached_property
    def last_on(self) -> Ints:
        """By worker, when the last activity on it ended."""
        count = int(self.rows.worker.max(initial=0)) + 1
        return ends(self.rows.worker, self.rows.start, self.rows.end, count)[1]


@dataclass(frozen=True, slots=True)
class Past:
    """Chunks in the order they were settled."""

    chunks: tuple[Chunk, ...] = ()

    def since(self, at_ns: int) -> list[Columns]:
        """Rows among which are all that end later than that."""
        return [chunk.rows for chunk in self.chunks if chunk.until_ns > at_ns]

    def without(self, whose: Bools, new: Columns) -> tuple[Past, list[Columns], Bools]:
        """The past of those trajectories as *new* has it: the chunks without what is no more, what
        that was, and which of *new* are known already."""
        mine = [np.flatnonzero(whose[chunk.rows.trajectory]) for chunk in self.chunks]
        keys = [marks(c.rows.where(at)) for c, at in zip(self.chunks, mine, strict=True)]
        stays, known = in_both(np.concatenate([*keys, marks(new.where(slice(0)))]), marks(new))
        ends = np.cumsum([len(key) for key in keys])[:-1]
        chunks: list[Chunk] = []
        gone: list[Columns] = []
        for chunk, at, stay in zip(self.chunks, mine, np.split(stays, ends), strict=False):
            lost = at[~stay]
            if len(lost):
                gone.append(chunk.rows.where(lost))
                kept = np.ones(len(chunk.rows), np.bool_)
                kept[lost] = False
                chunk = Chunk(chunk.rows.where(kept))
            chunks.append(chunk)
        return Past(tuple(chunks)), gone, known

    def settled(self, near: Columns, now_ns: int) -> tuple[Past, Columns]:
        """Both after what is over has moved into the past."""
        over = near.named() & (near.end <= now_ns - KEEP_NS)
        if np.count_nonzero(over) < LEAST:
            return self, near
        first, last = self._lives(near)
        over &= (first[near.trajectory] <= near.start) & (near.end <= last[near.trajectory])
        chunks = (*self.chunks, *_cut(near.where(over)))
        while len(chunks) > CHUNKS:
            least = min(range(len(chunks) - 1), key=lambda at: len(chunks[at].rows))
            joined = Chunk(together([chunks[least].rows, chunks[least + 1].rows]))
            chunks = (*chunks[:least], joined, *chunks[least + 2 :])
        return Past(chunks), near.where(~over)

    def _lives(self, near: Columns) -> tuple[Ints, Ints]:
        """When each trajectory began and ended to live; what lies outside stays near."""
        rows = together([*(c.live for c in self.chunks), near.where(near.kind == KIND["live"])])
        return ends(rows.trajectory, rows.start, rows.end, len(near.tables.trajectories))

    def living(self, near: Columns) -> Columns:
        """What says when each trajectory lived: the past's lives, and *near*."""
        return together([*(chunk.live for chunk in self.chunks), near])

    def decoding(self, near: Columns) -> Columns:
        """Everything decoded."""
        return together(
            [*(c.decoding for c in self.chunks), near.where(near.kind == KIND["decode"])]
        )

    def all(self, near: Columns) -> Columns:
        """Every activity."""
        return together([*(chunk.rows for chunk in self.chunks), near])


def _cut(rows: Columns) -> list[Chunk]:
    """By when they ended, so that a look back need not read them all."""
    parts = min(len(rows) // LEAST, CHUNKS // 3)
    order = np.argsort(rows.end, kind="stable")
    return [Chunk(rows.where(np.sort(part))) for part in np.array_split(order, max(parts, 1))]


def marks(rows: Columns) -> npt.NDArray[np.uint64]:
    """64 bits of an activity; two of a million meet once in 10^7 rollouts."""
    return hashed(rows) * np.uint64(0x9E3779B97F4A7C15) + rows.end.astype(np.uint64)


def hashed(rows: Columns) -> npt.NDArray[np.uint64]:
    """64 bits of everything but the end."""
    mixed = np.zeros(len(rows), np.uint64)
    for column in (rows.worker, rows.kind, rows.trajectory, rows.name, rows.start):
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(32)
    return mixed


def in_both(some: npt.NDArray[np.uint64], others: npt.NDArray[np.uint64]) -> tuple[Bools, Bools]:
    """Which of each are in the other as often."""
    both = np.concatenate([some, others])
    order = np.argsort(both)
    key, is_other = both[order], order >= len(some)
    first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]])) if len(key) else order
    count = np.diff(np.concatenate([first, [len(key)]]))
    of_others = np.add.reduceat(is_other.astype(np.int64), first) if len(key) else count
    same = np.empty(len(key), np.bool_)
    same[order] = np.repeat(2 * of_others == count, count)
    return same[: len(some)], same[len(some) :]


def last_on(past: Past, near: Columns, workers: int) -> Ints:
    """By worker, when the last thing a trajectory did on it ended."""
    own = near.where(near.kind <= KIND["opaque"])
    last = ends(own.worker, own.start, own.end, workers)[1]
    for chunk in past.chunks:
        most = chunk.last_on
        last[: len(most)] = np.maximum(last[: len(most)], most)
    return last


def joined(parts: Sequence[Columns], near: Columns) -> Columns:
    """Those and *near*; *near* itself where there are none."""
    return together([*parts, near]) if parts else near
