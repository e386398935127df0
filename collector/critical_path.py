"""What was the rollout's end waiting for, all the way back to its start?

Walked back from the window's end along the trajectory that finished last: the segments' durations
sum to the makespan, exactly. What the trajectory itself waited for behind others (held, queued) is
named, not followed into those others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heddle.collector.accounting import Activity, Window
from heddle.collector.timeline import Doing, Segment, by_trajectory, timeline, totals


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Segments from the window's start to its end, in order of time."""

    trajectory_id: str | None
    """Null when no trajectory was seen in the window."""
    segments: tuple[Segment, ...]

    @property
    def by_doing(self) -> dict[Doing, int]:
        return totals(self.segments)

    @property
    def makespan_ns(self) -> int:
        return sum(segment.duration_ns for segment in self.segments)


def critical_path(window: Window, activities: Sequence[Activity]) -> CriticalPath:
    """Of the trajectory that ends last within *window*; ties: the one that started first, by id."""
    trails = by_trajectory(activities)
    ends: list[tuple[int, int, str]] = []
    for trajectory_id, mine in trails.items():
        start_ns, end_ns = min(x.start_ns for x in mine), max(x.end_ns for x in mine)
        if start_ns < window.end_ns and end_ns > window.start_ns:
            ends.append((-min(end_ns, window.end_ns), start_ns, trajectory_id))
    last = min(ends)[2] if ends else None
    mine = [] if last is None else trails[last]
    return CriticalPath(last, tuple(timeline(mine, *window)))
