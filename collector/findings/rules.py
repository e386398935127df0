"""What is wrong with this rollout, and which knob would change it?

One pure function per rule, one table. A rule is silent below its threshold (the constants here,
shares of all GPU time unless they say otherwise); a healthy rollout has none. A rule that explains
another's symptom silences it: starving GPUs have one cause, either a crowded worker, one trajectory
that decodes on too few GPUs, or one trajectory that waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from heddle.collector.accounting import State
from heddle.collector.findings.case import Case, Finding

STARVED: Final = 0.25
"""tail_bubble + starved_gap: what a long-tailed rollout loses anyway stays below a quarter."""
CROWDED: Final = 2.0
"""The busiest worker's busy share over the mean of the others."""
ONE_TRAJECTORY: Final = 0.3
"""Of the blame for starving: from here on it is one trajectory's, below it is the layout's."""
DECODE_BOUND: Final = 0.6
"""Of that trajectory's own time."""
TOOL_BOUND: Final = 0.2
WAITING: Final = 0.4
"""Of the trajectories' time, held or queued."""
QUEUED_IDLE: Final = 0.1
"""GPUs that ran nothing while requests waited."""
UNKNOWN: Final = 0.1
DOWN: Final = 0.02
WEIGHT_SYNC: Final = 0.15
SEVERE: Final = 0.4

_STARVED_STATES: Final[tuple[State, ...]] = ("tail_bubble", "starved_gap")
Rule = Callable[[Case], Finding | None]


def _finding(rule: str, lost: float, title: str, evidence: str, knob: str) -> Finding:
    severity = "high" if lost >= SEVERE else "medium"
    return Finding(rule, severity, title, evidence, knob, lost)


def crowded_worker(case: Case) -> Finding | None:
    """One worker is busy while the others starve, and no single trajectory is why."""
    starved, shares = case.share(_STARVED_STATES), case.busy_shares
    if starved < STARVED or len(shares) < 2 or case.starver[1] >= ONE_TRAJECTORY:
        return None
    (busiest, share), *others = shares.items()
    mean = sum(other for _, other in others) / len(others)
    if share < CROWDED * mean or share == 0:
        return None
    title = (
        f"worker {busiest} was busy {share:.0%} of the time and the other {len(others)} "
        f"{mean:.0%} on average: {starved:.0%} of GPU time starved"
    )
    knob = "placement (least-load, mix) or migration (rebalance): spread trajectories over workers"
    return _finding("crowded-worker", starved, title, f"partition?worker={busiest}", knob)


def degree_too_low(case: Case) -> Finding | None:
    """The fleet waits for one trajectory that does nothing but decode."""
    starved, (trajectory, blamed) = case.share(_STARVED_STATES), case.starver
    parts = case.part_shares(trajectory)
    decode = sum(parts.get(name, 0.0) for name in ("base", "context", "unsplit", "interference"))
    if starved < STARVED or blamed < ONE_TRAJECTORY or decode < DECODE_BOUND:
        return None
    title = (
        f"trajectory {trajectory} decoded {decode:.0%} of its time while others starved: "
        f"{blamed:.0%} of the {starved:.0%} of GPU time that starved waited for it"
    )
    knob = "allocation: a worker of higher degree for the longest trajectories; order longest-first"
    evidence = f"steps?trajectory={trajectory}"
    return _finding("degree-too-low", starved, title, evidence, knob)


def one_straggler(case: Case) -> Finding | None:
    """The fleet waits for one trajectory that mostly waits itself."""
    starved, (trajectory, blamed) = case.share(_STARVED_STATES), case.starver
    if starved < STARVED or blamed < ONE_TRAJECTORY or degree_too_low(case):
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
    return _finding("one-straggler", starved, title, f"steps?trajectory={trajectory}", knob)


def tool_bound(case: Case) -> Finding | None:
    """GPUs wait for tools."""
    lost, tools = case.share(("tool_wait",)), case.blame.by_tool
    if lost < TOOL_BOUND or not tools:
        return None
    tool = next(iter(tools))
    of_waits = tools[tool] / sum(tools.values())
    title = f"GPUs waited for tools {lost:.0%} of the time, {of_waits:.0%} of it for {tool!r}"
    knob = "tool concurrency and timeouts, or more trajectories per worker to fill the waits"
    return _finding("tool-bound", lost, title, "tool_calls", knob)


def waiting_for_service(case: Case) -> Finding | None:
    """Trajectories wait for a place: GPUs stand by, or a large part of their time goes there."""
    parts, idle = case.part_shares(), case.share(("queued",))
    held, queued = parts.get("held", 0.0), parts.get("queued", 0.0)
    if idle < QUEUED_IDLE and (held + queued < WAITING or case.share(_STARVED_STATES) >= STARVED):
        return None
    title = (
        f"trajectories were held {held:.0%} and queued {queued:.0%} of their time; "
        f"{idle:.0%} of GPU time ran nothing while a request waited"
    )
    knob = "max_running_requests and KV size (mem_fraction_static), or more workers"
    if held > queued:
        knob = "admission: hold fewer first steps (hold-count, hold-kv margins), or more workers"
    return _finding("waiting-for-service", max(idle, held + queued), title, "trajectories", knob)


def dead_engine(case: Case) -> Finding | None:
    """An engine was down."""
    lost = case.share(("down",))
    if lost < DOWN:
        return None
    down = {w: ns for (w, _, s), ns in case.accounts.by_worker.items() if s == "down" and w}
    worst = min(down, key=lambda worker_id: (-down[worker_id], worker_id))
    title = f"{lost:.0%} of GPU time was down, most of it on worker {worst}"
    knob = "the engine's log; restart or remove the worker"
    return _finding("dead-engine", lost, title, f"partition?worker={worst}&state=down", knob)


def weight_sync_long(case: Case) -> Finding | None:
    """Engines stood paused for weights."""
    lost = case.share(("weight_sync",))
    if lost < WEIGHT_SYNC:
        return None
    title = f"engines were paused for weight sync {lost:.0%} of GPU time"
    knob = "weight-sync mode: do not wait for the tail (abort and resume), or sync less often"
    return _finding("weight-sync", lost, title, "partition?state=weight_sync", knob)


def telemetry_gaps(case: Case) -> Finding | None:
    """Too much is unknown to judge; while the rollout runs that is only its right edge."""
    lost = case.share(("unknown",))
    if lost < UNKNOWN or case.provisional:
        return None
    title = f"nothing is known of {lost:.0%} of GPU time: spans were dropped or never sent"
    knob = "the sender's queue size and flush, and its count of dropped spans"
    return _finding("telemetry-gaps", lost, title, "partition?state=unknown", knob)


RULES: Final[dict[str, Rule]] = {
    "crowded-worker": crowded_worker,
    "degree-too-low": degree_too_low,
    "one-straggler": one_straggler,
    "tool-bound": tool_bound,
    "waiting-for-service": waiting_for_service,
    "dead-engine": dead_engine,
    "weight-sync": weight_sync_long,
    "telemetry-gaps": telemetry_gaps,
}


def diagnose(case: Case) -> list[Finding]:
    """Every finding, the costliest first (ties in the order of the table)."""
    found = [finding for rule in RULES.values() if (finding := rule(case)) is not None]
    return sorted(found, key=lambda finding: -finding.lost_share)
