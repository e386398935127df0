"""Of the time GPUs starved, how much could a better placement have used? How full were the others?

A starving worker (tail_bubble, starved_gap) is recoverable at an instant if any other worker had a
surplus then: a request waited (held or queued), or more requests ran than `saturated`, the batch
from which on one more slows the others. The rest is unavoidable: nobody had work to give.
`effective_ns` counts a busy GPU by min(1, batch / saturated): busy, but under-filled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from heddle.collector.accounting import BUSY, Accounts, Activity, Strip
from heddle.collector.blame import FLEET_STATES

SATURATED: Final = 32
"""Where nobody says: the fitted laws (14B, degree 1, H100) double a token's time near 30 at 8k."""
_RUNNING: Final = ("prefill", "decode")
_WAITING: Final = ("held", "queued")
_Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spare:
    """`recoverable_ns + unavoidable_ns` = the starving time of the accounts, exactly."""

    recoverable_ns: int
    unavoidable_ns: int
    by_worker: dict[str, tuple[int, int]]
    """Recoverable and unavoidable of each starving worker."""
    effective_ns: int
    """At most the busy time."""
    saturated: int


def spare(accounts: Accounts, activities: Sequence[Activity], saturated: int = SATURATED) -> Spare:
    """Split the starving time of *accounts* of the same *activities*."""
    batches = _levels(activities, _RUNNING)
    surplus = _surplus(batches, _levels(activities, _WAITING), saturated)
    by_worker: dict[str, tuple[int, int]] = {}
    effective = 0
    for worker_id, strips in _by_worker(accounts.strips).items():
        starving = [strip for strip in strips if strip.state in FLEET_STATES]
        if starving:
            whole = sum(strip.gpus * (strip.end_ns - strip.start_ns) for strip in starving)
            recovered = _integral(starving, surplus, 1)
            by_worker[worker_id] = (recovered, whole - recovered)
        busy = [strip for strip in strips if strip.state in BUSY]
        if busy and worker_id in batches:
            effective += _integral(busy, batches[worker_id], saturated)
    recoverable = sum(first for first, _ in by_worker.values())
    unavoidable = sum(second for _, second in by_worker.values())
    return Spare(recoverable, unavoidable, by_worker, effective // saturated, saturated)


_Level: TypeAlias = tuple[_Ints, _Ints]
"""Edges, and how many between each and the next (the last is 0)."""


def _levels(activities: Sequence[Activity], kinds: Sequence[str]) -> dict[str, _Level]:
    """How many activities of *kinds* each worker had at every instant."""
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for x in activities:
        if x.kind in kinds and x.start_ns < x.end_ns:
            spans[x.worker_id].append((x.start_ns, x.end_ns))
    return {worker_id: _level(found) for worker_id, found in spans.items()}


def _level(spans: Sequence[tuple[int, int]]) -> _Level:
    pairs = np.array(spans, dtype=np.int64).reshape(-1, 2)
    edges, at = np.unique(pairs.ravel(), return_inverse=True)
    change = np.zeros(len(edges), np.int64)
    at = at.reshape(-1, 2)
    np.add.at(change, at[:, 0], 1)
    np.add.at(change, at[:, 1], -1)
    return edges, np.cumsum(change)


def _surplus(batches: dict[str, _Level], queues: dict[str, _Level], saturated: int) -> _Level:
    """1 whenever any worker has work to give, else 0."""
    spans: list[tuple[int, int]] = []
    wanted = [(level, saturated) for level in batches.values()]
    wanted += [(level, 0) for level in queues.values()]
    for (edges, counts), above in wanted:
        on = np.flatnonzero(counts[:-1] > above)
        spans += zip(edges[on].tolist(), edges[on + 1].tolist(), strict=True)
    return _level(spans)


def _by_worker(strips: Sequence[Strip]) -> dict[str, list[Strip]]:
    found: dict[str, list[Strip]] = defaultdict(list)
    for strip in strips:
        if strip.worker_id is not None:
            found[strip.worker_id].append(strip)
    return found


def _integral(strips: Sequence[Strip], level: _Level, most: int) -> int:
    """GPUs x min(level, most), integrated over the strips."""
    edges, counts = level
    if not len(edges):
        return 0
    area = np.concatenate([[0], np.cumsum(np.minimum(counts, most)[:-1] * np.diff(edges))])
    rows: Any = np.array([strip[3:] for strip in strips], dtype=np.int64).reshape(-1, 3)
    until = _area_until(rows[:, 1], edges, counts, area, most)
    return int(((until - _area_until(rows[:, 0], edges, counts, area, most)) * rows[:, 2]).sum())


def _area_until(at: _Ints, edges: _Ints, counts: _Ints, area: _Ints, most: int) -> _Ints:
    """The integral of min(level, most) from the first edge to each instant."""
    place = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, len(edges) - 1)
    inside = np.maximum(at - edges[place], 0)
    return area[place] + np.minimum(counts[place], most) * inside
