"""Do the engines' own counters refine the partition without changing its sum?"""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.collector.accounting import account
from heddle.collector.activities import Activity
from heddle.collector.counters import HOST_OVERHEAD, counted, refined
from heddle.collector.errors import QueryRefused
from heddle.collector.fleet import activities
from heddle.collector.grants import Lease, Window
from heddle.collector.laws import parse_laws, spell_laws
from heddle.collector.prometheus import readings

S = 10**9
# One /metrics answer of a genuine SGLang 0.5.23 on the CPU, priority scheduling on, three requests
# just served; cut to the families that matter and the model's path to its name.
RECORDED = (Path(__file__).parent / "sglang_0_5_23_metrics.txt").read_text()
# Composed with the same names: what a CPU engine cannot have (tensor parallel 2, device timer).
COMPOSED = """# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",pp_rank="0",tp_rank="0"} 14.0
sglang:num_running_reqs{model_name="m",pp_rank="0",priority="0",tp_rank="0"} 8.0
sglang:num_running_reqs{model_name="m",pp_rank="0",priority="10",tp_rank="0"} 6.0
sglang:num_running_reqs{model_name="m",pp_rank="0",priority="0",tp_rank="1"} 8.0
sglang:num_running_reqs{model_name="m",pp_rank="0",priority="10",tp_rank="1"} 6.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 3.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.94
sglang:token_usage{model_name="m",tp_rank="1"} 0.94
sglang:gen_throughput{model_name="m",tp_rank="0"} NaN
sglang:cache_hit_rate{model_name="a \\"quoted\\" name",tp_rank="0"} +Inf
# TYPE sglang:forward_execution_seconds_total counter
sglang:forward_execution_seconds_total{category="prefill",tp_rank="0"} 10.5
sglang:forward_execution_seconds_total{category="decode",tp_rank="0"} 80.25
sglang:forward_execution_seconds_total{category="idle",tp_rank="0"} 7.0
sglang:forward_execution_seconds_total{category="decode",tp_rank="1"} 80.0
sglang:scheduler_idle_seconds_total{tp_rank="0"} 4.5e+00
sglang:num_retracted_requests_total{tp_rank="0"} 12.0 1795992111839
this is no line
"""


def test_metrics_of_a_genuine_engine_are_read_and_its_nan_is_not_a_number():
    assert "fwd_occupancy" in RECORDED
    assert "NaN" in RECORDED
    assert readings(RECORDED) == {
        "idle_s": 2.783243384,
        "running": 0.0,
        "queue": 0.0,
        "kv_usage": 0.0,
    }


def test_bands_without_a_total_add_up():
    text = COMPOSED.replace('num_running_reqs{model_name="m",pp_rank="0",tp_rank="0"} 14.0', "x y")
    assert readings(text)["running"] == 14.0


def test_ranks_bands_and_nan_are_not_counted_twice():
    assert readings(COMPOSED) == {
        "forward_s": 90.75,
        "idle_s": 4.5,
        "retracted": 12.0,
        "running": 14.0,
        "queue": 3.0,
        "kv_usage": 0.94,
    }


def test_what_an_engine_does_not_say_is_absent_not_zero():
    assert readings("sglang:forward_execution_seconds_total NaN\n") == {}


def polls(*rows: tuple[int, bool, float | None]) -> pl.DataFrame:
    names = ("forward_s", "idle_s", "retracted", "running", "queue", "kv_usage")
    schema = {"worker_id": pl.String, "at_ns": pl.Int64, "ok": pl.Boolean}
    data = [
        {"worker_id": "w", "at_ns": at * S, "ok": ok, "forward_s": forward, "queue": float(at)}
        for at, ok, forward in rows
    ]
    return pl.DataFrame(data, schema=schema | dict.fromkeys(names, pl.Float64))


def busy(degree: int = 2):
    """One worker, decoding over [0, 60) of 100 s, prefilling over [60, 80)."""
    window = Window(0, 100 * S)
    seen = [
        Activity("w", "covered", 0, 100 * S),
        Activity("w", "decode", 0, 60 * S, "t"),
        Activity("w", "prefill", 60 * S, 80 * S, "t"),
    ]
    return account(window, degree, [Lease("w", degree, 0, 100 * S)], seen)


def test_forward_time_below_residence_becomes_host_overhead_and_keeps_the_sum():
    accounts = busy()
    (row,) = counted(accounts, polls((0, True, 5.0), (50, True, 25.0), (100, True, 65.0)))
    assert (row.forward_ns, row.residence_ns, row.host_overhead_ns) == (60 * S, 80 * S, 20 * S)
    assert not row.host_bound
    cells = refined(accounts, [row])
    assert sum(cells.values()) == accounts.total_gpu_ns
    assert cells["w", 2, HOST_OVERHEAD] == 40 * S
    assert cells["w", 2, "busy_decode"] == 90 * S
    assert cells["w", 2, "busy_prefill"] == 30 * S


def test_a_counter_that_falls_is_a_restart_and_nothing_is_compared_across_it():
    (row,) = counted(
        busy(), polls((0, True, 10.0), (20, True, 24.0), (40, True, 1.0), (60, True, 9.0))
    )
    assert (row.restarts, row.forward_ns, row.covered_ns) == (1, 22 * S, 40 * S)


def test_a_poll_that_failed_is_bridged_by_nothing():
    (row,) = counted(busy(), polls((0, True, 0.0), (20, True, 10.0), (40, False, None),
                                   (60, True, 30.0), (80, True, 40.0)))  # fmt: skip
    assert (row.failed, row.samples, row.covered_ns) == (1, 5, 40 * S)
    assert (row.forward_ns, row.residence_ns) == (20 * S, 40 * S)


def test_an_engine_that_counts_no_forward_time_refines_nothing():
    accounts = busy()
    (row,) = counted(accounts, polls((0, True, None), (90, True, None)))
    assert (row.forward_ns, row.host_overhead_ns, row.host_bound) == (None, None, False)
    assert refined(accounts, [row]) == accounts.by_worker
    assert row.queue == 90


def test_more_forward_than_residence_takes_nothing_away():
    accounts = busy()
    (row,) = counted(accounts, polls((0, True, 0.0), (100, True, 95.0)))
    assert row.host_overhead_ns == 0
    assert refined(accounts, [row]) == accounts.by_worker


@given(st.lists(st.floats(0, 50), min_size=2, max_size=6), st.integers(1, 8))
def test_refinement_never_changes_the_sum(steps: list[float], degree: int):
    accounts = busy(degree)
    rows = [(10 * k, True, sum(steps[: k + 1])) for k in range(len(steps))]
    cells = refined(accounts, counted(accounts, polls(*rows)))
    assert sum(cells.values()) == accounts.total_gpu_ns
    assert all(amount >= 0 for amount in cells.values())


FLEET = {
    "op": pl.String, "worker_id": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64,
    "state": pl.String,
}  # fmt: skip


def test_two_failed_polls_in_a_row_are_down_and_one_is_a_slow_answer():
    rows = pl.DataFrame([], schema=FLEET)
    answered = (0, 10, 25)
    seen = polls(*((at, at in answered, None) for at in (0, 5, 10, 15, 20, 25, 30, 35)))
    assert activities(rows, seen, ["w"], 50 * S) == [
        Activity("w", "down", 15 * S, 25 * S),
        Activity("w", "down", 30 * S, 50 * S),
    ]


def test_a_fleet_span_without_a_worker_concerns_all_and_a_running_one_lasts():
    rows = pl.DataFrame(
        [
            ("heddle.weight_sync", None, 1, 4, "finished"),
            ("heddle.reallocate", "a", 5, None, "running"),
            ("heddle.down", "b", 6, None, "abandoned"),
        ],
        schema=FLEET,
        orient="row",
    )
    assert activities(rows, polls(), ["b", "a"], 9) == [
        Activity("a", "weight_sync", 1, 4),
        Activity("b", "weight_sync", 1, 4),
        Activity("a", "reallocation", 5, 9),
    ]


def test_laws_survive_spelling_and_a_wrong_one_is_a_sentence():
    laws = parse_laws(["1:8.2,0.0156,0.0374; 8:2.7,0.009,0.005"])
    assert laws[1].base_ns_per_token == pytest.approx(8.2e6)
    assert laws[1].context_ns_per_token == pytest.approx(37.4)
    assert parse_laws([spell_laws(laws)]) == pytest.approx(laws) or spell_laws(laws)
    with pytest.raises(QueryRefused, match=r"'1:a,b,c' is no decode law; say degree:a,b,c in ms"):
        parse_laws(["1:a,b,c"])
