"""Why did GPUs starve: a crowded worker, sticky sessions, one trajectory, one engine at a time?

Rules; each is silent below its threshold (thresholds.py).
"""

from __future__ import annotations

from typing import Final

from heddle.collector.findings import thresholds as t
from heddle.collector.findings.case import Case, Finding, asking, finding
from heddle.collector.states import State

STARVED_STATES: Final[tuple[State, ...]] = ("tail_bubble", "starved_gap")
_DECODE: Final = ("base", "context", "unsplit", "interference")


def crowded_worker(case: Case) -> Finding | None:
    """One worker is busy while the others starve, and no single trajectory is why."""
    starved, shares = case.share(STARVED_STATES), case.busy_shares
    if starved < t.STARVED or len(shares) < 2 or case.starver[1] >= t.ONE_TRAJECTORY:
        return None
    (busiest, share), *others = shares.items()
    mean = sum(other for _, other in others) / len(others)
    if share < t.CROWDED * mean or share == 0:
        return None
    title = (
        f"worker {busiest} was busy {share:.0%} of the time and the other {len(others)} "
        f"{mean:.0%} on average: {starved:.0%} of GPU time starved{_recoverable(case)}"
    )
    knob = "placement (least-load, mix) or migration (rebalance): spread trajectories over workers"
    return finding("crowded-worker", starved, title, asking("partition", worker=busiest), knob)


def sticky_imbalance(case: Case) -> Finding | None:
    """Sessions stay where they began, some workers got the long ones, and nobody moves."""
    starved, tokens, moved = (
        case.share(STARVED_STATES), case.signals.worker_tokens, case.signals.movers,
    )  # fmt: skip
    mean = sum(tokens.values()) / max(len(tokens), 1)
    if starved < t.STARVED or len(tokens) < 2 or case.starver[1] >= t.ONE_TRAJECTORY:
        return None
    worker, most = next(iter(tokens.items()))
    if moved > 0.02 * max(case.parts.height, 1) or most < t.UNEVEN * mean:
        return None
    title = (
        f"sessions stay where they began: worker {worker} generated {most:,} tokens, "
        f"{most / mean:.1f} times the mean of {len(tokens)} workers, and {starved:.0%} of GPU "
        f"time starved{_recoverable(case)}"
    )
    knob = "placement sticky-margin or mix, migration rebalance: let sessions leave a hot worker"
    evidence = asking("partition", worker=worker)
    return finding("sticky-imbalance", starved, title, evidence, knob)


def _recoverable(case: Case) -> str:
    if case.spare is None:
        return ""
    part = case.spare.recoverable_ns / max(case.accounts.total_gpu_ns, 1)
    return f", {part:.0%} while another worker had work to give" if part >= 0.01 else ""


def degree_too_low(case: Case) -> Finding | None:
    """The fleet waits for one trajectory that does nothing but decode."""
    starved, (trajectory, blamed) = case.share(STARVED_STATES), case.starver
    parts = case.part_shares(trajectory)
    decode = sum(parts.get(name, 0.0) for name in _DECODE)
    if starved < t.STARVED or blamed < t.ONE_TRAJECTORY or decode < t.DECODE_BOUND:
        return None
    title = (
        f"trajectory {trajectory} decoded {decode:.0%} of its time while others starved: "
        f"{blamed:.0%} of the {starved:.0%} of GPU time that starved waited for it"
    )
    knob = "allocation: a worker of higher degree for the longest trajectories; order longest-first"
    return finding("degree-too-low", starved, title, asking("steps", trajectory=trajectory), knob)


def one_straggler(case: Case) -> Finding | None:
    """The fleet waits for one trajectory that mostly waits itself."""
    starved, (trajectory, blamed) = case.share(STARVED_STATES), case.starver
    if starved < t.STARVED or blamed < t.ONE_TRAJECTORY or degree_too_low(case):
        return None
    parts = case.part_shares(trajectory)
    cause = max(parts, key=lambda name: parts[name], default="unknown")
    title = (
        f"trajectory {trajectory} caused {blamed:.0%} of the {starved:.0%} of GPU time that "
        f"starved; it spent {parts.get(cause, 0.0):.0%} of its time in {cause}"
    )
    knob = {
        "tool": "a timeout or more capacity for its tool",
        "held": "admission: release first steps earlier; order longest-first",
        "queued": "order longest-first, or a larger max_running_requests",
    }.get(cause, "a cap on steps or tokens per trajectory; order longest-first")
    return finding("one-straggler", starved, title, asking("steps", trajectory=trajectory), knob)


def one_at_a_time(case: Case) -> Finding | None:
    """Several workers serve, but one after the other."""
    alone, served = case.alone_share, [x for x in case.busy_shares.values() if x > 0]
    if alone < t.ALONE or len(served) < 3 or max(served) > sum(served) / 2:
        return None
    lost = case.share(STARVED_STATES)
    title = (
        f"{len(served)} workers served, but in {alone:.0%} of the busy time only one of them: "
        f"requests reach the fleet one after the other"
    )
    knob = "client concurrency: send the samples in parallel (more agent loops, no serial judge)"
    return finding("one-at-a-time", lost, title, "strips?limit=200", knob)


def gather_timeout(case: Case) -> Finding | None:
    """Workers end so far apart that whoever waits for all of them times out."""
    gap_s = case.signals.gather_s
    if gap_s < t.GATHER_S:
        return None
    title = (
        f"the first worker ended {gap_s:,.0f} s before the last one; a collective with the "
        f"default timeout of {t.GATHER_S:,.0f} s fails"
    )
    knob = "a longer NCCL timeout, and fewer seconds between ranks: migration, degree, a token cap"
    return finding("gather-timeout", case.share(STARVED_STATES), title, "stragglers", knob)


def slow_start(case: Case) -> Finding | None:
    """GPUs are leased long before the first request comes."""
    lost = case.share(("ramp_up",))
    if lost < t.SLOW_START or case.parts.is_empty():
        return None
    title = f"GPUs waited {lost:.0%} of the time for their first request"
    knob = "wake engines later or keep them warm (CUDA graphs, memory saver), send prompts at once"
    return finding("slow-start", lost, title, "partition?state=ramp_up", knob)
