"""Did the emulated fleet keep time, or do its figures tell of the machine that emulated it?

Share of trajectory time that no engine, queue or tool accounts for: the `orchestrator` part of the
`decomposition` query, plus what the driver's own tool waits came back late. On a machine that keeps
up it is a few per cent; an engine whose sleeps are late while it decodes is not seen here. On the
critical path the same time, in seconds, is what a rollout would at most have been shorter by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from heddle.app.driver import DriveResult
from heddle.collector.client import CollectorClient

LIMIT: Final = 0.1
"""Share above which nothing is concluded: presets differ by 5 to 30 %, and a rollout that spends a
tenth of its time waiting for this machine's CPU can differ by as much for no reason of theirs."""


def host_lag(
    collector: CollectorClient, run: str, rollout: str, seen: DriveResult
) -> dict[str, Any]:
    """`share` of trajectory time, None when nothing was measured, and whether figures count."""
    rows = collector.query("decomposition", run=run, rollout=rollout, by="rollout").to_dicts()
    total_ns = sum(row["duration_ns"] or 0 for row in rows)
    lost_ns = sum(row["orchestrator_ns"] or 0 for row in rows) + round(seen.late_s * 1e9)
    path = collector.query("critical_path", run=run, rollout=rollout).to_dicts()
    waited_ns = sum(p["end_ns"] - p["start_ns"] for p in path if p["doing"] == "orchestrator")
    # Which trajectory's late wake-ups lie on the path is not known: the mean stands for them.
    late_s = seen.late_s / max(seen.trajectories, 1)
    share = min(lost_ns / total_ns, 1.0) if total_ns else None
    return judged(share, waited_ns / 1e9 + late_s if total_ns else None)


def judged(share: float | None, critical_s: float | None = None) -> dict[str, Any]:
    """What is measured, what is allowed, and the verdict; what is not measured is not trusted."""
    trusted = share is not None and share <= LIMIT
    return {"share": share, "critical_s": critical_s, "limit": LIMIT, "trustworthy": trusted}


def without(makespan_s: float, lag: Mapping[str, Any]) -> float:
    """The makespan less all of this machine's lag on its critical path; 0 where unknown."""
    critical_s = lag["critical_s"]
    return 0.0 if critical_s is None else makespan_s - critical_s


def worst(lags: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Of several rollouts that are compared: one that cannot be trusted spoils them all."""
    kept = list(lags)
    if any(lag["share"] is None for lag in kept):
        return judged(None)
    return dict(max(kept, key=lambda lag: lag["share"], default=judged(None)))


def sentence(lag: Mapping[str, Any], what: str) -> str | None:
    """Why `what` does not count, and what to do; None when it does."""
    if lag["trustworthy"]:
        return None
    if lag["share"] is None:
        return f"How far this machine ran behind could not be measured, so {what} not count."
    return (
        f"This machine ran behind: {lag['share']:.0%} of the trajectories' time was its own lag "
        f"(limit {lag['limit']:.0%}), so {what} not count; run fewer trajectories (--trajectories, "
        "--limit), a lower --speed, or fewer other programs."
    )
