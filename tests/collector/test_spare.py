"""Is starving split into recoverable and unavoidable, and busy time weighed by the batch?"""

from __future__ import annotations

import random

from heddle.collector.accounting import account
from heddle.collector.activities import Activity
from heddle.collector.blame import used
from heddle.collector.grants import Lease, Window
from heddle.collector.spare import spare
from heddle.collector.states import BUSY, FLEET_STATES


def fleet(seed: int, end: int = 60):
    rng = random.Random(seed)
    workers = [f"w{k}" for k in range(rng.randint(1, 4))]
    leases = [Lease(w, rng.randint(1, 4), 0, end) for w in workers]
    seen = [Activity(w, "covered", 0, end) for w in workers]
    for k in range(rng.randint(0, 14)):
        start = rng.randrange(end)
        kind = rng.choice(("held", "queued", "prefill", "decode", "tool", "live"))
        worker = rng.choice(workers)
        seen.append(Activity(worker, kind, start, start + rng.randrange(1, 25), f"t{k}"))
    return account(Window(0, end), sum(x.degree for x in leases), leases, seen, 2), seen


def test_the_split_and_the_weight_agree_with_a_look_at_every_nanosecond():
    for seed in range(120):
        accounts, seen = fleet(seed)
        found = spare(accounts)
        recoverable = unavoidable = effective = 0
        for strip in accounts.strips:
            for at in range(strip.start_ns, strip.end_ns):
                on = [x for x in seen if x.start_ns <= at < x.end_ns]
                batch = {w: 0 for w in (x.worker_id for x in seen)}
                for x in on:
                    batch[x.worker_id] += x.kind in ("prefill", "decode")
                surplus = any(x.kind in ("held", "queued") for x in on)
                surplus = surplus or any(count > 2 for count in batch.values())
                if strip.state in FLEET_STATES:
                    recoverable += strip.gpus * surplus
                    unavoidable += strip.gpus * (not surplus)
                if strip.state in BUSY:
                    effective += strip.gpus * min(batch[strip.worker_id or ""], 2)
        assert (found.recoverable_ns, found.unavoidable_ns) == (recoverable, unavoidable)
        assert found.effective_ns == effective // 2
        assert sum(a + b for a, b in found.by_worker.values()) == recoverable + unavoidable


def test_busy_time_is_shared_exactly_among_those_in_the_engine():
    for seed in range(120):
        accounts, _ = fleet(seed)
        assert sum(used(accounts).values()) == accounts.busy_ns


def test_two_in_a_batch_share_and_one_alone_pays_all():
    leases = [Lease("w", 3, 0, 10)]
    seen = [
        Activity("w", "covered", 0, 10),
        Activity("w", "decode", 0, 6, "a"),
        Activity("w", "decode", 2, 4, "b"),
    ]
    accounts = account(Window(0, 10), 3, leases, seen)
    assert used(accounts) == {"a": 15, "b": 3}


def test_a_queue_elsewhere_makes_starving_recoverable_and_a_tool_does_not():
    leases = [Lease("a", 1, 0, 10), Lease("b", 1, 0, 10)]
    seen = [Activity(w, "covered", 0, 10) for w in "ab"]
    seen += [Activity("a", "decode", 0, 10, "t"), Activity("b", "decode", 0, 2, "u")]
    seen += [Activity("a", "queued", 4, 7, "v"), Activity("a", "tool", 7, 10, "v")]
    found = spare(account(Window(0, 10), 2, leases, seen))
    assert (found.recoverable_ns, found.unavoidable_ns) == (3, 5)
