"""Which of the four sources made the tail: token length, turns and tools, capacity, or transfer?

The slowest tenth of trajectories against the median one, part by part of their decomposition; what
they spent beyond it is the excess. Pure.
token length      base, context and fresh prefill: what their own tokens cost
turns and tools   tool, orchestrator: waits between steps
backend capacity  held, queued, interference, recompute: what others and lost cache cost
transfer and sync move; and unknown, which telemetry does not cover, stays apart
"""

from __future__ import annotations

from typing import Final

import polars as pl

SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "token length": ("base_ns", "context_ns", "prefill_ns", "unsplit_ns"),
    "turns and tools": ("tool_ns", "orchestrator_ns"),
    "backend capacity": ("held_ns", "queued_ns", "interference_ns", "recompute_ns"),
    "transfer and sync": ("move_ns",),
    "unknown": ("unknown_ns",),
}
TAIL_SHARE: Final = 0.1


def excess(parts: pl.DataFrame, trajectories: pl.DataFrame) -> list[tuple[str, int, float]]:
    """Source, excess ns and share of the excess, largest first; nothing without a tail.

    Without decode laws all decode counts as token length (`unsplit`).
    """
    finished = trajectories.filter(pl.col("state") == "finished").select("trajectory_id")
    known = parts.join(finished, on="trajectory_id", how="semi").sort("duration_ns")
    count = max(round(known.height * TAIL_SHARE), 1)
    if known.height < 2:
        return []
    slow = known.tail(count)
    spent: dict[str, int] = {}
    for source, names in SOURCES.items():
        each = known.select(pl.sum_horizontal(*names)).to_series()
        middle = each.median()
        typical = round(middle) if isinstance(middle, float | int) else 0
        beyond = slow.select(pl.sum_horizontal(*names)).to_series() - typical
        spent[source] = max(int(beyond.sum()), 0)
    total = sum(spent.values())
    rows = [(source, ns, ns / total) for source, ns in spent.items() if ns]
    return sorted(rows, key=lambda row: -row[1])
