"""Is each idle GPU-nanosecond blamed on those it waited for, and on nobody twice?"""

from __future__ import annotations

from heddle.collector.accounting import account
from heddle.collector.activities import Activity, Kind
from heddle.collector.blame import Blame, Cell, blame
from heddle.collector.grants import Lease, Window


def split(
    rows: list[tuple[str, Kind, int, int, str]], *, leases: dict[str, int], end: int = 100,
    tools: dict[str, str] | None = None, groups: dict[str, str] | None = None,
) -> Blame:  # fmt: skip
    """Blame of fully covered workers; *tools* names each trajectory's tool."""
    seen = [
        Activity(w, kind, lo, hi, t, (tools or {}).get(t, "") if kind == "tool" else "")
        for w, kind, lo, hi, t in rows
    ]
    seen += [Activity(w, "covered", 0, end) for w in leases]
    held = [Lease(w, degree, 0, end) for w, degree in leases.items()]
    return blame(account(Window(0, end), sum(leases.values()), held, seen), groups)


def test_a_tool_wait_is_shared_by_the_trajectories_in_a_tool_and_by_their_tools() -> None:
    got = split(
        [("w", "tool", 0, 60, "a"), ("w", "tool", 40, 100, "b"), ("w", "live", 0, 100, "b")],
        leases={"w": 4}, tools={"a": "bash", "b": "search"}, groups={"a": "g0", "b": "g1"},
    )  # fmt: skip
    assert got.by_trajectory == {"a": 4 * 50, "b": 4 * 50}
    assert got.by_tool == {"bash": 200, "search": 200}
    assert got.by_group == {"g0": 200, "g1": 200}
    assert got.by_worker == {"w": 400}
    assert (got.idle_ns, got.unexplained_ns) == (400, 0)


def test_of_parallel_tools_of_one_trajectory_the_one_that_ends_last_is_blamed() -> None:
    seen = [
        Activity("w", "tool", 0, 40, "a", "quick"),
        Activity("w", "tool", 10, 90, "a", "slow"),
        Activity("w", "covered", 0, 90),
    ]
    accounts = account(Window(0, 90), 1, [Lease("w", 1, 0, 90)], seen)
    assert blame(accounts).by_tool == {"slow": 80, "quick": 10}


def test_queued_time_is_shared_by_all_who_wait_held_or_queued() -> None:
    rows: list[tuple[str, Kind, int, int, str]] = [
        ("w", "held", 0, 60, "a"), ("w", "queued", 30, 60, "b"), ("w", "decode", 60, 100, "c"),
    ]  # fmt: skip
    assert split(rows, leases={"w": 1}).by_trajectory == {"a": 45, "b": 15}


def test_the_tail_bubble_is_blamed_on_whoever_is_still_live_anywhere() -> None:
    rows: list[tuple[str, Kind, int, int, str]] = [
        ("w0", "decode", 0, 20, "short"), ("w1", "decode", 0, 100, "long"),
        ("w1", "tool", 20, 40, "other"),
    ]  # fmt: skip
    got = split(rows, leases={"w0": 2, "w1": 1})
    assert got.by_state == {"tail_bubble": 160}
    assert got.by_trajectory == {"long": 140, "other": 20}
    assert got.by_worker == {"w0": 160}


def test_a_starved_worker_is_blamed_on_the_live_ones_even_if_they_are_homed_nowhere() -> None:
    rows: list[tuple[str, Kind, int, int, str]] = [
        ("w", "decode", 0, 10, "a"), ("w", "decode", 90, 100, "a"), ("", "held", 10, 50, "b"),
    ]  # fmt: skip
    got = split(rows, leases={"w": 1})
    assert got.by_trajectory == {"b": 40}
    assert got.unexplained_ns == 40


def test_ramp_up_and_time_after_everyone_finished_stay_unexplained() -> None:
    got = split([("w", "decode", 30, 50, "a")], leases={"w": 3})
    assert (got.cells, got.by_worker) == ((), {})
    assert got.unexplained_ns == got.idle_ns == 240


def test_orchestrator_and_exposed_moves_are_blamed_on_their_trajectories() -> None:
    rows: list[tuple[str, Kind, int, int, str]] = [
        ("w", "live", 0, 100, "a"), ("w", "move", 40, 60, "b"),
    ]  # fmt: skip
    assert split(rows, leases={"w": 1}).cells == (
        Cell("orchestrator", "a", "", 80),
        Cell("migration", "b", "", 20),
    )


def test_what_does_not_divide_goes_by_remainder_and_then_by_id_and_loses_nothing() -> None:
    waiting: list[tuple[str, Kind, int, int, str]] = [
        ("w", "queued", 0, 100, t) for t in ("c", "b", "a")
    ]
    assert split(waiting, leases={"w": 1}).by_trajectory == {"a": 34, "b": 33, "c": 33}
    # d waits for the last 10: four shares of 2.5 there beside three of 30 before.
    got = split([*waiting, ("w", "queued", 90, 100, "d")], leases={"w": 1})
    assert got.by_trajectory == {"a": 33, "b": 33, "c": 32, "d": 2}


def test_a_trajectory_that_waits_twice_at_once_is_counted_once() -> None:
    rows: list[tuple[str, Kind, int, int, str]] = [
        ("w", "queued", 0, 100, "a"), ("w", "held", 0, 100, "a"), ("w", "queued", 0, 100, "b"),
    ]  # fmt: skip
    assert split(rows, leases={"w": 1}).by_trajectory == {"a": 50, "b": 50}


def test_only_gpus_that_count_are_blamed_where_leases_exceed_the_fleet() -> None:
    seen = [Activity("w", "tool", 0, 100, "a", "bash"), Activity("w", "covered", 0, 100)]
    accounts = account(Window(0, 100), 3, [Lease("w", 8, 0, 100)], seen)
    assert blame(accounts).by_tool == {"bash": 300}


def test_a_busy_or_empty_fleet_blames_nobody() -> None:
    assert split([("w", "decode", 0, 100, "a")], leases={"w": 1}).by_trajectory == {}
    assert split([], leases={}, end=0).idle_ns == 0
