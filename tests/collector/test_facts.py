"""Do stored rows become the right intervals, and nothing that was not seen become busy or idle?"""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from heddle.collector import records
from heddle.collector.accounting import account
from heddle.collector.activities import Activity
from heddle.collector.decompose import decompose
from heddle.collector.facts import LONGEST_NS, Facts, Slice, gather, slice_frame
from heddle.collector.grants import Lease

Row = dict[str, Any]


def frame(query: str, rows: list[Row]) -> pl.DataFrame:
    schema = records.schema(query)
    return pl.DataFrame([{k: row.get(k) for k in schema} for row in rows], schema=schema)


def step(index: int, start: int, end: int | None, *parts: int | None, **more: Any) -> Row:
    """A step of trajectory t on worker a, with held, queue, prefill, decode."""
    names = ("held_ns", "queue_ns", "prefill_ns", "decode_ns")
    row: Row = {"trajectory_id": "t", "group_id": "g", "worker_id": "a", "degree": 1}
    row |= {"step_index": index, "start_ns": start, "end_ns": end}
    return row | dict(zip(names, parts, strict=False)) | more


def tool(start: int, end: int | None, name: str = "bash") -> Row:
    return {"trajectory_id": "t", "tool_name": name, "start_ns": start, "end_ns": end}


def trajectory(start: int, end: int | None) -> Row:
    return {"trajectory_id": "t", "group_id": "g", "start_ns": start, "end_ns": end}


def worker(worker_id: str, end: int | None = 100, degree: int = 1, start: int = 0) -> Row:
    return {"worker_id": worker_id, "degree": degree, "start_ns": start, "end_ns": end}


def facts(
    steps: list[Row], *, tools: list[Row] | None = None, moves: list[Row] | None = None,
    workers: list[Row] | None = None, trajectories: list[Row] | None = None,
    end: int | None = 100, gpus: int | None = 2, now: int = 100,
) -> Facts:  # fmt: skip
    return gather(
        {"start_ns": 0, "end_ns": end, "gpus": gpus},
        steps=frame("steps", steps),
        tool_calls=frame("tool_calls", tools or []),
        moves=frame("moves", moves or []),
        workers=frame("workers", [worker("a"), worker("b")] if workers is None else workers),
        trajectories=frame("trajectories", trajectories or []),
        now_ns=now,
    )


def seen(found: Facts, *kinds: str) -> set[tuple[str, str, int, int]]:
    return {(x.worker_id, x.kind, *x[2:4]) for x in found.activities if x.kind in kinds}


def states(found: Facts, worker_id: str) -> dict[str, int]:
    accounts = account(found.window, found.gpus, found.leases, found.activities)
    assert sum(accounts.gpu_ns.values()) == accounts.total_gpu_ns
    return {state: ns for (w, _, state), ns in accounts.by_worker.items() if w == worker_id}


def test_a_step_is_held_queued_prefilled_and_decoded_in_order_and_the_rest_is_live() -> None:
    found = facts([step(0, 10, 60, 5, 10, 2, 20)], trajectories=[trajectory(10, 60)])
    assert seen(found, "held", "queued", "prefill", "decode", "live", "opaque") == {
        ("a", "held", 10, 15), ("a", "queued", 15, 25), ("a", "prefill", 25, 27),
        ("a", "decode", 27, 47), ("a", "live", 10, 60),
    }  # fmt: skip
    assert states(found, "a") == {
        "ramp_up": 10, "queued": 15, "busy_prefill": 2, "busy_decode": 20, "orchestrator": 13,
        "tail_bubble": 40,
    }  # fmt: skip


def sliced(row: Row, *own: Slice) -> Facts:
    frames = {name: frame(name, []) for name in ("tool_calls", "moves")}
    return gather(
        {"start_ns": 0, "end_ns": 100, "gpus": 2},
        steps=frame("steps", [row]),
        workers=frame("workers", [worker("a"), worker("b")]),
        trajectories=frame("trajectories", [trajectory(10, 60)]),
        now_ns=100,
        slices=slice_frame({"t": own}),
        **frames,
    )


def test_an_engines_own_slices_replace_timings_and_show_a_retraction_as_waiting() -> None:
    own = (
        Slice("queued", 15, 20), Slice("prefill", 20, 24), Slice("decode", 24, 30),
        Slice("queued", 30, 40),
        Slice("prefill", 40, 45), Slice("decode", 45, 58),
    )  # fmt: skip
    found = sliced(step(0, 10, 60, 5, 5, 4, 34), *own)
    assert states(found, "a") == {
        "ramp_up": 10, "queued": 20, "busy_prefill": 9, "busy_decode": 19, "orchestrator": 2,
        "tail_bubble": 40,
    }  # fmt: skip


def test_a_slice_that_was_lost_is_replaced_by_the_timings_or_unknown() -> None:
    lost_decode = (Slice("queued", 15, 20), Slice("prefill", 20, 24))
    found = sliced(step(0, 10, 60, 5, 5, 4, 36), *lost_decode)
    assert states(found, "a")["busy_decode"] == 36
    found = sliced(step(0, 10, 60), *lost_decode)
    assert states(found, "a") == {"ramp_up": 10, "unknown": 46, "busy_prefill": 4,
                                  "tail_bubble": 40}  # fmt: skip


def test_segments_that_overrun_the_step_are_cut_at_its_end() -> None:
    found = facts([step(0, 10, 30, 5, -3, 10, 50)])
    assert seen(found, "held", "prefill", "decode") == {
        ("a", "held", 10, 15), ("a", "prefill", 15, 25), ("a", "decode", 25, 30),
    }  # fmt: skip


def test_a_trajectory_stays_home_through_its_tool_until_a_step_starts_elsewhere() -> None:
    steps = [step(0, 10, 20, 0, 0, 0, 10), step(1, 50, 60, 0, 0, 0, 10, worker_id="b")]
    found = facts(steps, tools=[tool(20, 45)], trajectories=[trajectory(5, 70)])
    assert seen(found, "tool", "live") == {
        ("", "live", 5, 10), ("a", "live", 10, 50), ("b", "live", 50, 70), ("a", "tool", 20, 45),
    }  # fmt: skip
    assert states(found, "a")["tool_wait"] == 25
    assert states(found, "b") == {
        "ramp_up": 50, "busy_decode": 10, "orchestrator": 10, "tail_bubble": 30,
    }  # fmt: skip


def test_a_tool_that_lasts_across_a_change_of_home_counts_for_each_home() -> None:
    steps = [step(0, 0, 10, 0, 0, 0, 10), step(1, 30, 40, 0, 0, 0, 10, worker_id="b")]
    found = facts(steps, tools=[tool(10, 50)])
    assert seen(found, "tool") == {("a", "tool", 10, 30), ("b", "tool", 30, 50)}


def test_a_step_whose_worker_is_not_known_is_at_home_where_the_trajectory_was() -> None:
    steps = [step(0, 0, 10, 0, 0, 0, 10), step(1, 20, None, worker_id=None)]
    found = facts(steps, end=None, now=60, workers=[worker("a", None), worker("b", None)])
    assert ("a", "opaque", 20, 60) in seen(found, "opaque")


def test_held_time_before_the_worker_is_known_counts_for_the_one_that_served() -> None:
    steps = [step(0, 0, 10, 10, 0, None, None, worker_id=None), step(1, 12, 30, 3, 0, 5, 5)]
    assert ("a", "held", 0, 10) in seen(facts(steps), "held")


def test_running_steps_and_tools_last_until_the_watermark_and_the_window_is_provisional() -> None:
    found = facts([step(0, 10, None, 4)], end=None, now=50, workers=[worker("a", None)])
    assert found.provisional
    assert found.window == (0, 50)
    assert states(found, "a") == {"ramp_up": 10, "queued": 4, "unknown": 36}
    done = [step(0, 10, 20, 0, 0, 0, 10)]
    found = facts(done, tools=[tool(20, None)], end=None, now=50, workers=[worker("a", None)])
    assert states(found, "a") == {"ramp_up": 10, "busy_decode": 10, "tool_wait": 30}


def test_a_running_step_beside_a_known_decode_leaves_the_worker_busy() -> None:
    steps = [step(0, 10, None), step(0, 10, 40, 0, 0, 0, 30, trajectory_id="u")]
    found = facts(steps, end=None, now=50, workers=[worker("a", None)])
    assert states(found, "a") == {"ramp_up": 10, "busy_decode": 30, "unknown": 10}


def test_a_step_without_timings_is_unknown_and_neither_busy_nor_idle() -> None:
    found = facts([step(0, 10, 60, 5, None, None, None)])
    assert states(found, "a") == {"ramp_up": 10, "queued": 5, "unknown": 45, "tail_bubble": 40}


def test_a_lost_step_leaves_a_hole_in_the_indices_that_is_unknown() -> None:
    steps = [step(0, 0, 20, 0, 0, 0, 20), step(2, 50, 60, 0, 0, 0, 10)]
    assert states(facts(steps), "a") == {"busy_decode": 30, "unknown": 30, "tail_bubble": 40}
    steps[1]["step_index"] = 1
    assert states(facts(steps), "a") == {"busy_decode": 30, "orchestrator": 30, "tail_bubble": 40}


def test_a_step_whose_end_was_lost_lasts_until_the_next_one() -> None:
    steps = [step(0, 0, None), step(1, 50, 60, 0, 0, 0, 10)]
    assert states(facts(steps), "a") == {"unknown": 50, "busy_decode": 10, "tail_bubble": 40}


def test_a_trajectory_without_its_own_span_ends_with_its_last_step_once_the_rollout_is_over() -> (
    None
):
    steps = [step(0, 10, 20, 0, 0, 0, 10)]
    assert states(facts(steps, trajectories=[trajectory(10, None)]), "a")["tail_bubble"] == 80
    live = facts(steps, trajectories=[trajectory(10, None)], end=None, workers=[worker("a", None)])
    assert states(live, "a") == {"ramp_up": 10, "busy_decode": 10, "orchestrator": 80}


@pytest.mark.parametrize(
    ("row", "exposed"),
    [
        ({"exposed_s": 4e-9, "hidden_s": 6e-9}, (46, 50)),
        ({"exposed_s": 0.0}, (50, 50)),
        ({"hidden_s": 7e-9}, (47, 50)),
        ({}, (40, 50)),
        ({"exposed_s": 1.0}, (40, 50)),
    ],
)
def test_only_the_exposed_end_of_a_move_counts_and_on_its_target(
    row: Row, exposed: tuple[int, int]
) -> None:
    move = {"trajectory_id": "t", "move_target": "b", "start_ns": 40, "end_ns": 50} | row
    found = facts([step(0, 10, 30, 0, 0, 0, 20)], moves=[move])
    assert seen(found, "move") == ({("b", "move", *exposed)} if exposed[0] < exposed[1] else set())


def test_a_worker_known_only_from_steps_is_leased_for_the_window_and_gpus_are_counted() -> None:
    found = facts([step(0, 10, 60, 0, 0, 0, 50, degree=4)], workers=[], gpus=None)
    assert found.leases == (Lease("a", 4, 0, 100),)
    assert found.gpus == 4
    assert states(found, "a") == {"ramp_up": 40, "busy_decode": 200, "tail_bubble": 160}


def test_a_worker_that_changes_degree_has_a_lease_for_each() -> None:
    rows = [worker("a", 40, 1), worker("a", 100, 2, 50)]
    found = facts([], workers=rows, gpus=None)
    assert found.leases == (Lease("a", 1, 0, 40), Lease("a", 2, 50, 100))
    assert found.gpus == 2


def test_a_worker_that_vanished_without_its_span_is_unknown_after_its_last_activity() -> None:
    found = facts([step(0, 10, 30, 0, 0, 0, 20)], workers=[worker("a", None)])
    assert states(found, "a") == {"ramp_up": 10, "busy_decode": 20, "unknown": 70}


def test_activities_of_the_fleet_join_those_of_the_trajectories() -> None:
    empty: dict[str, Any] = {
        q: frame(q, []) for q in ("steps", "tool_calls", "moves", "trajectories")
    }
    down = Activity("a", "down", 10, 30)
    rollout = {"start_ns": 0, "end_ns": 100, "gpus": 1}
    workers = frame("workers", [worker("a")])
    found = gather(rollout, workers=workers, **empty, now_ns=100, fleet=[down])
    assert states(found, "a") == {"ramp_up": 80, "down": 20}


def test_a_rollout_without_a_span_begins_with_its_first_row() -> None:
    empty: dict[str, Any] = {
        q: frame(q, []) for q in ("tool_calls", "moves", "trajectories", "workers")
    }
    steps = frame("steps", [step(0, 30, 60, 0, 0, 0, 30)])
    found = gather({"start_ns": None, "end_ns": None}, steps=steps, **empty, now_ns=70)
    assert found.window == (30, 70)
    nothing = gather({}, steps=steps.clear(), **empty, now_ns=70)
    assert (nothing.window, nothing.gpus) == ((70, 70), 0)


def test_an_engine_that_died_holds_its_gpus_until_it_is_back_though_its_lease_ended() -> None:
    workers = [worker("a", 40, degree=2), worker("a", None, degree=2, start=70)]
    found = gather(
        {"start_ns": 0, "end_ns": None, "gpus": 2},
        steps=frame("steps", [step(0, 10, 40, 0, 0, 0, 30)]),
        tool_calls=frame("tool_calls", []),
        moves=frame("moves", []),
        workers=frame("workers", workers),
        trajectories=frame("trajectories", []),
        now_ns=100,
        fleet=[Activity("a", "down", 40, 70)],
    )
    assert states(found, "a")["down"] == 2 * 30
    accounts = account(found.window, found.gpus, found.leases, found.activities)
    assert accounts.gpu_ns["unallocated"] == 0


def test_trajectories_whose_clocks_are_decades_apart_keep_their_own_times():
    steps: list[Row] = []
    tools: list[Row] = []
    for k, origin in enumerate((0, 900_000_000 * 10**9, 1_795_000_000 * 10**9)):
        whose = {"trajectory_id": f"t{k}"}
        for index, worker_id in enumerate("ab"):
            at = origin + 100 * index
            steps.append(step(index, at, at + 60, 10, 0, 10, 40, worker_id=worker_id) | whose)
        tools.append(tool(origin + 60, origin + 95) | whose)
    found = facts(steps, tools=tools, end=1_795_000_001 * 10**9, now=1_795_000_001 * 10**9)
    told = decompose(found, frame("steps", steps), {})
    parts = ("held_ns", "prefill_ns", "unsplit_ns", "tool_ns", "orchestrator_ns")
    assert told.select(parts).rows() == [
        (20, 20, 80, 35, told["duration_ns"][k] - 155) for k in range(3)
    ]  # fmt: skip
    assert {(x.worker_id, x.end_ns - x.start_ns) for x in found.activities if x.kind == "tool"} == {
        ("a", 35)
    }


def test_a_clock_decades_off_and_absurd_counts_of_gpus_leave_exact_accounts() -> None:
    now, hour = 1_795_000_000 * 10**9, 3_600 * 10**9
    steps = [step(k, k * now, k * now + 60, 0, 0, 0, 60) for k in (0, 1)]
    leased = [worker(w, None, 2**62, now - hour) for w in ("a", "b")]
    found = facts(steps, workers=leased, end=None, gpus=2**62, now=now + 60)
    assert found.window == (now + 60 - LONGEST_NS, now + 60)
    for worker_id in ("a", "b"):
        assert all(ns > 0 for ns in states(found, worker_id).values())
