"""What no span said is not known; what a span called zero is zero."""

from __future__ import annotations

from contextlib import closing

import duckdb
import pytest

from heddle.collector import ids
from heddle.collector.store import Store

S = 1_000_000_000
RUN = {"heddle.run.id": "run", "heddle.rollout.id": "ro", "heddle.gpus": 2}
SUMMED = {
    "output_tokens": "gen_ai.usage.output_tokens",
    "input_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "retractions": "heddle.retractions",
    "held_s": "heddle.held_s",
    "queue_s": "heddle.queue_s",
    "prefill_s": "heddle.prefill_s",
    "decode_s": "heddle.decode_s",
}


def step(emitter, trajectory, index, start_s, end_s, **said):
    attributes = {
        **RUN,
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": trajectory,
        "heddle.group.id": "g",
        "heddle.step.index": index,
        "heddle.worker.id": said.pop("worker", "w0"),
        "heddle.degree": 1,
        **{SUMMED.get(name, name): value for name, value in said.items()},
    }
    emitter.emit(
        "chat m",
        trace_id=ids.trace_id("run", trajectory),
        span_id=ids.step_span_id("run", trajectory, index),
        start_ns=start_s * S,
        end_ns=end_s * S,
        attributes=attributes,
    )


def end(emitter):
    where = {"trace_id": ids.trace_id("run", "rollout/ro"), "start_ns": S, "end_ns": 40 * S}
    span = ids.span_id("run", "rollout", "ro")
    emitter.emit("heddle.rollout", span_id=span, **where, attributes=RUN)
    emitter.flush(30)


@pytest.fixture
def told(collector):
    """Trajectories that say nothing, zero, and something in one of two steps."""
    emitter = collector.emitter()
    step(emitter, "silent", 0, 2, 8)
    step(emitter, "zero", 0, 2, 8, worker="w1", **dict.fromkeys(SUMMED, 0))
    step(emitter, "mixed", 0, 2, 4, held_s=0.5, queue_s=0.5, input_tokens=50)
    step(
        emitter, "mixed", 1, 5, 9,
        held_s=1.0, queue_s=0.5, prefill_s=0.5, decode_s=2.0,
        input_tokens=100, cached_tokens=40, output_tokens=7, retractions=2,
    )  # fmt: skip
    end(emitter)
    return collector


def test_sums_of_what_nobody_said_are_null_and_of_zeros_zero(told):
    frame = told.query("trajectories", run="run")
    of = {row["trajectory_id"]: row for row in frame.iter_rows(named=True)}
    assert {name: of["silent"][name] for name in SUMMED} == dict.fromkeys(SUMMED)
    assert {name: of["zero"][name] for name in SUMMED} == dict.fromkeys(SUMMED, 0)
    assert {name: of["mixed"][name] for name in SUMMED} == {
        "output_tokens": 7, "input_tokens": 150, "cached_tokens": 40, "retractions": 2,
        "held_s": 1.5, "queue_s": 1.0, "prefill_s": 0.5, "decode_s": 2.0,
    }  # fmt: skip
    peaks = [of[name]["peak_context_tokens"] for name in ("silent", "zero", "mixed")]
    assert peaks == [None, 0, 107]


def test_prompts_whose_cache_hits_nobody_told_are_no_misses(told):
    frame = told.query("trajectories", run="run")
    looked_up = dict(frame.select("trajectory_id", "looked_up_tokens").iter_rows())
    assert looked_up == {"silent": None, "zero": 0, "mixed": 100}


def test_time_in_steps_without_phases_is_unknown_beside_what_they_waited(told):
    frame = told.query("trajectories", run="run")
    unknown = dict(frame.select("trajectory_id", "unknown_s").iter_rows())
    assert unknown == {"silent": 6.0, "zero": 0.0, "mixed": 1.0}


def test_a_straggler_without_phases_is_unknown_and_not_its_orchestrator(told):
    found = told.query("stragglers", run="run", rollout="ro")
    causes = dict(found.select("trajectory_id", "cause").iter_rows())
    assert causes == {"silent": "unknown", "zero": "orchestrator", "mixed": "decode"}


def test_tails_count_only_who_told(told):
    tail = told.query("tail", run="run")
    assert dict(tail.select("metric", "count").iter_rows()) == {
        "output_tokens": 2, "steps": 3, "duration_s": 3, "tool_s": 3,
    }  # fmt: skip
    by_worker = told.query("tail_slices", run="run", by="worker")
    tokens = by_worker.filter(metric="output_tokens").select("key", "count", "max")
    assert sorted(tokens.iter_rows()) == [("w0", 1, 7.0), ("w1", 1, 0.0)]


def test_a_metric_nobody_told_has_no_tail(collector):
    emitter = collector.emitter()
    step(emitter, "silent", 0, 2, 8)
    end(emitter)
    for query, filters in (("tail", {}), ("tail_slices", {"by": "task"}), ("drift", {})):
        metrics = collector.query(query, run="run", **filters)["metric"].to_list()
        assert metrics == ["steps", "duration_s", "tool_s"], query
    for query in ("rollouts", "groups"):
        assert collector.query(query, run="run")["output_tokens"].to_list() == [None], query
    spots = collector.query("hot_spots", run="run", rollout="ro")
    assert spots.select("output_tokens", "times_mean").rows() == [(None, None)]


def test_a_remainder_of_which_a_step_says_nothing_is_no_truth(collector):
    emitter = collector.emitter()
    said = {f"heddle.predicted.p{q}": float(q) for q in (10, 50, 90)}
    step(emitter, "t", 0, 2, 4, output_tokens=60, **said)
    step(emitter, "t", 1, 5, 6, **said)
    step(emitter, "t", 2, 7, 8, output_tokens=50, **said)
    end(emitter)
    found = collector.query("calibration", run="run")
    assert found.select("steps", "mae_tokens").rows() == [(1, 0.0)]


def test_sums_that_an_earlier_heddle_kept_are_made_anew(tmp_path):
    path = tmp_path / "h.duckdb"
    Store(path).close()
    with duckdb.connect(str(path)) as connection:
        for view in ("groups", "rollouts", "workers", "trajectories", "tool_calls"):
            connection.execute(f"DROP VIEW IF EXISTS {view}")
        for table in ("rolled_states", "rolled_trajectories"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN unknown_ns")
        connection.execute("UPDATE rolled_of SET definition = 'of an earlier one'")
        connection.execute(
            "INSERT INTO spans (run_id, rollout_id, trajectory_id, trace_id, span_id, op,"
            " start_ns, end_ns, received_ns, status, held_ns)"
            " VALUES ('run', 'ro', 't', repeat('a', 32), repeat('b', 16), 'chat',"
            " 1, 31, 1, 'ok', 10)"
        )
    with closing(Store(path)) as store, store.reading() as cursor:
        asked = "SELECT unknown_ns, held_ns, queue_ns, cached_tokens FROM trajectories"
        assert cursor.execute(asked).fetchall() == [(20, 10, None, None)]
