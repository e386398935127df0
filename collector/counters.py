"""What do the engines' own counters say of the time in which the spans saw a request there?

Spans show residence: an upper bound on GPU work. Where an engine counts its forward execution, the
resident time in which no forward ran is host_overhead: the sum of the partition stays what it was.
Counters are compared over runs of good polls, never over a restart (a counter that fell) and never
over a poll that failed; shorter intervals would judge what a counter published late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from heddle.collector.accounting import Accounts
from heddle.collector.ledger import NOBODY, Strips
from heddle.collector.states import BUSY

HOST_OVERHEAD: Final = "host_overhead"
HOST_BOUND: Final = 0.7
"""Forward time below this share of residence earns the badge."""


class _Poll(NamedTuple):
    at_ns: int
    ok: bool
    forward_s: float | None
    idle_s: float | None
    retracted: float | None
    queue: float | None
    kv_usage: float | None


@dataclass(frozen=True, slots=True)
class Counted:
    """One worker by its own counters; null where it does not count."""

    worker_id: str
    degree: int
    samples: int
    failed: int
    restarts: int
    covered_ns: int
    forward_ns: int | None
    idle_ns: int | None
    residence_ns: int
    retracted: int | None
    kv_usage: float | None
    queue: int | None

    @property
    def host_overhead_ns(self) -> int | None:
        """Resident, not forward; null without forward seconds."""
        if self.forward_ns is None:
            return None
        return max(self.residence_ns - self.forward_ns, 0)

    @property
    def host_bound(self) -> bool:
        """Whether the CPU was what this engine waited for."""
        if self.forward_ns is None or not self.residence_ns:
            return False
        return self.forward_ns < HOST_BOUND * self.residence_ns


def counted(accounts: Accounts, counters: pl.DataFrame) -> list[Counted]:
    """One row per polled worker, by id."""
    degrees = {worker_id: degree for worker_id, degree, _ in accounts.by_worker if worker_id}
    busy, codes = accounts.of(BUSY), {name: at for at, name in enumerate(accounts.workers)}
    found: list[Counted] = []
    for (worker_id,), rows in counters.group_by("worker_id", maintain_order=True):
        polls = [_Poll(*row) for row in rows.sort("at_ns").select(_Poll._fields).iter_rows()]
        name = str(worker_id)
        mine = busy.where(busy.worker == codes.get(name, NOBODY))
        found.append(_worker(name, degrees.get(name, 0), polls, mine))
    return sorted(found, key=lambda one: one.worker_id)


def _worker(worker_id: str, degree: int, polls: Sequence[_Poll], busy: Strips) -> Counted:
    good, restarts = list(_good(polls)), _restarts(polls)
    # Where forward is counted, residence is compared with it over the same time.
    counts = [first.forward_s is not None and last.forward_s is not None for first, last in good]
    covered = residence = 0
    forward_s: float | None = None
    idle_s: float | None = None
    retracted: float | None = None
    for (first, last), is_counted in zip(good, counts, strict=True):
        covered += last.at_ns - first.at_ns
        idle_s = _plus(idle_s, first.idle_s, last.idle_s)
        retracted = _plus(retracted, first.retracted, last.retracted)
        forward_s = _plus(forward_s, first.forward_s, last.forward_s)
        if is_counted or not any(counts):
            residence += _within(busy, first.at_ns, last.at_ns)
    usages = [poll.kv_usage for poll in polls if poll.kv_usage is not None]
    queues = [poll.queue for poll in polls if poll.queue is not None]
    return Counted(
        worker_id=worker_id,
        degree=degree,
        samples=len(polls),
        failed=sum(not poll.ok for poll in polls),
        restarts=restarts,
        covered_ns=covered,
        forward_ns=None if forward_s is None else round(forward_s * 1e9),
        idle_ns=None if idle_s is None else round(idle_s * 1e9),
        residence_ns=residence,
        retracted=None if retracted is None else round(retracted),
        kv_usage=max(usages, default=None),
        queue=round(max(queues)) if queues else None,
    )


def _good(polls: Sequence[_Poll]) -> Iterator[tuple[_Poll, _Poll]]:
    """First and last poll of every run without failure or restart."""
    run: list[_Poll] = []
    for poll in polls:
        if run and (not poll.ok or _fell(run[-1], poll)):
            yield run[0], run[-1]
            run = []
        if poll.ok:
            run.append(poll)
    if run:
        yield run[0], run[-1]


def _fell(before: _Poll, after: _Poll) -> bool:
    pairs = zip(before[2:5], after[2:5], strict=True)
    return any(x is not None and y is not None and y < x for x, y in pairs)


def _restarts(polls: Sequence[_Poll]) -> int:
    return sum(_fell(x, y) for x, y in pairwise(poll for poll in polls if poll.ok))


def _plus(total: float | None, first: float | None, last: float | None) -> float | None:
    if first is None or last is None:
        return total
    return (total or 0.0) + last - first


def _within(strips: Strips, start_ns: int, end_ns: int) -> int:
    inside = np.minimum(strips.end, end_ns) - np.maximum(strips.start, start_ns)
    return int(np.maximum(inside, 0).sum())


def refined(accounts: Accounts, rows: Sequence[Counted]) -> dict[tuple[Any, int, str], int]:
    """GPU-ns by worker, degree and state with host_overhead taken from the busy states in
    proportion; sums to what `accounts.by_worker` sums to."""
    cells: dict[tuple[Any, int, str], int] = {**accounts.by_worker}
    for row in rows:
        over = row.host_overhead_ns or 0
        busy: dict[tuple[Any, int, str], int] = {
            key: amount
            for key, amount in accounts.by_worker.items()
            if key[0] == row.worker_id and key[2] in BUSY and amount
        }
        take = min(over * max(row.degree, 1), sum(busy.values()))
        if take:
            _move(cells, busy, take, (row.worker_id, row.degree, HOST_OVERHEAD))
    return cells


def _move(
    cells: dict[tuple[Any, int, str], int],
    busy: Mapping[tuple[Any, int, str], int],
    take: int,
    to: tuple[Any, int, str],
) -> None:
    """Take from the busy cells in proportion, the last one what rounding left."""
    left, whole = take, sum(busy.values())
    for key, amount in busy.items():
        part = min(left, -(-take * amount // whole))
        cells[key] -= part
        left -= part
    cells[to] = cells.get(to, 0) + take
