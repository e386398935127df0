"""Trainer phases and DCGM samples: imported once, set beside the rollout they belong to."""

from __future__ import annotations

import json
import os

import pytest

from heddle.collector import ids
from heddle.collector.importers.documents import ImportRefused, Source
from heddle.collector.importers.send import reader, send
from heddle.collector.tracing import Tracer

S = 10**9
T0 = 1_795_000_000


def rollout(sent, run, name, start_s, end_s, **more):
    sent.emit(
        "heddle.rollout",
        trace_id=ids.trace_id(run, f"rollout/{name}"),
        span_id=ids.span_id(run, "rollout", name),
        start_ns=(T0 + start_s) * S,
        end_ns=(T0 + end_s) * S,
        attributes={
            "gen_ai.operation.name": "heddle.rollout",
            "heddle.run.id": run,
            "heddle.rollout.id": name,
            "heddle.gpus": 2,
            **more,
        },
    )


def chat(sent, run, name, worker, start_s, end_s, trajectory):
    sent.emit(
        "chat m",
        trace_id=ids.trace_id(run, trajectory),
        span_id=ids.step_span_id(run, trajectory, 0),
        start_ns=(T0 + start_s) * S,
        end_ns=(T0 + end_s) * S,
        attributes={
            "gen_ai.operation.name": "chat",
            "heddle.run.id": run,
            "heddle.rollout.id": name,
            "gen_ai.conversation.id": trajectory,
            "heddle.step.index": 0,
            "heddle.worker.id": worker,
            "heddle.degree": 1,
            "heddle.prefill_s": 0.0,
            "heddle.decode_s": float(end_s - start_s),
        },
    )


def door(collector):
    return f"http://127.0.0.1:{collector.ports.http}"


def test_case_12_verls_step_timings_say_what_share_was_rollout(collector, tmp_path):
    """verl#6747: a step of 43.64 s, of which gen takes 31.27 s (72 %)."""
    sent = collector.emitter()
    rollout(sent, "v", "a", 0, 30, **{"heddle.trainer.step": 7})
    rollout(sent, "v", "8", 50, 85)
    rollout(sent, "v", "c", 100, 130)
    sent.close()
    timings = {
        "gen": 31.27, "generate_sequences": 25.0, "agent_loop/tool_calls/max": 9.0,
        "old_log_prob": 3.0, "update_actor": 6.5, "update_weights": 1.5, "step": 43.64,
    }  # fmt: skip
    lines = [
        json.dumps({"step": 7, "data": {f"timing_s/{k}": v for k, v in timings.items()}}),
        "step:8 - actor/lr:1e-06 - timing_s/gen:np.float64(40.0) - timing_s/step:50.0",
        "nothing of a step",
    ]
    (tmp_path / "log").write_text("\n".join(lines))
    os.utime(tmp_path / "log", (T0 + 100, T0 + 100))
    for _ in range(2):
        assert send("verl", Source(tmp_path / "log", "v"), door(collector)).spans == 7
    a, b, c = collector.query("gather", run="v").iter_rows(named=True)
    assert (a["trainer_step"], a["step_source"], a["step_s"]) == (7, "trainer", 43.64)
    assert a["rollout_share"] == pytest.approx(31.27 / 43.64)
    assert (b["trainer_step"], b["rollout_share"], b["step_source"]) == (8, 0.8, "trainer")
    assert (c["step_s"], c["step_source"], c["rollout_share"]) == (None, None, None)
    told = collector.query("trainer", run="v", rollout="a")
    assert told["phase"].to_list() == [
        "gen", "old_log_prob", "update_actor", "update_weights", "other"
    ]  # fmt: skip
    assert told["share"].sum() == pytest.approx(1)
    assert told["time_ns"].sum() == round(43.64 * S)
    assert told["start_ns"][0] == round((T0 + 100 - 50 - 43.64) * S)


def test_what_verl_tells_of_its_agent_loops_is_on_the_phase_in_which_they_ran(collector, tmp_path):
    """The names that AgentLoopManager of verl 0.9.1 gives its timing, with and without timing_s."""
    data = {
        "timing_s/gen": 31.27, "timing_s/agent_loop/tool_calls/max": 9.5,
        "timing_s/agent_loop/generate_sequences/mean": 20.25, "timing_s/step": 43.64,
        "agent_loop/slowest/response_length": 8192, "agent_loop/slowest/num_preempted": -1,
    }  # fmt: skip
    lines = [
        json.dumps({"step": 7, "data": data}),
        "step:8 - timing_s/agent_loop/tool_calls/min:np.float64(0.5) - agent_loop/slowest/"
        "prompt_length:96 - timing_s/step:50.0",
    ]
    (tmp_path / "log").write_text("\n".join(lines))
    assert send("verl", Source(tmp_path / "log", "vl"), door(collector)).spans == 3
    told = (
        "tool_calls.max", "generate_sequences.mean", "tool_calls.min",
        "slowest.response_length", "slowest.num_preempted", "slowest.prompt_length",
    )  # fmt: skip
    columns = ", ".join(f"CAST(attrs['verl.agent_loop.{name}'] AS DOUBLE)" for name in told)
    rows = collector.client.sql(
        f"SELECT trainer_step, CAST(attrs['heddle.trainer.phase'] AS VARCHAR), {columns}"
        " FROM spans WHERE run_id = 'vl' ORDER BY 1, 2"
    )
    assert rows.rows() == [
        (7, "gen", 9.5, 20.25, None, 8192, -1, None),
        (7, "step", *[None] * len(told)),
        (8, "step", None, None, 0.5, None, None, 96),
    ]


def test_a_step_without_a_trainer_lasts_to_the_next_rollout(collector):
    sent = collector.emitter()
    rollout(sent, "n", "a", 0, 30)
    rollout(sent, "n", "b", 40, 60)
    sent.close()
    a, b = collector.query("gather", run="n").iter_rows(named=True)
    assert (a["step_s"], a["step_source"], a["rollout_share"]) == (40, "next", 0.75)
    assert (b["step_s"], b["step_source"]) == (None, None)
    assert collector.query("trainer", run="n").is_empty()


def test_a_trainer_sends_its_phases_with_its_tracer_and_the_accounts_stay(collector):
    now_s = [T0]
    sent = collector.emitter()
    rollout(sent, "t", "a", 0, 30)
    chat(sent, "t", "a", "w0", 0, 30, "x")
    assert sent.flush()
    before = collector.query("accounts", run="t", rollout="a")
    tracer = Tracer(sent, "t", "a", lambda: now_s[0] * S)
    with tracer.phase("step", trainer_step=3):
        for name, seconds in (("gen", 30), ("update_actor", 20)):
            with tracer.phase(name, trainer_step=3):
                now_s[0] += seconds
    assert sent.flush()
    told = collector.query("trainer", run="t")
    assert told.select("phase", "share").rows() == [("gen", 0.6), ("update_actor", 0.4)]
    assert collector.query("gather", run="t")["rollout_share"].to_list() == [0.6]
    assert collector.query("accounts", run="t", rollout="a").equals(before)


def test_dcgm_samples_stand_beside_the_busy_share_of_the_same_time(collector, tmp_path):
    sent = collector.emitter()
    rollout(sent, "d", "a", 0, 100)
    for worker, end_s in (("w0", 60), ("w1", 100)):
        chat(sent, "d", "a", worker, 0, end_s, f"t-{worker}")
    sent.close()
    rows = ["host,gpu,time,sm_active,worker"]
    # w0: 0.9 while resident and 0.1 after; a NaN and a silence of 70 s speak of nothing.
    rows += [f"n1,0,{T0 + at},{0.9 if at <= 60 else 0.1},w0" for at in range(0, 110, 10)]
    rows += [f"n1,1,{T0 + at},0.5,w1" for at in (0, 10, 20, 90)] + [f"n1,1,{T0 + 15},NaN,w1"]
    rows += [f"n2,0,2026-11-18T11:0{m}:00+00:00,0.25," for m in (7, 8)]
    (tmp_path / "s.csv").write_text("\n".join(rows))
    for _ in range(2):
        assert send("dcgm", Source(tmp_path / "s.csv", "d"), door(collector)).rejected == 0
    w0, w1, _ = collector.query("device", run="d", rollout="a").iter_rows(named=True)
    assert (w0["host"], w0["gpu"], w0["worker_id"], w0["samples"]) == ("n1", "0", "w0", 11)
    assert w0["covered_ns"] == 100 * S
    assert (w0["busy_share"], w0["sm_active"]) == (0.6, pytest.approx(0.58))
    assert w0["apart"] == pytest.approx(0.02)
    assert (w1["covered_ns"], w1["samples"], w1["busy_share"]) == (20 * S, 4, 1.0)
    assert w1["sm_active"] == 0.5
    assert collector.query("device", run="d", rollout="a", worker="w1").height == 1


def test_prometheus_answers_are_read_and_a_gpu_nobody_names_stands_for_all(collector, tmp_path):
    sent = collector.emitter()
    rollout(sent, "p", "a", 0, 100)
    chat(sent, "p", "a", "w0", 0, 50, "x")
    sent.close()
    values = [[T0 + at, "0.25"] for at in range(0, 110, 10)]
    series = {"metric": {"Hostname": "n1", "gpu": "3"}, "values": values}
    (tmp_path / "p.json").write_text(json.dumps({"data": {"result": [series]}}))
    assert send("dcgm", Source(tmp_path / "p.json", "p"), door(collector)).spans == 11
    row = collector.query("device", run="p", rollout="a").row(0, named=True)
    assert (row["gpu"], row["worker_id"], row["sm_active"]) == ("3", None, 0.25)
    # One of the rollout's two GPUs was busy for half of the time.
    assert row["busy_share"] == 0.25


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("dcgm", "host,gpu,sm_active\n", "line 1: lacks the columns time"),
        ("dcgm", "host,gpu,time,sm_active\na,0,1,1.5\n", "line 2: sm_active is '1.5'; expected"),
        ("dcgm", "host,gpu,time,sm_active\na,0,noon,1\n", "line 2: time is 'noon'"),
        ("dcgm", "host,gpu,time,sm_active\n,0,1,1\n", "line 2: does not say which GPU"),
        ("dcgm", '{"status": "error"}', "no answer of Prometheus"),
        ("verl", "epoch 3\n", "has no line with a step and timing_s"),
        ("verl", '{"step": 1, "data": {"timing_s/gen": "soon"}}', "line 1: timing_s/gen is 'soon'"),
        ("verl", '{"step": 1, "data": {"timing_s/gen": -1}}', "line 1: timing_s/gen is -1 seconds"),
        ("verl", "step:1 - timing_s/agent_loop/x:e - timing_s/step:1", "agent_loop/x is 'e'"),
    ],
)
def test_a_file_that_does_not_fit_names_its_place(kind, text, why, tmp_path):
    (tmp_path / "f").write_text(text)
    with pytest.raises(ImportRefused, match=why):
        list(reader(kind)(Source(tmp_path / "f", "r")))


def test_samples_of_no_run_are_refused(tmp_path):
    (tmp_path / "f").write_text("host,gpu,time,sm_active\n")
    with pytest.raises(ImportRefused, match="add --run RUN"):
        list(reader("dcgm")(Source(tmp_path / "f")))
