"""Is it the engines: slow, dead, out of KV, without their cache, host-bound, paused for weights?

Rules; each is silent below its threshold (thresholds.py).
"""

from __future__ import annotations

from heddle.collector.findings import thresholds as t
from heddle.collector.findings.case import Case, Finding, asking, finding

_NAMED = 3
"""Trajectories named in a sentence before they are counted."""


def slow_engine(case: Case) -> Finding | None:
    """One worker takes longer for a token than others of its degree."""
    slow = case.signals.slowest
    if slow is None or slow.ns_per_token < t.SLOW_ENGINE * slow.others_ns_per_token:
        return None
    times = slow.ns_per_token / slow.others_ns_per_token
    lost = (
        case.busy_shares.get(slow.worker_id, 0.0) * (1 - 1 / times) / max(len(case.busy_shares), 1)
    )
    title = (
        f"worker {slow.worker_id} takes {times:.1f} times as long for a token as the others of "
        f"its degree ({slow.ns_per_token / 1e6:.1f} against "
        f"{slow.others_ns_per_token / 1e6:.1f} ms, batch taken out)"
    )
    knob = f"worker {slow.worker_id}: its GPU clocks, neighbours and log; remove it from the fleet"
    return finding("slow-engine", lost, title, asking("steps", worker=slow.worker_id), knob)


def dead_engine(case: Case) -> Finding | None:
    """An engine was down."""
    lost = case.share(("down",))
    if lost < t.DOWN:
        return None
    down = {w: ns for (w, _, s), ns in case.accounts.by_worker.items() if s == "down" and w}
    worst = min(down, key=lambda worker_id: (-down[worker_id], worker_id))
    s = case.signals
    again = f"; {s.cut:,} steps were cut off and made again ({s.cut_s:,.1f} s)" if s.cut else ""
    title = f"{lost:.0%} of GPU time was down, most of it on worker {worst}{again}"
    knob = "the engine's log; restart or remove the worker"
    return finding(
        "dead-engine", lost, title, asking("partition", worker=worst, state="down"), knob
    )


def kv_full(case: Case) -> Finding | None:
    """KV room is too small for the trajectories of a worker: retraction, or eviction."""
    s = case.signals
    retracted = sum(s.retractions.values()) or sum(x.retracted or 0 for x in s.counted)
    often = retracted >= 10 and retracted >= t.RETRACTED * s.steps
    again = s.thrashed_tokens / s.prefilled_tokens if s.prefilled_tokens else 0.0
    if not often and again < t.THRASHED:
        return None
    worst = next(iter(s.retractions), None)
    where = f", most on worker {worst}" if worst else ""
    told = [f"{again:.0%} of all prefilled tokens had been there before and were evicted"]
    if retracted:
        told.insert(
            0, f"engines took requests back {retracted:,} times in {s.steps:,} steps{where}"
        )
    title = f"KV is full: {', and '.join(told)}"
    shares = case.part_shares()
    lost = shares.get("recompute", 0.0) + shares.get("queued", 0.0)
    knob = "KV size (mem_fraction_static, a higher degree), admission hold-kv, max_running_requests"
    evidence = asking("steps", worker=worst) if worst else "decomposition?by=rollout"
    return finding("kv-full", lost, title, evidence, knob)


def cache_lost(case: Case) -> Finding | None:
    """Steps go to workers that never had their prefix."""
    s = case.signals
    again = s.moved_tokens / s.prefilled_tokens if s.prefilled_tokens else 0.0
    if again < t.CACHE_LOST:
        return None
    title = (
        f"{s.moved_steps:,} of {s.steps:,} steps changed worker and prefilled "
        f"{s.moved_tokens:,} tokens again that another worker had cached, {again:.0%} of all "
        f"prefilled tokens"
    )
    knob = "placement sticky or sticky-margin: a session leaves its cache only across a margin"
    lost = case.part_shares().get("recompute", 0.0)
    return finding("cache-lost", lost, title, "decomposition?by=rollout", knob)


def host_bound(case: Case) -> Finding | None:
    """By the engines' own counters, requests are there and no forward runs."""
    bound = [x for x in case.signals.counted if x.host_bound]
    if not bound:
        return None
    worst = max(bound, key=lambda x: (x.host_overhead_ns or 0, x.worker_id))
    over = sum((x.host_overhead_ns or 0) * x.degree for x in bound)
    lost = over / max(case.accounts.total_gpu_ns, 1)
    forward = (worst.forward_ns or 0) / worst.residence_ns
    title = (
        f"{len(bound)} workers are host-bound: on worker {worst.worker_id} forward ran only "
        f"{forward:.0%} of the time in which requests were in the engine"
    )
    knob = "the host: CPU cores per engine, the overlap scheduler, CUDA graphs up to the batch size"
    return finding("host-bound", lost, title, asking("counters", worker=worst.worker_id), knob)


def weight_sync_long(case: Case) -> Finding | None:
    """Engines stood paused for weights."""
    lost = case.share(("weight_sync",))
    if lost < t.WEIGHT_SYNC:
        return None
    title = f"engines were paused for weight sync {lost:.0%} of GPU time"
    knob = "weight-sync mode: do not wait for the tail (abort and resume), or sync less often"
    return finding("weight-sync", lost, title, "partition?state=weight_sync", knob)


def sync_blocked(case: Case) -> Finding | None:
    """A weight sync waits for trajectories that still run; they have names."""
    lost, sync = case.share(("weight_sync",)), case.signals.sync
    if lost < t.SYNC_BLOCKED or sync is None or not sync.waited_for:
        return None
    first, more = sync.waited_for[:_NAMED], len(sync.waited_for) - _NAMED
    named = ", ".join(first) + (f" and {more} more" if more > 0 else "")
    title = (
        f"weight sync took {sync.wall_ns / 1e9:,.1f} s ({lost:.0%} of GPU time) and waited for "
        f"{len(sync.waited_for)} trajectories: {named}"
    )
    knob = "weight-sync mode: abort and resume partial trajectories instead of waiting for the tail"
    evidence = asking("steps", trajectory=sync.waited_for[0])
    return finding("sync-blocked", lost, title, evidence, knob)
