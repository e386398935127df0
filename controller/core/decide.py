"""Who goes where now, and who moves?

One pure function of a snapshot. Every waiting step is released exactly once or held with a reason;
no worker gets a fresh trajectory above what admission allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from heddle.controller.core.admission import ADMISSIONS, Allowance
from heddle.controller.core.book import Book
from heddle.controller.core.migration import MIGRATIONS
from heddle.controller.core.placement import PLACEMENTS, ROAMING
from heddle.controller.core.priority import ORDERS, band, in_flight_first
from heddle.controller.core.types import Plan, Rates, Release, Snapshot, Switches, Trajectory

_AT_HOME: Final = "in flight on {}, its prefix is there"


def decide(snapshot: Snapshot, switches: Switches, rng: np.random.Generator) -> Plan:
    """Releases in the order they should be sent, moves, and why the rest is held."""
    _ = rng  # policies that draw take it from here; none of the present ones does
    waiting = [t for t in snapshot.trajectories if t.state == "held"]
    ordered = in_flight_first(ORDERS[switches.order](waiting, snapshot.rates))
    ranks = {t.id: rank for rank, t in enumerate(ordered)}
    if not snapshot.workers:
        held = {t.id: "no worker takes steps" for t in ordered}
        return Plan(held=held, ranks=ranks)
    book = Book.of(snapshot)
    allowance = ADMISSIONS[switches.admission](snapshot, book) if ordered else None
    releases: list[Release] = []
    held: dict[str, str] = {}
    for rank, trajectory in enumerate(ordered):
        found = _worker_for(trajectory, book, allowance, switches)
        if found is None:
            held[trajectory.id] = f"every worker holds its {switches.admission} limit"
            continue
        priority = band(switches.order, trajectory, snapshot.rates)
        releases.append(_release(trajectory, found, rank, priority, switches.order))
    moves = MIGRATIONS[switches.migration](snapshot, book)
    return Plan(releases=tuple(releases), moves=tuple(moves), held=held, ranks=ranks)


def decide_at_home(
    returning: Sequence[Trajectory], rates: Rates, switches: Switches
) -> list[Release]:
    """What `decide` says of started trajectories whose worker lives, without the whole picture.

    No policy holds them back, so that their steps need not wait for a full decision.
    """
    ordered = ORDERS[switches.order](returning, rates)
    return [
        _release(t, (home, _AT_HOME.format(home)), rank, band(switches.order, t, rates),
                 switches.order)
        for rank, t in enumerate(ordered)
        if (home := t.worker) is not None
    ]  # fmt: skip


def _worker_for(
    trajectory: Trajectory, book: Book, allowance: Allowance | None, switches: Switches
) -> tuple[str, str] | None:
    """Home while it lives; else the placement's choice, for fresh ones where there is room."""
    home = trajectory.worker
    if home is not None and home in book.workers:
        if switches.placement not in ROAMING:
            return home, _AT_HOME.format(home)
        found = PLACEMENTS[switches.placement](trajectory, list(book.workers), book)
        book.in_flight[found[0]] += 1
        return found
    choice = list(book.workers)
    if trajectory.is_fresh and allowance is not None:
        choice = allowance.choice(trajectory)
    if not choice:
        return None
    worker, because = PLACEMENTS[switches.placement](trajectory, choice, book)
    book.take(trajectory, worker)
    book.in_flight[worker] += 1
    if allowance is not None:
        allowance.take(trajectory, worker)
    return worker, because


def roams(switches: Switches) -> bool:
    """Whether steps of started trajectories need a full decision too."""
    return switches.placement in ROAMING


def _release(
    trajectory: Trajectory, found: tuple[str, str], rank: int, priority: int | None, order: str
) -> Release:
    worker, because = found
    return Release(
        trajectory=trajectory.id,
        worker=worker,
        rank=rank,
        priority=priority,
        because=f"{order} rank {rank}; {because}",
    )
