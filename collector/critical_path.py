"""What was the rollout's end waiting for, all the way back to its start?

Walked back from the window's end along the trajectory that finished last: the segments' durations
sum to the makespan, exactly. What the trajectory itself waited for behind others (held, queued) is
named, not followed into those others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heddle.collector.activities import Activity, Columns
from heddle.collector.grants import Window
from heddle.collector.lives import last_live
from heddle.collector.past import Past
from heddle.collector.timeline import Doing, Segment, timeline, totals


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


def critical_path(
    window: Window, activities: Sequence[Activity], past: Past | None = None
) -> CriticalPath:
    """Of the trajectory that ends last within *window*; ties: the one that started first, by id.

    *past* are more activities of these trajectories.
    """
    columns, past = Columns.of(activities), past or Past()
    last = last_live(window, past.living(columns))
    parts = [*(chunk.rows for chunk in past.chunks), columns]
    mine = [] if last is None else [x for one in parts for x in one.of_trajectory(last)]
    name = None if last is None else columns.tables.trajectories.names[last]
    return CriticalPath(name, tuple(timeline(mine, *window)))
