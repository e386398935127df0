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
from heddle.controller.core.types import Trajectory

Placement = Callable[[Trajectory, list[str], Book], tuple[str, str]]
"""(trajectory, workers to choose from, book) -> worker, because; the choice is never empty."""

SKEW: Final = 32
"""Steps in flight between the fullest and the emptiest worker above which `hybrid` lets go of a
prefix (sglang-router's balance threshold, papers.md 1.5)."""
TOLERANCE: Final = 1.5
"""A home may hold this many times the least loaded worker's steps before `sticky-margin` leaves."""
TOLERATED: Final = 4
"""Steps in flight that are never worth leaving a prefix for."""
PACK_SLACK: Final = 1.05
"""`pack` fills a worker up to this many times the balanced end before it opens the next."""


def sticky(trajectory: Trajectory, choice: list[str], book: Book) -> tuple[str, str]:
    """The worker with the fewest live trajectories; ties by worker order."""
    _ = trajectory
    worker = min(choice, key=lambda w: book.held[w])
    return worker, f"fewest live trajectories ({book.held[worker]}) on {worker}"


def least_load(trajectory: Trajectory, choice: list[str], book: Book) -> tuple[str, str]:
    """slime: the worker with the fewest steps in flight, whoever holds the prefix."""
    _ = trajectory
    worker = min(choice, key=lambda w: book.in_flight[w])
    return worker, f"fewest steps in flight ({book.in_flight[worker]}) on {worker}"


def hybrid(trajectory: Trajectory, choice: list[str], book: Book) -> tuple[str, str]:
    """Verl*: at home, unless the fullest worker has over SKEW steps more than the emptiest."""
    skew = max(book.in_flight.values()) - min(book.in_flight.values())
    if trajectory.worker in choice and skew <= SKEW:
        return trajectory.worker or "", f"at home, skew {skew} is at most {SKEW}"
    if skew <= SKEW:
        return sticky(trajectory, choice, book)
    worker, _ = least_load(trajectory, choice, book)
    return worker, f"skew {skew} is above {SKEW}, fewest steps in flight on {worker}"


def sticky_margin(trajectory: Trajectory, choice: list[str], book: Book) -> tuple[str, str]:
    """At home while it is not much fuller than the emptiest worker (verl#6533)."""
    least = min(choice, key=lambda w: book.in_flight[w])
    home = trajectory.worker
    if home is None or home not in choice:
        return sticky(trajectory, choice, book)
    here, there = book.in_flight[home], book.in_flight[least]
    if here <= max(TOLERANCE * there, there + TOLERATED):
        return home, f"at home, {here} steps there and {there} on the emptiest"
    return least, f"home has {here} steps in flight, {least} has {there}"


def presorted(trajectory: Trajectory, choice: list[str], book: Book) -> tuple[str, str]:
    """The paper: the worker whose group of the ranked list its rank falls in."""
    workers = sorted(book.workers.values(), key=lambda w: -w.degree)
    place = book.rank_of(trajectory)
    edges = group_edges(workers, len(book.snapshot.trajectories))
    planned = next((w.id for w, e in zip(workers, edges, strict=True) if place < e), workers[-1].id)
    if planned in choice:
        return planned, f"rank {place} belongs to {planned}"
    return sticky(trajectory, choice, book)


def soonest(trajectory: Trajectory, choice: list[str], book: Book) -> tuple[str, str]:
    """The worker that would finish first with it, prefix held there counted; ties by order."""
    ends = {w: book.finish_s(trajectory, w) for w in choice}
    worker = min(choice, key=lambda w: ends[w])
    return worker, f"lowest expected finish: {ends[worker]:.1f} s on {worker}"


def mix(trajectory: Trajectory, choice: list[str], book: Book) -> tuple[str, str]:
    """The lowest expected end over draws with it, the longest of each draw counted."""
    crowd = book.crowd
    row = crowd.outlook.rows[trajectory.id]
    ends = crowd.ends_with_s(row, crowd.prefills_s(row))
    among = np.array([crowd.at[w] for w in choice])
    best = int(np.argmin(ends[among]))
    return choice[best], f"lowest expected end over draws: {ends[among[best]]:.1f} s"


def pack(trajectory: Trajectory, choice: list[str], book: Book) -> tuple[str, str]:
    """The first worker, highest degree first, that still ends within the balanced end."""
    crowd = book.crowd
    row = crowd.outlook.rows[trajectory.id]
    ends = crowd.ends_with_s(row, crowd.prefills_s(row))
    if book.balanced_s is None:
        book.balanced_s = max(float(crowd.ends_s().max()), balanced_end_s(book))
    budget_s = PACK_SLACK * book.balanced_s
    for name in sorted(choice, key=lambda w: (-book.workers[w].degree, crowd.at[w])):
        if ends[crowd.at[name]] <= budget_s:
            return name, f"first to end within {budget_s:.1f} s"
    return mix(trajectory, choice, book)


def balanced_end_s(book: Book) -> float:
    """When everybody would be done if all live trajectories were spread without loss."""
    crowd = book.crowd
    look, degrees = crowd.outlook, [w.degree for w in book.workers.values()]
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
