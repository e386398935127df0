"""Of the time GPUs starved, how much could a better placement have used? How full were the others?

A starving worker (tail_bubble, starved_gap) is recoverable at an instant if any other worker had a
surplus then: a request waited (held or queued), or more requests ran than `saturated`, the batch
from which on one more slows the others. The rest is unavoidable: nobody had work to give.
`effective_ns` counts a busy GPU by min(1, batch / saturated): busy, but under-filled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle.collector.accounting import Accounts
from heddle.collector.activities import Ints
from heddle.collector.ledger import Ledger
from heddle.collector.states import FLEET_STATES
from heddle.collector.sweep import EFFECTIVE, SURPLUS


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


def spare(accounts: Accounts) -> Spare:
    """Split the starving time of *accounts*; `saturated` is what they were made with."""
    ledger = accounts.ledger
    starving = accounts.of(FLEET_STATES)
    recovered = starving.gpus * _covered(ledger, starving.start, starving.end)
    amounts = np.stack([recovered, starving.amount - recovered], axis=1)
    sums = np.zeros((len(accounts.workers), 2), np.int64)
    np.add.at(sums, starving.worker, amounts)
    seen = sorted(set(starving.worker.tolist()), key=accounts.workers.__getitem__)
    by_worker = {accounts.workers[w]: (int(sums[w, 0]), int(sums[w, 1])) for w in seen}
    recoverable, unavoidable = (int(total) for total in sums.sum(axis=0))
    effective = int(ledger.tables[EFFECTIVE][:, 1].sum()) // ledger.saturated
    return Spare(recoverable, unavoidable, by_worker, effective, ledger.saturated)


def _covered(ledger: Ledger, start: Ints, end: Ints) -> Ints:
    """How much of each interval anybody had work to give."""
    rows = ledger.tables[SURPLUS]
    if not len(rows) or not len(start):
        return np.zeros(len(start), np.int64)
    rows = rows[np.argsort(rows[:, 1], kind="stable")]
    begins, reach = rows[:, 1], np.maximum.accumulate(rows[:, 2])
    new = np.concatenate([[True], begins[1:] > reach[:-1]])
    at = np.flatnonzero(new)
    since, until = begins[at], reach[np.concatenate([at[1:], [len(new)]]) - 1]
    before = np.concatenate([[0], np.cumsum(until - since)])

    def so_far(instant: Ints) -> Ints:
        place = np.searchsorted(since, instant, side="right")
        last = np.maximum(place - 1, 0)
        inside = np.where(place > 0, np.clip(instant, since[last], until[last]) - since[last], 0)
        return np.where(place > 0, before[last], 0) + inside

    return so_far(end) - so_far(start)
