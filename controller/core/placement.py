"""Which worker takes a step?

A started trajectory stays where its prefix is as long as that worker lives, except under the peers'
policies that route every step (ROAMING). A fresh one goes where the policy says, among the workers
that admission allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from heddle.controller.core.book import Book, group_edges
from heddle.controller.core.draws import Floats
from heddle.controller.core.memory import Flags

Placement = Callable[[int, Flags, Book], tuple[int, str]]
"""(place, workers to choose from, book) -> worker, because; the choice is never empty."""

SKEW: Final = 32
"""Steps in flight between the fullest and the emptiest worker above which `hybrid` lets go of a
prefix (sglang-router's balance threshold, papers.md 1.5)."""
TOLERANCE: Final = 1.5
"""A home may hold this many times the least loaded worker's steps before `sticky-margin` leaves."""
TOLERATED: Final = 4
"""Steps in flight that are never worth leaving a prefix for."""
PACK_SLACK: Final = 1.05
"""`pack` fills a worker up to this many times the balanced end before it opens the next."""


def sticky(place: int, choice: Flags, book: Book) -> tuple[int, str]:
    """The worker with the fewest live trajectories; ties by worker order."""
    _ = place
    worker = _least(book.held, choice)
    return worker, f"fewest live trajectories ({book.held[worker]}) on {book.names[worker]}"


def least_load(place: int, choice: Flags, book: Book) -> tuple[int, str]:
    """slime: the worker with the fewest steps in flight, whoever holds the prefix."""
    _ = place
    worker = _least(book.in_flight, choice)
    return worker, f"fewest steps in flight ({book.in_flight[worker]}) on {book.names[worker]}"


def hybrid(place: int, choice: Flags, book: Book) -> tuple[int, str]:
    """Verl*: at home, unless the fullest worker has over SKEW steps more than the emptiest."""
    skew = int(book.in_flight.max() - book.in_flight.min())
    if skew > SKEW:
        worker, _ = least_load(place, choice, book)
        name = book.names[worker]
        return worker, f"skew {skew} is above {SKEW}, fewest steps in flight on {name}"
    home = int(book.facts.home[place])
    if home >= 0 and choice[home]:
        return home, f"at home, skew {skew} is at most {SKEW}"
    return sticky(place, choice, book)


def sticky_margin(place: int, choice: Flags, book: Book) -> tuple[int, str]:
    """At home while it is not much fuller than the emptiest worker (verl#6533)."""
    home = int(book.facts.home[place])
    if home < 0 or not choice[home]:
        return sticky(place, choice, book)
    least = _least(book.in_flight, choice)
    here, there = int(book.in_flight[home]), int(book.in_flight[least])
    if here <= max(TOLERANCE * there, there + TOLERATED):
        return home, f"at home, {here} steps there and {there} on the emptiest"
    return least, f"home has {here} steps in flight, {book.names[least]} has {there}"


def presorted(place: int, choice: Flags, book: Book) -> tuple[int, str]:
    """The paper: the worker whose group of the ranked list its rank falls in."""
    order = sorted(range(len(book.workers)), key=lambda w: -book.workers[w].degree)
    rank = book.rank_of(book.snapshot.trajectories[place])
    edges = group_edges([book.workers[w] for w in order], len(book.snapshot.trajectories))
    planned = next((w for w, e in zip(order, edges, strict=True) if rank < e), order[-1])
    if choice[planned]:
        return planned, f"rank {rank} belongs to {book.names[planned]}"
    return sticky(place, choice, book)


def soonest(place: int, choice: Flags, book: Book) -> tuple[int, str]:
    """The worker that would finish first with it, prefix held there counted; ties by order."""
    trajectory = book.snapshot.trajectories[place]
    ends = {w: book.loads.finish_s(trajectory, w) for w in np.flatnonzero(choice).tolist()}
    worker = min(ends, key=lambda w: ends[w])
    return worker, f"lowest expected finish: {ends[worker]:.1f} s on {book.names[worker]}"


def mix(place: int, choice: Flags, book: Book) -> tuple[int, str]:
    """The lowest expected end over draws with it, the longest of each draw counted."""
    crowd = book.crowd
    ends = crowd.ends_with_s(place, crowd.prefills_s(place))
    best = int(np.where(choice, ends, np.inf).argmin())
    return best, f"lowest expected end over draws: {ends[best]:.1f} s"


def pack(place: int, choice: Flags, book: Book) -> tuple[int, str]:
    """The first worker, highest degree first, that still ends within the balanced end."""
    crowd = book.crowd
    ends = crowd.ends_with_s(place, crowd.prefills_s(place))
    if book.balanced_s is None:
        book.balanced_s = max(float(crowd.ends_s().max()), balanced_end_s(book))
    budget_s = PACK_SLACK * book.balanced_s
    within = np.flatnonzero(choice & (ends <= budget_s))
    if len(within):
        degrees = np.array([book.workers[w].degree for w in within.tolist()])
        return int(within[np.argmax(degrees)]), f"first to end within {budget_s:.1f} s"
    return mix(place, choice, book)


def _least(values: Floats | np.ndarray, choice: Flags) -> int:
    """The first of the least among the chosen."""
    return int(np.where(choice, values, np.inf).argmin())


def balanced_end_s(book: Book) -> float:
    """When everybody would be done if all live trajectories were spread without loss."""
    crowd = book.crowd
    look, degrees = crowd.outlook, [w.degree for w in book.workers]
    weight = np.array(degrees, dtype=float) / sum(degrees)
    spread = crowd.a_s * np.maximum(
        look.area.sum() * weight / crowd.kv, look.tokens.sum() * weight / crowd.running
    )
    work = crowd.work_by_kind.sum(axis=1)[crowd.kind] * weight
    alone = float(crowd.a_s.min()) * float(look.draws.max(axis=0).mean())
    return max(float((spread + work).mean()), alone)


PLACEMENTS: Final[dict[str, Placement]] = {
    "sticky": sticky,
    "sticky-margin": sticky_margin,
    "hybrid": hybrid,
    "least-load": least_load,
    "presorted": presorted,
    "soonest": soonest,
    "mix": mix,
    "pack": pack,
}
ROAMING: Final = frozenset({"sticky-margin", "hybrid", "least-load"})
"""Policies that choose for every step, not only for the first."""
