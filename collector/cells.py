"""How are intervals cut so that a change of one recomputes only what it touches?

Time is cut into slabs of equal width, a power of two of nanoseconds with at most 128 in a window;
an owner (worker or trajectory) in a slab is a cell. What happens in a cell depends only on the
activities that touch it, so results are kept cell by cell and only changed cells are swept again.
Everything is cut at slab edges, always: sums over cells do not depend on what was swept when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from heddle.collector.activities import Bools, Ints

SLABS: Final = 128
_LEAST_BITS: Final = 32
"""A slab is at least 4.3 s: shorter ones cut more than they spare."""
CELL_BITS: Final = 9
"""Of a slab in a cell's number; the owner's code stands above them."""


class Grid(NamedTuple):
    """Slabs of 2**bits ns from *base* (in slabs since the epoch) on."""

    bits: int
    base: int
    slabs: int

    @classmethod
    def over(cls, start_ns: int, end_ns: int, *, wider: int = 0) -> Grid:
        """At most SLABS slabs, and one more where the window begins inside one; *wider* ones are
        that many powers of two wider."""
        bits = max(_LEAST_BITS, max(end_ns - start_ns - 1, 0).bit_length() - 7) + wider
        base = start_ns >> bits
        return cls(bits, base, max((end_ns - 1 >> bits) - base + 1, 1))

    def slab(self, at: Ints) -> Ints:
        """The slab that each instant falls into, cut to those there are."""
        return np.clip((at >> self.bits) - self.base, 0, self.slabs - 1)


class Cut(NamedTuple):
    """Intervals cut at slab edges: of which row, in which cell, from when to when."""

    row: Ints
    cell: Ints
    start: Ints
    end: Ints


FITS: Final = 1 << 62


def ordered(owner: Ints, at: Ints) -> Ints:
    """The order by owner, then by time; ties as they come to lie."""
    least = int(at.min()) if len(at) else 0
    span = int(at.max(initial=least)) - least + 1
    if span * (int(owner.max(initial=0)) + 1) < FITS:
        # One number sorts three times as fast as two; most of them come in ordered runs.
        return np.argsort(owner * span + at - least, kind="stable")
    return np.lexsort((at, owner))


def spread(first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Each row's run of *count* numbers from *first* on: of which row, and the number."""
    row = np.repeat(np.arange(len(count)), count)
    return row, first[row] + np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)


def cut(grid: Grid, owner: Ints, start: Ints, end: Ints, wanted: Bools | None = None) -> Cut:
    """Intervals inside the window (start < end) by cell; *wanted* says which [owner, slab]."""
    first, last = grid.slab(start), grid.slab(end - 1)
    count = last - first + 1
    row, slab = spread(first, count)
    if wanted is not None:
        kept = wanted[owner[row], slab]
        row, slab = row[kept], slab[kept]
    edge = slab + grid.base << grid.bits
    return Cut(
        row,
        owner[row] << CELL_BITS | slab,
        np.maximum(start[row], edge),
        np.minimum(end[row], edge + (1 << grid.bits)),
    )


def _offset(grid: Grid, cell: Ints, at: Ints | int) -> Ints:
    """How long after its cell began each instant is."""
    return at - ((cell & (1 << CELL_BITS) - 1) + grid.base << grid.bits)


@dataclass(frozen=True, slots=True)
class Edges:
    """Every instant of every cell at which something begins or ends, in order.

    Piece i lies between edge i and edge i + 1; it has a length where both are of one cell.
    """

    cell: Ints
    at: Ints
    length: Ints
    """Of each piece, 0 between two cells; one shorter than the edges."""
    lo: list[Ints]
    hi: list[Ints]
    """Of each Cut handed in: the edge at which each interval begins and ends."""

    @classmethod
    def of(cls, grid: Grid, *cuts: Cut) -> Edges:
        """Of all these cuts together."""
        every = np.concatenate([one.cell for one in cuts])
        least = int(every.min(initial=0))
        there = np.zeros(int(every.max(initial=0)) - least + 1, np.bool_)
        there[every - least] = True
        cells, rank = np.flatnonzero(there) + least, np.cumsum(there) - 1
        bits = grid.bits + 1
        if not len(every):
            return cls(every, every, every, [every] * len(cuts), [every] * len(cuts))
        # Where cells and nanoseconds do not share 64 bits (years, or weeks of thousands of
        # workers), instants are told by their order.
        times = None
        if len(cells) >> 63 - bits:
            times = np.unique(np.concatenate([at for one in cuts for at in one[2:]]))
            bits = len(times).bit_length()
        keys: list[Ints] = []
        for one in cuts:
            base = rank[one.cell - least] << bits
            for at in one[2:]:
                keys.append(
                    base
                    + (_offset(grid, one.cell, at) if times is None else np.searchsorted(times, at))
                )
        edges, place = np.unique(np.concatenate([*keys]), return_inverse=True)
        ends = np.cumsum([len(key) for key in keys])[:-1]
        places = np.split(place, ends)
        cell, offset = cells[edges >> bits], edges & (1 << bits) - 1
        at = offset - _offset(grid, cell, 0) if times is None else times[offset]
        length = np.where(cell[1:] == cell[:-1], at[1:] - at[:-1], 0)
        return cls(cell, at, length, places[0::2], places[1::2])

    def level(self, cut: int, weight: Ints | None = None, of: Bools | None = None) -> Ints:
        """How many intervals of that cut (or their weights) last in each piece."""
        lo, hi = self.lo[cut], self.hi[cut]
        if of is not None:
            lo, hi = lo[of], hi[of]
            weight = None if weight is None else weight[of]
        return self.lasting(lo, hi, weight)

    def lasting(self, lo: Ints, hi: Ints, weight: Ints | None = None) -> Ints:
        """How many intervals between those edges (or their weights) last in each piece."""
        change = np.zeros(len(self.cell), np.int64)
        one = 1 if weight is None else weight
        np.add.at(change, lo, one)
        np.subtract.at(change, hi, one)
        return np.cumsum(change)[:-1]
