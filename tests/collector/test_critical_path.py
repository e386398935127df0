"""Does the path of the last trajectory fill the makespan with what it really did?"""

from __future__ import annotations

from heddle.collector.activities import Activity
from heddle.collector.critical_path import critical_path
from heddle.collector.grants import Window
from heddle.collector.timeline import Segment, timeline, totals

W = Window(0, 100)


def test_the_path_runs_from_the_windows_start_to_its_end_along_the_last_trajectory() -> None:
    seen = [
        Activity("w1", "decode", 0, 60, "first"),
        Activity("w0", "live", 5, 95, "last"),
        Activity("w0", "held", 5, 15, "last"),
        Activity("w0", "queued", 15, 20, "last"),
        Activity("w0", "prefill", 20, 22, "last"),
        Activity("w0", "decode", 22, 50, "last"),
        Activity("w0", "tool", 50, 80, "last", "bash"),
        Activity("w0", "move", 80, 84, "last"),
        Activity("w0", "decode", 86, 95, "last"),
    ]
    path = critical_path(W, seen)
    assert path.trajectory_id == "last"
    assert path.segments == (
        Segment("not_started", 0, 5),
        Segment("held", 5, 15, "w0"),
        Segment("queued", 15, 20, "w0"),
        Segment("prefill", 20, 22, "w0"),
        Segment("decode", 22, 50, "w0"),
        Segment("tool", 50, 80, "w0", "bash"),
        Segment("move", 80, 84, "w0"),
        Segment("orchestrator", 84, 86, "w0"),
        Segment("decode", 86, 95, "w0"),
        Segment("closing", 95, 100),
    )
    assert path.makespan_ns == 100
    assert path.by_doing["decode"] == 37


def test_of_trajectories_that_end_together_the_first_to_start_then_the_lower_id_counts() -> None:
    seen = [Activity("w", "decode", lo, 130, t) for lo, t in ((3, "a"), (2, "c"), (2, "b"))]
    assert critical_path(W, seen).trajectory_id == "b"


def test_trajectories_outside_the_window_and_empty_windows_have_no_path() -> None:
    seen = [Activity("w", "decode", 100, 130, "later"), Activity("w", "down", 0, 50)]
    path = critical_path(W, seen)
    assert path.trajectory_id is None
    assert path.segments == (Segment("not_started", 0, 100),)
    assert critical_path(Window(7, 7), seen).makespan_ns == 0


def test_parallel_calls_count_each_nanosecond_once_engines_first() -> None:
    mine = [
        Activity("w", "tool", 0, 50, "t", "bash"),
        Activity("w", "tool", 0, 30, "t", "search"),
        Activity("w", "decode", 10, 20, "t"),
        Activity("w", "prefill", 15, 25, "t"),
        Activity("w", "opaque", 60, 70, "t"),
    ]
    pieces = timeline(mine, 0, 70)
    assert totals(pieces) == {"tool": 35, "decode": 10, "prefill": 5, "unknown": 20}
    assert {piece.name for piece in pieces if piece.doing == "tool"} == {"bash"}
