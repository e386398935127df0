"""Who goes where now, and who moves?

One pure function of a snapshot. Every waiting step is released exactly once or held with a reason;
no worker gets a fresh or parked trajectory above what admission allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from heddle.controller.core.admission import ADMISSIONS, WATCHFUL, Allowance
from heddle.controller.core.book import Book
from heddle.controller.core.draws import Ints
from heddle.controller.core.memory import HELD, Flags, Memory
from heddle.controller.core.migration import MIGRATIONS
from heddle.controller.core.placement import PLACEMENTS, ROAMING
from heddle.controller.core.priority import band, in_flight_first, started_first
from heddle.controller.core.types import Park, Plan, Rates, Release, Snapshot, Switches, Trajectory

_made: Final = Release._make
CHUNK: Final = 256
"""Waiting ones looked at together: most of thousands are of a length that fits nowhere now."""


def decide(
    snapshot: Snapshot,
    switches: Switches,
    rng: np.random.Generator,
    memory: Memory | None = None,
) -> Plan:
    """Releases in the order they should be sent, moves, and why the rest is held.

    The memory of the run's last decision saves time and changes nothing.
    """
    _ = rng  # policies that draw take it from here; none of the present ones does
    book = Book.of(snapshot, memory)
    waiting = np.flatnonzero(book.facts.state == HELD)
    first = in_flight_first(switches.order, book.facts.standing(waiting))
    ordered = waiting[first]
    live = snapshot.trajectories
    if not snapshot.workers:
        held = [live[place].id for place in ordered.tolist()]
        return Plan(held=dict.fromkeys(held, "no worker takes steps"))
    allowance = ADMISSIONS[switches.admission](book.snapshot, book)
    parks = [
        Park(trajectory=live[i].id, worker=live[i].worker or "", because=because)
        for i, because in allowance.parks()
    ]
    releases, held = _released(ordered, book, allowance, switches)
    parked = {park.trajectory for park in parks}
    # Who waits for a place anywhere would have its prefix carried there for nothing.
    moves = [
        move
        for move in MIGRATIONS[switches.migration](snapshot, book)
        if move.trajectory not in parked
    ]
    full = f"every worker holds its {switches.admission} limit"
    return Plan(
        releases=tuple(releases),
        moves=tuple(moves),
        parks=tuple(parks),
        held=dict.fromkeys(held, full),
    )


def decide_at_home(
    returning: Sequence[Trajectory], rates: Rates, switches: Switches
) -> list[Release]:
    """What `decide` says of started trajectories whose worker lives, without the whole picture.

    No policy holds them back, so that their steps need not wait for a full decision.
    """
    order = switches.order
    ordered = started_first(order, returning, rates) if len(returning) > 1 else returning
    return [
        _made((t.id, home, rank, band(order, t, rates), _said(order, rank, _at_home(home))))
        for rank, t in enumerate(ordered)
        if (home := t.worker) is not None
    ]


def _released(
    ordered: Ints, book: Book, allowance: Allowance, switches: Switches
) -> tuple[list[Release], list[str]]:
    """Home while it lives; else the placement's choice, for fresh ones where there is room."""
    releases, held = list[Release](), list[str]()
    live, order = book.snapshot.trajectories, switches.order
    bound = (book.facts.fresh + book.facts.parked > 0) & (book.facts.home < 0)
    for start in range(0, len(ordered), CHUNK):
        places = ordered[start : start + CHUNK]
        shut = bound[places] & ~allowance.maybe(places)
        held += [live[place].id for place in places[shut].tolist()]
        tried = np.flatnonzero(~shut)
        for rank, place in zip((start + tried).tolist(), places[tried].tolist(), strict=True):
            choice = allowance.choice(place) if bound[place] else book.everyone
            if choice is None:
                held.append(live[place].id)
                continue
            found = _worker_for(place, choice, book, switches)
            priority = band(order, live[place], book.rates)
            releases.append(_release(live[place], found, rank, priority, order))
    return releases, held


def _worker_for(place: int, choice: Flags, book: Book, switches: Switches) -> tuple[str, str]:
    home = int(book.facts.home[place])
    if home >= 0 and switches.placement not in ROAMING:
        return book.names[home], _at_home(book.names[home])
    worker, because = PLACEMENTS[switches.placement](place, choice, book)
    if home < 0:
        book.take(place, worker)
    book.in_flight[worker] += 1
    return book.names[worker], because


def roams(switches: Switches) -> bool:
    """Whether steps of started trajectories need a full decision too."""
    return switches.placement in ROAMING


def watches(switches: Switches) -> bool:
    """Whether there is something to decide when nothing waits: moves, contexts that outgrew KV."""
    return switches.migration != "off" or switches.admission in WATCHFUL


# Nearly every step says one of a few sentences, and its span knows their bytes by them.
@lru_cache(maxsize=1024)
def _at_home(worker: str) -> str:
    return f"in flight on {worker}, its prefix is there"


@lru_cache(maxsize=4096)
def _said(order: str, rank: int, because: str) -> str:
    return f"{order} rank {rank}; {because}"


def _release(
    trajectory: Trajectory, found: tuple[str, str], rank: int, priority: int | None, order: str
) -> Release:
    worker, because = found
    return Release(trajectory.id, worker, rank, priority, f"{order} rank {rank}; {because}")
