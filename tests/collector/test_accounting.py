"""Does the partition give every GPU-nanosecond its one right state? (hand-made fleets)"""

from __future__ import annotations

import pytest

from heddle.collector.accounting import Accounts, Strip, account
from heddle.collector.activities import KINDS, Activity, Kind
from heddle.collector.grants import Lease, Window
from heddle.collector.states import STATES

S = 10**9
W = Window(0, 100)


def one(*activities: tuple[Kind, int, int], covered: tuple[int, int] = (0, 100)) -> dict[str, int]:
    """States above zero of one GPU over [0, 100) under these activities."""
    seen = [Activity("w", kind, start, end, "t") for kind, start, end in activities]
    seen.append(Activity("w", "covered", *covered))
    accounts = account(W, 1, [Lease("w", 1, 0, 100)], seen)
    assert sum(accounts.gpu_ns.values()) == 100
    return nonzero(accounts)


def nonzero(accounts: Accounts) -> dict[str, int]:
    return {state: amount for state, amount in accounts.gpu_ns.items() if amount}


def test_the_golden_example_comes_out_to_the_nanosecond() -> None:
    rows: list[tuple[str, Kind, int, int]] = [
        ("A", "prefill", 0, 2), ("A", "decode", 2, 40), ("A", "tool", 40, 55),
        ("A", "queued", 56, 57), ("A", "prefill", 57, 58), ("A", "decode", 58, 100),
        ("A", "live", 0, 100), ("B", "prefill", 1, 2), ("B", "decode", 2, 30),
        ("A", "covered", 0, 100), ("B", "covered", 0, 100),
    ]  # fmt: skip
    activities = [Activity(w, kind, lo * S, hi * S, w) for w, kind, lo, hi in rows]
    leases = [Lease("A", 4, 0, 100 * S), Lease("B", 1, 0, 100 * S)]
    accounts = account(Window(0, 100 * S), 5, leases, activities)
    assert nonzero(accounts) == {
        "busy_prefill": 13 * S,
        "busy_decode": 348 * S,
        "queued": 4 * S,
        "tool_wait": 60 * S,
        "orchestrator": 4 * S,
        "ramp_up": 1 * S,
        "tail_bubble": 70 * S,
    }
    assert tuple(accounts.gpu_ns) == STATES
    assert accounts.total_gpu_ns == 500 * S
    assert accounts.by_worker["B", 1, "tail_bubble"] == 70 * S
    assert (accounts.busy_ns, accounts.idle_ns) == (361 * S, 139 * S)


@pytest.mark.parametrize(
    ("higher", "lower", "state"),
    [
        ("down", "weight_sync", "down"),
        ("weight_sync", "decode", "weight_sync"),
        ("decode", "reallocation", "busy_decode"),
        ("reallocation", "opaque", "reallocation"),
        ("prefill", "decode", "busy_mixed"),
        ("prefill", "move", "busy_prefill"),
        ("decode", "opaque", "busy_decode"),
        ("opaque", "move", "unknown"),
        ("move", "queued", "migration"),
        ("held", "tool", "queued"),
        ("queued", "tool", "queued"),
        ("tool", "live", "tool_wait"),
    ],
)
def test_of_two_observations_the_earlier_rule_decides(
    higher: Kind, lower: Kind, state: str
) -> None:
    assert one((higher, 0, 100), (lower, 0, 100)) == {state: 100}
    assert one((lower, 0, 100), (higher, 0, 100)) == {state: 100}


def test_what_telemetry_does_not_cover_is_unknown_and_never_idle() -> None:
    assert one(("decode", 20, 40), covered=(30, 60)) == {
        "unknown": 70, "busy_decode": 10, "tail_bubble": 20,
    }  # fmt: skip
    without = account(W, 1, [Lease("w", 1, 0, 100)], [])
    assert nonzero(without) == {"unknown": 100}


def test_before_between_and_after_its_trajectories_a_worker_starves_by_three_names() -> None:
    assert one(("decode", 10, 20), ("live", 50, 60)) == {
        "ramp_up": 10, "busy_decode": 10, "starved_gap": 30, "orchestrator": 10, "tail_bubble": 40,
    }  # fmt: skip


def test_a_worker_that_never_served_is_measured_against_the_fleet() -> None:
    leases = [Lease("w", 1, 0, 100), Lease("never", 2, 0, 100)]
    seen = [Activity("w", "decode", 10, 70, "t")]
    seen += [Activity(w, "covered", 0, 100) for w in ("w", "never")]
    accounts = account(W, 3, leases, seen)
    never = {state: ns for (w, _, state), ns in accounts.by_worker.items() if w == "never"}
    assert never == {"ramp_up": 20, "starved_gap": 120, "tail_bubble": 60}


def test_a_degree_that_changes_mid_window_counts_each_degree_for_its_time() -> None:
    seen = [Activity("w", "decode", 0, 100, "t"), Activity("w", "covered", 0, 100)]
    accounts = account(W, 4, [Lease("w", 1, -50, 30), Lease("w", 4, 40, 200)], seen)
    assert accounts.by_worker == {
        ("w", 1, "busy_decode"): 30,
        ("w", 4, "busy_decode"): 240,
        (None, 0, "unallocated"): 30 * 3 + 10 * 4,
    }
    assert sum(accounts.gpu_ns.values()) == 400


def test_an_engine_that_dies_and_returns_is_down_or_its_gpus_are_unallocated() -> None:
    seen = [Activity("w", "decode", 0, 100, "t"), Activity("w", "covered", 0, 100)]
    seen.append(Activity("w", "down", 20, 50))
    assert nonzero(account(W, 2, [Lease("w", 2, 0, 100)], seen)) == {
        "down": 60, "busy_decode": 140,
    }  # fmt: skip
    gone = account(W, 2, [Lease("w", 2, 0, 20), Lease("w", 2, 50, 100)], seen[:2])
    assert nonzero(gone) == {"busy_decode": 140, "unallocated": 60}


def test_of_two_leases_of_one_worker_the_one_that_started_last_holds() -> None:
    seen = [Activity("w", "covered", 0, 100)]
    accounts = account(W, 4, [Lease("w", 4, 60, 100), Lease("w", 1, 0, 100)], seen)
    assert accounts.by_worker["w", 1, "ramp_up"] == 60
    assert accounts.by_worker["w", 4, "ramp_up"] == 160


def test_leases_beyond_the_fleet_keep_the_sum_and_say_how_much_they_claimed() -> None:
    leases = [Lease("late", 4, 50, 100), Lease("early", 3, 0, 100)]
    seen = [Activity(w, "covered", 0, 100) for w in ("late", "early")]
    accounts = account(W, 4, leases, seen)
    assert sum(accounts.gpu_ns.values()) == 400
    assert accounts.by_worker["early", 3, "ramp_up"] == 300
    assert accounts.by_worker["late", 4, "ramp_up"] == 50
    assert accounts.over_leased_ns == 3 * 50


def test_overlapping_reversed_empty_and_outside_activities_count_at_most_once() -> None:
    assert one(
        ("decode", 0, 60), ("decode", 30, 90), ("decode", 95, 91), ("decode", 92, 92),
        ("decode", -50, -10), ("decode", 100, 150), ("live", -10, 200),
    ) == {"busy_decode": 90, "orchestrator": 10}  # fmt: skip


def test_reversed_intervals_are_reported() -> None:
    seen = [Activity("w", "decode", 9, 3, "t"), Activity("w", "covered", 0, 100)]
    assert account(W, 1, [Lease("w", 1, 50, 40)], seen).reversed_intervals == 2


def test_strips_merge_equal_neighbours_and_hold_all_of_the_time() -> None:
    seen = [Activity("w", "decode", lo, lo + 10, f"t{lo}") for lo in range(0, 50, 10)]
    seen.append(Activity("w", "covered", 0, 100))
    accounts = account(W, 3, [Lease("w", 2, 0, 100)], seen)
    assert accounts.strips == (
        Strip("w", 2, "busy_decode", 0, 50, 2),
        Strip("w", 2, "tail_bubble", 50, 100, 2),
        Strip(None, 0, "unallocated", 0, 100, 1),
    )


def test_a_fleet_without_time_gpus_or_leases_adds_up_to_what_it_has() -> None:
    assert sum(account(Window(5, 5), 8, [Lease("w", 8, 0, 9)], []).gpu_ns.values()) == 0
    assert account(W, 0, [Lease("w", 2, 0, 100)], []).over_leased_ns == 200
    assert nonzero(account(W, 3, [], [])) == {"unallocated": 300}


def test_epoch_nanoseconds_and_a_thousand_gpus_stay_exact() -> None:
    start = 1_790_000_000_123_456_789
    window = Window(start, start + 86_400 * S + 1)
    leases = [Lease(f"w{i}", 8, *window) for i in range(125)]
    accounts = account(window, 1000, leases, [])
    assert accounts.gpu_ns["unknown"] == 1000 * (86_400 * S + 1)


def test_a_window_that_ends_before_it_starts_and_a_strange_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="before its start"):
        account(Window(5, 4), 1, [], [])
    with pytest.raises(ValueError, match="0 GPUs or more"):
        account(W, -1, [], [])
    strange = Activity("w", "thinking", 0, 1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=f"no activity kind called 'thinking'.*{KINDS[0]}"):
        account(W, 1, [], [strange])
