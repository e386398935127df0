"""From the tracing library, over real HTTP and gRPC, to the named queries."""

from __future__ import annotations

import logging
import math

import polars as pl
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from heddle.collector import ids
from heddle.collector.client import CollectorClient
from heddle.collector.errors import CollectorUnreachable, QueryRefused
from heddle.collector.queries.catalog import QUERIES
from heddle.collector.records import FRAMES, schema
from heddle.collector.tracing import Emitter, Tracer

S = 1_000_000_000
RUN = {"heddle.run.id": "run", "heddle.rollout.id": "ro"}
ROLLOUT = {
    "trace_id": ids.trace_id("run", "rollout/ro"),
    "span_id": ids.span_id("run", "rollout", "ro"),
}


def step(emitter, trajectory, index, start_s, end_s, **more):
    emitter.emit(
        "chat m",
        trace_id=ids.trace_id("run", trajectory),
        span_id=ids.step_span_id("run", trajectory, index),
        start_ns=start_s * S,
        end_ns=end_s * S,
        attributes={
            **RUN,
            "gen_ai.operation.name": "chat",
            "gen_ai.conversation.id": trajectory,
            "heddle.step.index": index,
            "heddle.worker.id": "w0",
            "heddle.degree": 2,
            **more,
        },
    )


def tool(emitter, trajectory, index, start_s, end_s, **more):
    emitter.emit(
        "execute_tool bash",
        trace_id=ids.trace_id("run", trajectory),
        span_id=ids.tool_span_id("run", trajectory, index, len(more)),
        start_ns=start_s * S,
        end_ns=end_s * S,
        attributes={
            **RUN,
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.conversation.id": trajectory,
            "gen_ai.tool.name": "bash",
            "heddle.step.index": index,
            **more,
        },
    )


def end_rollout(emitter, **more):
    attributes = {**RUN, "heddle.gpus": 4, "heddle.trajectories.expected": 2, **more}
    where = {**ROLLOUT, "start_ns": 0 + S, "end_ns": 21 * S}
    emitter.emit("heddle.rollout", **where, attributes=attributes)


def one(frame: pl.DataFrame) -> dict:
    assert frame.height == 1
    return frame.row(0, named=True)


@pytest.mark.parametrize("door", ["http", "grpc"])
def test_a_real_exporter_delivers_through_either_door(collector, door):
    exporter = (
        HttpExporter(collector.traces)
        if door == "http"
        else GrpcExporter(f"127.0.0.1:{collector.ports.grpc}", insecure=True)
    )
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("t").start_as_current_span("chat m") as span:
        span.set_attribute("gen_ai.usage.input_tokens", 12)
        span.add_event("seen", {"n": 1})
    provider.shutdown()
    found = one(collector.query("spans", trace=f"{span.get_span_context().trace_id:032x}"))
    assert found["attrs"] == '{"gen_ai.usage.input_tokens":12}'
    assert '"seen"' in found["events"]


def test_a_running_trajectory_is_visible_from_its_marker_with_its_finished_steps(collector):
    emitter = collector.emitter()
    tracer = Tracer(emitter, "run", "ro", now_ns=lambda: 5 * S)
    with tracer.trajectory("t1", group="g1", sample_index=3, task="coding") as trajectory:
        assert emitter.flush(30)
        row = one(collector.query("trajectories", run="run"))
        assert (row["state"], row["steps"], row["group_id"]) == ("running", 0, "g1")
        step(emitter, "t1", 0, 6, 8, **{"gen_ai.usage.output_tokens": 40})
        emitter.flush(30)
        row = one(collector.query("trajectories", run="run"))
        assert (row["state"], row["steps"], row["output_tokens"]) == ("running", 1, 40)
        assert (row["end_ns"], row["duration_s"]) == (None, 3.0)
        trajectory.finish(reward=0.5, outcome="finished", truncated=False)
    emitter.flush(30)
    row = one(collector.query("trajectories", run="run", state="finished"))
    assert (row["reward"], row["outcome"], row["truncated"]) == (0.5, "finished", False)
    assert (row["sample_index"], row["task"], row["worker_id"]) == (3, "coding", "w0")


def test_a_step_replaces_its_marker_even_if_the_marker_comes_late_or_twice(collector):
    emitter = collector.emitter()
    where = {
        "trace_id": ids.trace_id("run", "t1"),
        "span_id": ids.step_span_id("run", "t1", 0),
        "at_ns": S,
        "attributes": {**RUN, "gen_ai.conversation.id": "t1", "heddle.step.index": 0},
    }
    emitter.start("chat", **where)
    emitter.start("chat", **where)
    emitter.flush(30)
    assert one(collector.query("steps", run="run"))["state"] == "running"
    step(emitter, "t1", 0, 1, 3)
    emitter.flush(30)
    emitter.start("chat", **where)
    emitter.flush(30)
    row = one(collector.query("steps", run="run"))
    assert (row["state"], row["end_ns"]) == ("finished", 3 * S)


def test_a_marker_whose_span_never_comes_is_abandoned_when_its_rollout_ends(collector):
    emitter = collector.emitter()
    emitter.start(
        "invoke_agent",
        trace_id=ids.trace_id("run", "t1"),
        span_id=ids.trajectory_span_id("run", "t1"),
        at_ns=S,
        attributes={**RUN, "gen_ai.conversation.id": "t1"},
    )
    end_rollout(emitter)
    emitter.flush(30)
    assert one(collector.query("trajectories", run="run"))["state"] == "abandoned"


def test_a_trajectory_known_from_its_steps_alone_ends_with_its_rollout(collector):
    emitter = collector.emitter()
    step(emitter, "t1", 0, 2, 4)
    step(emitter, "t1", 1, 6, 9)
    emitter.flush(30)
    assert one(collector.query("trajectories", run="run"))["state"] == "running"
    end_rollout(emitter)
    emitter.flush(30)
    row = one(collector.query("trajectories", run="run"))
    assert (row["state"], row["end_ns"], row["duration_s"]) == ("finished", 9 * S, 7.0)


def test_inferred_tool_calls_hide_where_the_client_reports_any(collector):
    emitter = collector.emitter()
    tool(emitter, "t1", 0, 1, 5, **{"heddle.tool.inferred": True})
    tool(emitter, "t1", 0, 2, 4)
    tool(emitter, "t2", 0, 1, 7, **{"heddle.tool.inferred": True})
    emitter.flush(30)
    calls = collector.query("tool_calls", run="run").select("trajectory_id", "inferred")
    assert sorted(calls.rows()) == [("t1", False), ("t2", True)]
    sums = collector.query("trajectories", run="run").select(
        "trajectory_id", "tool_calls", "tool_s"
    )
    assert sorted(sums.rows()) == [("t1", 1, 2.0), ("t2", 1, 6.0)]


def test_gpu_time_sums_exactly_to_gpus_times_wall(collector):
    emitter = collector.emitter()
    step(emitter, "t1", 0, 2, 8, **{"heddle.prefill_s": 1.0, "heddle.decode_s": 5.0})
    end_rollout(emitter)
    emitter.flush(30)
    accounts = one(collector.query("accounts", run="run", rollout="ro"))
    assert (accounts["wall_ns"], accounts["provisional"]) == (20 * S, False)
    partition = collector.query("partition", run="run", rollout="ro")
    assert partition["gpu_ns"].sum() == accounts["total_gpu_ns"] == 80 * S
    busy = dict(partition.select("state", "gpu_ns").iter_rows())
    assert (busy["busy_prefill"], busy["busy_decode"]) == (2 * S, 10 * S)
    assert collector.query("strips", rollout="ro").height > 0


def test_a_rollout_row_adds_its_trajectories_up(collector):
    emitter = collector.emitter()
    for name in ("t1", "t2"):
        step(emitter, name, 0, 2, 4, **{"gen_ai.usage.output_tokens": 10})
        tool(emitter, name, 0, 4, 5)
    end_rollout(emitter, **{"heddle.rollout.kind": "train", "heddle.layout": "2,2"})
    emitter.flush(30)
    row = one(collector.query("rollouts", run="run"))
    assert (row["state"], row["kind"], row["layout"], row["gpus"]) == (
        "finished",
        "train",
        "2,2",
        4,
    )
    assert (row["trajectories"], row["finished"], row["steps"], row["tool_calls"]) == (2, 2, 2, 2)
    assert (row["output_tokens"], row["makespan_s"], row["expected"]) == (20, 20.0, 2)


def test_history_knows_only_rollouts_that_began_before(collector):
    emitter = collector.emitter()
    coding = {"heddle.task": "coding", "heddle.group.id": "g"}
    step(emitter, "t1", 0, 2, 4, **coding, **{"gen_ai.usage.output_tokens": 8})
    step(emitter, "t2", 0, 2, 4, **coding, **{"gen_ai.usage.output_tokens": 2})
    cut = {"gen_ai.usage.output_tokens": 20, "heddle.truncated": True}
    step(emitter, "t3", 0, 2, 4, **coding, **cut)
    step(emitter, "t3", 1, 5, 6, **coding, **cut)
    end_rollout(emitter)
    later = {"trace_id": "f" * 32, "span_id": "f" * 16, "start_ns": 30 * S, "end_ns": 31 * S}
    emitter.emit("heddle.rollout", **later, attributes={**RUN, "heddle.rollout.id": "later"})
    emitter.flush(30)
    row = one(collector.query("history", run="run", before_rollout="later"))
    assert (row["task"], row["trajectories"], row["mean_steps"]) == (
        "coding",
        2,
        pytest.approx(4 / 3),
    )
    assert (row["truncated"], row["mean_tokens"]) == (1, pytest.approx((8 + 2 + 40) / 3))
    assert row["mean_log_tokens"] == pytest.approx((math.log(8) + math.log(2)) / 2)
    assert row["mean_log_truncated"] == pytest.approx(math.log(40))
    assert collector.query("history", run="run", before_rollout="ro").is_empty()


def test_every_query_gives_its_columns_with_and_without_rows(collector):
    for name, query in QUERIES.items():
        filters = {query.needs[0]: "ro"} if query.needs else {}
        if "rollout" in query.needs:
            filters = {"rollout": "ro"}
        assert dict(collector.query(name, **filters).schema) == schema(name)
    assert QUERIES.keys() == FRAMES.keys()


def test_a_limit_says_n_of_m(collector):
    emitter = collector.emitter()
    for index in range(5):
        step(emitter, "t1", index, index + 1, index + 2)
    emitter.flush(30)
    frame, total = collector.client.page("steps", run="run", limit=2)
    assert (frame["step_index"].to_list(), total) == ([0, 1], 5)


@pytest.mark.parametrize(
    ("name", "filters", "sentence"),
    [
        ("nope", {}, "no query called 'nope'; choose one of accounts,"),
        ("runs", {"colour": "red"}, "runs has no filter 'colour'; it takes run, since, until"),
        ("spans", {}, "spans needs one of the filters trajectory, rollout, trace"),
        ("runs", {"limit": "many"}, "limit is 'many', expected a whole number"),
    ],
    ids=["name", "filter", "needed", "limit"],
)
def test_a_question_that_does_not_fit_is_refused_with_a_sentence(
    collector, name, filters, sentence
):
    with pytest.raises(QueryRefused, match=sentence):
        collector.query(name, **filters)


def test_filters_cannot_carry_sql(collector):
    assert collector.query("steps", run="x' OR 1=1 --").is_empty()


def test_health_writes_and_counts(collector):
    collector.client.wait_healthy(30)
    assert collector.client.health()["failed_commits"] == 0


def test_nobody_there_is_one_sentence():
    with CollectorClient("http://127.0.0.1:9") as client:
        assert not client.healthy()
        with pytest.raises(CollectorUnreachable, match="no collector answers at http"):
            client.query("runs")


def test_an_emitter_without_a_collector_counts_what_it_loses_and_never_raises(caplog):
    caplog.set_level(logging.CRITICAL)
    emitter = Emitter("http://127.0.0.1:9", service="t")
    emitter.emit("s", trace_id="no hex", span_id="x", start_ns=1, end_ns=2, attributes={})
    emitter.emit("s", trace_id="a" * 32, span_id="b" * 16, start_ns=1, end_ns=2, attributes={})
    emitter.close(0.2)
    emitter.emit("s", trace_id="a" * 32, span_id="b" * 16, start_ns=1, end_ns=2, attributes={})
    assert emitter.dropped == 3


def test_values_that_otlp_cannot_carry_do_not_take_their_batch_along(collector):
    emitter = collector.emitter()
    odd = {
        "huge": 1 << 70,
        "none": None,
        "set": {1},
        "map": {"a": [1]},
        "lone": "\ud800",
        "o": object,
    }
    step(emitter, "t1", 0, 1, 2, **odd)
    emitter.flush(30)
    assert emitter.dropped == 0
    attrs = one(collector.query("spans", trajectory="t1"))["attrs"]
    assert '"huge":"1180591620717411303424"' in attrs


def test_an_exception_marks_the_trajectory_failed_and_passes_through(collector):
    emitter = collector.emitter()
    tracer = Tracer(emitter, "run", "ro")
    with (
        pytest.raises(ZeroDivisionError),
        tracer.trajectory("t1", group="g") as t,
        t.tool("bash", step=0),
    ):
        raise ZeroDivisionError
    emitter.flush(30)
    row = one(collector.query("trajectories", run="run"))
    assert (row["outcome"], row["errors"], row["tool_calls"]) == ("failed", 2, 1)


def test_headers_name_the_trajectory_for_the_controller():
    emitter = Emitter("http://127.0.0.1:9", service="t")
    with Tracer(emitter, "run", "ro").trajectory("t1", group="g", sample_index=0) as trajectory:
        headers = trajectory.headers(step=2, final=True)
    emitter.close(0)
    assert headers["X-Heddle-Sample-Index"] == "0"
    assert headers["X-Heddle-Step"] == "2"
    assert headers["X-Heddle-Final"] == "1"
    assert "X-Heddle-Task" not in headers
    trace, span = ids.trace_id("run", "t1"), ids.trajectory_span_id("run", "t1")
    assert headers["traceparent"] == f"00-{trace}-{span}-01"


def test_the_wait_for_the_last_one_is_summed_over_utc_nanoseconds(collector):
    now_s, sent = 1_795_000_000, collector.emitter()
    for index in range(8):
        sent.emit(
            "invoke_agent a",
            trace_id=ids.trace_id("run", f"t{index}"),
            span_id=ids.trajectory_span_id("run", f"t{index}"),
            start_ns=now_s * S,
            end_ns=(now_s + 10 + index) * S,
            attributes={
                **RUN,
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.conversation.id": f"t{index}",
            },
        )
    sent.emit(
        "heddle.rollout",
        **ROLLOUT,
        start_ns=now_s * S,
        end_ns=(now_s + 17) * S,
        attributes={**RUN, "gen_ai.operation.name": "heddle.rollout"},
    )
    assert sent.flush()

    waited = collector.query("gather", run="run").row(0, named=True)

    assert waited["last_trajectory"] == "t7"
    assert waited["trajectory_wait_s"] == sum(range(8))


def test_calibration_holds_each_predicted_remainder_against_what_came(collector):
    emitter = collector.emitter()

    def told(p10, p50, p90):
        said = {"p10": p10, "p50": p50, "p90": p90}
        return {f"heddle.predicted.{k}": float(v) for k, v in said.items()}

    def predicted(trajectory, index, output, *lengths):
        more = {**told(*lengths), "heddle.predictor.version": "v1"}
        more["gen_ai.usage.output_tokens"] = output
        step(emitter, trajectory, index, 2 * index + 1, 2 * index + 2, **more)

    # After step 0 nothing was left of "a" but 30: 130 within 100..300, then 30 below 50..90.
    predicted("a", 0, 100, 100, 200, 300)
    predicted("a", 1, 30, 50, 60, 90)
    # 800 above 200..400; a truncated one is nobody's truth.
    predicted("b", 0, 800, 200, 200, 400)
    cut = {"gen_ai.usage.output_tokens": 9, "heddle.truncated": True}
    step(emitter, "c", 0, 1, 2, **told(1, 2, 3), **cut)
    end_rollout(emitter)
    emitter.flush(30)
    row = one(collector.query("calibration", run="run"))
    assert (row["rollout_id"], row["predictor_version"]) == ("ro", "v1")
    assert (row["steps"], row["trajectories"]) == (3, 2)
    assert [row[k] for k in ("covered", "below", "above")] == pytest.approx([1 / 3] * 3)
    assert row["bias"] == pytest.approx(130 / 200)
    assert row["mae_tokens"] == pytest.approx((70 + 30 + 600) / 3)
    assert collector.query("calibration", run="another").is_empty()
    # A late step makes what was kept of its rollout anew: 840 and 40 were left of "b".
    predicted("b", 1, 40, 20, 30, 50)
    emitter.flush(30)
    again = one(collector.query("calibration", run="run"))
    assert (again["steps"], again["mae_tokens"]) == (4, pytest.approx((70 + 30 + 640 + 10) / 4))
