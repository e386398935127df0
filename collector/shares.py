"""How is GPU time shared equally, at every instant, by those it is owed to, and nothing lost?

A piece that does not divide evenly leaves fewer nanoseconds than there are sharers: `Rows` carry
each share as whole nanoseconds and a fixed-point part, so that cells can be added up in any order
and the nanoseconds that are left go out once, by largest remainder, ties by owner.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from heddle.collector.activities import Bools, Ints, ints
from heddle.collector.cells import Edges

FRACTION_BITS: Final = 30
"""Of the fixed-point remainders: 10^9 pieces of them still fit 64 bits."""
NAME_BITS: Final = 24
"""Of an owner's number that the tool's code has; the trajectory's stands above them."""


class Rows(NamedTuple):
    """Shares by cell and owner (trajectory << NAME_BITS | tool), and what each cell left over."""

    cell: Ints
    owner: Ints
    whole: Ints
    part: Ints
    rest_cell: Ints
    rest: Ints
    explained: Ints
    """Of each `rest_cell`: everything in it that somebody is owed to."""


class Spans(NamedTuple):
    """Whose intervals share: edges at which they begin and end, never two of one trajectory."""

    trajectory: Ints
    name: Ints
    lo: Ints
    hi: Ints


def disjoint(trajectory: Ints, name: Ints, lo: Ints, hi: Ints, end: Ints, rank: Ints) -> Spans:
    """Where intervals of one trajectory overlap, the one that ends last keeps all.

    *end* is when it really ends, beyond its cell; ties: the higher *rank*, then the later row.
    """
    order = np.argsort(trajectory * (int(hi.max(initial=0)) + 1) + lo, kind="stable")
    whose, first, last = trajectory[order], lo[order], hi[order]
    clash = (whose[1:] == whose[:-1]) & (first[1:] < last[:-1])
    if not clash.any():
        return Spans(whose, name[order], first, last)
    knot = _knots(whose, first, last)
    tied = order[np.isin(knot, knot[1:][clash])]
    free = order[~np.isin(order, tied)]
    group = np.empty(len(lo), np.int64)
    group[order] = knot
    tied = tied[np.lexsort((-tied, -rank[tied], -end[tied], group[tied]))]
    tied_hi = np.minimum(hi[tied], _least_before(group[tied], lo[tied]))
    kept = lo[tied] < tied_hi
    rows = np.concatenate([free, tied[kept]])
    return Spans(trajectory[rows], name[rows], lo[rows], np.concatenate([hi[free], tied_hi[kept]]))


def _knots(whose: Ints, first: Ints, last: Ints) -> Ints:
    """Numbers of the heaps of overlapping intervals, of rows in order of trajectory and start."""
    span = int(last.max(initial=0)) + 1
    reach = np.maximum.accumulate(last + whose * span)
    begins = np.ones(len(whose), np.int64)
    begins[1:] = first[1:] + whose[1:] * span >= reach[:-1]
    return np.cumsum(begins)


def _least_before(group: Ints, lo: Ints) -> Ints:
    """The least *lo* of the rows before in the same group; nothing stands in a first row's way."""
    span = int(lo.max(initial=0)) + 1
    least = np.minimum.accumulate(lo - group * span)
    before = np.full(len(lo), np.iinfo(np.int64).max)
    same = np.flatnonzero(group[1:] == group[:-1]) + 1
    before[same] = least[same - 1] + group[same] * span
    return before


def share(edges: Edges, amount: Ints, spans: Spans) -> Rows:
    """*amount* of every piece, shared equally by the spans that cover it."""
    among = edges.lasting(spans.lo, spans.hi)
    owed: Bools = (among > 0) & (amount > 0)
    amount, among = np.where(owed, amount, 0), np.maximum(among, 1)
    each, rest = np.divmod(amount, among)
    whole, part = _before(each), _before((rest << FRACTION_BITS) // among)
    gains = whole[spans.hi] - whole[spans.lo]
    parts = part[spans.hi] - part[spans.lo]
    some = (gains > 0) | (parts > 0)
    at = np.flatnonzero(owed)
    cells, place = np.unique(edges.cell[at], return_inverse=True)
    owner = spans.trajectory << NAME_BITS | spans.name
    return Rows(
        edges.cell[spans.lo[some]],
        owner[some],
        gains[some],
        parts[some],
        cells,
        summed(place, rest[at], len(cells)),
        summed(place, amount[at], len(cells)),
    )


def _before(values: Ints) -> Ints:
    """Sum of the values before each edge."""
    return np.concatenate([ints([0]), np.cumsum(values)])


def summed(place: Ints, values: Ints, count: int) -> Ints:
    """Exact sums of the values of each place."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, place, values)
    return sums


def settle(rows: Rows, order: Ints, names: Ints) -> tuple[Ints, Ints]:
    """Owners, and what each is owed: sums to everything explained.

    *order* and *names* rank trajectories and tools by their ids, for ties.
    """
    owners, place = np.unique(rows.owner, return_inverse=True)
    wholes = summed(place, rows.whole, len(owners))
    parts = summed(place, rows.part, len(owners))
    wholes += parts >> FRACTION_BITS
    left = int(rows.rest.sum()) - int((parts >> FRACTION_BITS).sum())
    ranked = np.flatnonzero(parts)
    fraction = parts[ranked] & (1 << FRACTION_BITS) - 1
    name = names[owners[ranked] & (1 << NAME_BITS) - 1]
    ranked = ranked[np.lexsort((name, order[owners[ranked] >> NAME_BITS], -fraction))]
    if left and len(ranked):
        turns, more = divmod(left, len(ranked))
        wholes[ranked] += turns
        wholes[ranked[:more]] += 1
    kept = wholes > 0
    return owners[kept], wholes[kept]
