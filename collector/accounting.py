"""In which state was every GPU of a window, nanosecond by nanosecond?

Pure and exact: intervals in, integer GPU-nanoseconds out, and the states (states.py) always sum to
GPUs x wall. It knows leases and what was observed on a worker; it knows nothing of spans,
trajectories' homes or queries (facts.py does). Intervals are half-open; what lies outside the
window is cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from heddle.collector.activities import Activity, Columns
from heddle.collector.grants import Lease, Window
from heddle.collector.ledger import SATURATED, Ledger, Strips
from heddle.collector.shares import summed
from heddle.collector.states import BUSY, IDLE, STATE, STATES, State


class Strip(NamedTuple):
    """One worker in one state; *gpus* counts (the degree, unless leases exceed the fleet)."""

    worker_id: str | None
    degree: int
    state: State
    start_ns: int
    end_ns: int
    gpus: int


@dataclass(frozen=True)
class Accounts:
    """The partition of one window: `sum(gpu_ns.values()) == gpus * wall_ns`, exactly."""

    window: Window
    gpus: int
    table: Strips
    """The strips as columns."""
    workers: list[str]
    """Names of the worker codes in `table`."""
    ledger: Ledger = field(repr=False, compare=False)
    over_leased_ns: int = 0
    """GPU-ns that leases claimed beyond the fleet's GPUs, counted nowhere else."""
    reversed_intervals: int = 0
    """Leases and activities that end before they start, left out."""

    @cached_property
    def strips(self) -> tuple[Strip, ...]:
        """Every worker's strips in order of worker id and time, then what nobody has."""
        rows = zip(*(column.tolist() for column in self.table), strict=True)
        return tuple(
            Strip(self.workers[worker] if worker >= 0 else None, degree, STATES[state], *rest)
            for worker, degree, state, *rest in rows
        )

    @cached_property
    def by_worker(self) -> dict[tuple[str | None, int, State], int]:
        """GPU-ns by worker, degree and state, in the order of the strips."""
        s = self.table
        # One number to sort by: 15 bits of state, then the degree, then the worker.
        keys = (s.worker + 1 << 48) + (s.degree << 16) + s.state
        _, first, place = np.unique(keys, return_index=True, return_inverse=True)
        amounts = summed(place, s.amount, len(first))
        order = np.argsort(first)
        cells = zip(*(column[first[order]].tolist() for column in s[:3]), strict=True)
        return {
            (self.workers[worker] if worker >= 0 else None, degree, STATES[state]): amount
            for (worker, degree, state), amount in zip(cells, amounts[order].tolist(), strict=True)
        }

    @cached_property
    def gpu_ns(self) -> dict[State, int]:
        """GPU-ns by state."""
        amounts = summed(self.table.state, self.table.amount, len(STATES))
        return dict(zip(STATES, amounts.tolist(), strict=True))

    @property
    def wall_ns(self) -> int:
        return self.window.end_ns - self.window.start_ns

    @property
    def total_gpu_ns(self) -> int:
        return self.gpus * self.wall_ns

    @property
    def busy_ns(self) -> int:
        return sum(self.gpu_ns[state] for state in BUSY)

    @property
    def idle_ns(self) -> int:
        return sum(self.gpu_ns[state] for state in IDLE)

    def of(self, states: Sequence[State]) -> Strips:
        """The workers' strips in any of these states."""
        codes = [STATE[state] for state in states]
        return self.table.where(np.isin(self.table.state, codes))


def account(
    window: Window,
    gpus: int,
    leases: Sequence[Lease],
    activities: Sequence[Activity],
    saturated: int = SATURATED,
) -> Accounts:
    """Partition *gpus* x the window into states.

    Of two leases of one worker the one that started last holds. Where leases exceed *gpus*, those
    that started first keep theirs (ties: by worker id), the rest gets what is left and the excess
    is reported. GPUs without a lease are `unallocated`.
    """
    _check(window, gpus)
    ledger = Ledger(saturated)
    ledger.update(window, gpus, leases, Columns.of(activities))
    return accounts_of(ledger, leases)


def accounts_of(ledger: Ledger, leases: Sequence[Lease]) -> Accounts:
    """The partition that a ledger holds now."""
    columns = ledger.columns
    backwards = int((columns.end < columns.start).sum())
    return Accounts(
        ledger.window,
        ledger.gpus,
        ledger.strips(),
        columns.tables.workers.names,
        # A copy: an update of the ledger replaces tables, it never changes one.
        replace(ledger),
        ledger.granted.over_leased_ns,
        backwards + sum(lease.end_ns < lease.start_ns for lease in leases),
    )


def _check(window: Window, gpus: int) -> None:
    if window.end_ns < window.start_ns:
        msg = f"the window ends at {window.end_ns}, before its start {window.start_ns}"
        raise ValueError(msg)
    if gpus < 0:
        msg = f"a fleet has 0 GPUs or more, not {gpus}"
        raise ValueError(msg)
