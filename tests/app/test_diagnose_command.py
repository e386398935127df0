"""Does `heddle diagnose` print what the collector knows, and does every named query really run?"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl

import polars as pl
import pytest

from heddle.app import cli, diagnosis, show
from heddle.app.bench.fleets import big_fleet
from heddle.app.errors import AppError
from heddle.collector import ids
from heddle.collector.client import CollectorClient
from heddle.collector.decompose import PARTS
from heddle.collector.errors import QueryRefused
from heddle.collector.queries.results import Results
from heddle.collector.service import running
from heddle.collector.settings import CollectorSettings
from heddle.collector.store import Store
from heddle.collector.tracing import Emitter

S = 10**9
WHO = {"heddle.run.id": "run", "heddle.rollout.id": "ro"}


def send(emitter: Emitter, op: str, name: str, path: tuple, start_s: float, end_s: float, **more):
    trajectory = more.get("gen_ai.conversation.id", "rollout/ro")
    emitter.emit(
        name,
        trace_id=ids.trace_id("run", str(trajectory)),
        span_id=ids.span_id("run", *path),
        start_ns=round(start_s * S),
        end_ns=round(end_s * S),
        attributes={**WHO, "gen_ai.operation.name": op, **more},
        error=more.pop("error", None),
    )


def step(emitter: Emitter, name: str, index: int, worker: str, start_s: float, end_s: float):
    send(
        emitter, "chat", "chat m", (name, "step", index), start_s, end_s,
        **{
            "gen_ai.conversation.id": name, "heddle.group.id": "g", "heddle.task": "coding",
            "heddle.step.index": index, "heddle.worker.id": worker, "heddle.degree": 1,
            "heddle.held_s": 0.0, "heddle.queue_s": 0.5, "heddle.prefill_s": 0.5,
            "heddle.decode_s": end_s - start_s - 1.0, "gen_ai.usage.output_tokens": 100,
            "gen_ai.usage.input_tokens": 1000, "gen_ai.usage.cache_read.input_tokens": 0,
        },
    )  # fmt: skip


def tool(emitter: Emitter, name: str, index: int, start_s: float, end_s: float):
    send(
        emitter, "execute_tool", "execute_tool bash", (name, "tool", index), start_s, end_s,
        **{"gen_ai.conversation.id": name, "gen_ai.tool.name": "bash", "heddle.step.index": index},
    )  # fmt: skip


def story(emitter: Emitter) -> None:
    """Two workers over 100 s whose trajectories sit in a tool for 60 of them."""
    for k in range(4):
        name, worker = f"t{k}", f"w{k % 2}"
        step(emitter, name, 0, worker, 1, 20)
        tool(emitter, name, 0, 20, 80)
        step(emitter, name, 1, worker, 80, 99)
    for worker in ("w0", "w1"):
        lease = {"heddle.worker.id": worker, "heddle.degree": 1}
        send(emitter, "heddle.worker", "heddle.worker", ("worker", worker), 0, 100, **lease)
        for at in (0, 50, 100):
            counter = {"heddle.worker.id": worker, "heddle.counter.forward_s": at * 0.3}
            path = ("counters", worker, at)
            send(emitter, "heddle.counters", "heddle.counters", path, at, at, **counter)
    send(
        emitter, "heddle.rollout", "heddle.rollout", ("rollout", "ro"), 0, 100,
        **{"heddle.gpus": 2, "heddle.laws": "1:50,1,0.5", "heddle.policies": "order=fcfs"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("diagnose")
    settings = CollectorSettings(data_dir=Path(data), http_port=0, grpc_port=0, query_port=0)
    with running(settings) as ports:
        emitter = Emitter(f"http://127.0.0.1:{ports.http}", service="test")
        story(emitter)
        assert emitter.flush(30)
        emitter.close()
        yield f"http://127.0.0.1:{ports.query}"


@pytest.fixture
def client(url: str) -> Iterator[CollectorClient]:
    with CollectorClient(url) as client:
        yield client


def heddle(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["heddle", *arguments])
    monkeypatch.setattr(cli, "die_with_parent", lambda: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def test_a_person_reads_partition_blame_path_parts_and_findings(url, monkeypatch, capsys):
    assert heddle(monkeypatch, "diagnose", "--collector", url) == 0
    told = capsys.readouterr().out
    assert "run / ro  finished: 2 GPUs x 100.0 s = 200 GPU-s, 4 trajectories, 8 steps" in told
    assert "tool-bound: GPUs waited for tools 60% of the time, 100% of it for 'bash'" in told
    assert "knob: tool concurrency" in told
    assert "tool_wait" in told
    whole = " ".join(told.split())
    assert "a forward ran in 60.0 s of the 74.0 s in which spans saw a request" in whole
    assert "of starving GPU time 0.0 GPU-s were recoverable" in whole
    assert "everyone waited 0.0 s for t" in whole
    for heading in ("Critical path", "Idle GPU time by trajectory", "longest pieces", "Cost"):
        assert heading in told


def test_what_devices_trainer_and_prefix_cache_tell_stands_beside_the_accounts(client, capsys):
    found = diagnosis.ask(client, diagnosis.newest(client, "run", "ro"), laws=(), price=1.0)
    frames = found.frames
    step = pl.lit(40.0).alias("step_s"), pl.lit(0.75).alias("rollout_share")
    told = {
        "device": pl.DataFrame({"sm_active": [0.3, 0.5, None], "busy_share": [0.8, 0.6, 0.1]}),
        "gather": frames["gather"].with_columns(*step, step_source=pl.lit("trainer")),
        "trainer": pl.DataFrame({"phase": ["gen", "update_actor"], "share": [0.75, 0.25]}),
        "decomposition": frames["decomposition"].with_columns(rewritten_ns=pl.lit(3 * S)),
    }
    diagnosis.print_all(replace(found, frames=frames | told), 3)
    whole = " ".join(capsys.readouterr().out.split())
    assert "by DCGM 40% of SMs had work on 2 GPUs, where spans saw 70% busy" in whole
    assert "rollout was 75% of the trainer's step of 40.0 s (by its own phases)" in whole
    assert "gen 75%, update_actor 25%" in whole
    assert "of prefill 3.0 s went to tokens that agents had rewritten" in whole


def test_a_script_reads_one_document_whose_sums_agree(url, monkeypatch, capsys):
    arguments = ("diagnose", "--collector", url, "--run", "run", "--rollout", "ro", "--json")
    assert heddle(monkeypatch, *arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert next(row["rule"] for row in told["findings"]) == "tool-bound"
    total = told["accounts"]["total_gpu_ns"]
    assert sum(row["gpu_ns"] for row in told["partition"]) == total == 200 * S
    for name in ("cost_by_group", "stragglers", "hot_spots", "gather", "trainer", "device"):
        assert name in told
    row = told["decomposition"][0]
    assert sum(row[part] for part in PARTS) == row["duration_ns"]


def test_an_unknown_rollout_is_one_sentence_that_names_what_there_is(url, monkeypatch, capsys):
    assert heddle(monkeypatch, "diagnose", "--collector", url, "--rollout", "nope") == 2
    assert "has no rollout for --rollout nope; runs it knows: run" in capsys.readouterr().err


def test_a_run_without_a_named_rollout_is_said_to_be_that(url, monkeypatch, capsys):
    with CollectorClient(url) as client:
        monkeypatch.setattr(CollectorClient, "query", _without_rollouts(CollectorClient.query))
        with pytest.raises(AppError, match="--run run: no step of it named one with X-Heddle-Roll"):
            diagnosis.newest(client, "run", None)
        with pytest.raises(AppError, match="for --run gone; runs it knows: run"):
            diagnosis.newest(client, "gone", None)


def _without_rollouts(ask):
    def query(client, name, **asked):
        found = ask(client, name, **asked)
        return found.clear() if name == "rollouts" else found

    return query


def test_every_finding_names_a_query_that_runs_and_finds_rows(client):
    found = client.query("findings", run="run", rollout="ro")
    assert found.height >= 1
    for evidence in found["evidence"]:
        name, _, filters = evidence.partition("?")
        assert client.query(name, **dict(parse_qsl(filters))).height > 0


@pytest.mark.parametrize("by", ["trajectory", "group", "worker", "state"])
def test_blame_by_anything_sums_to_all_idle_time(client, by):
    idle = client.query("partition", run="run", rollout="ro").filter(
        ~pl.col("state").str.starts_with("busy")
    )["gpu_ns"].sum()  # fmt: skip
    rows = client.query("blame", run="run", rollout="ro", by=by)
    assert rows["gpu_ns"].sum() == idle
    assert rows["share"].sum() == pytest.approx(1.0)


def test_blame_by_tool_sums_to_tool_wait(client):
    waits = client.query("partition", run="run", rollout="ro", state="tool_wait")["gpu_ns"].sum()
    rows = client.query("blame", run="run", rollout="ro", by="tool")
    assert rows.select("key", "gpu_ns").rows() == [("bash", waits)]


def test_the_critical_path_and_the_parts_are_exact(client):
    path = client.query("critical_path", run="run", rollout="ro")
    assert (path["end_ns"] - path["start_ns"]).sum() == 100 * S
    parts = client.query("decomposition", run="run", rollout="ro")
    assert (parts.select(pl.sum_horizontal(*PARTS)).to_series() == parts["duration_ns"]).all()


def test_laws_of_the_rollout_split_decode_and_a_filter_replaces_them(client):
    own = client.query("decomposition", run="run", rollout="ro", by="rollout").row(0, named=True)
    assert own["base_ns"] == 8 * 100 * 51_000_000
    assert own["unsplit_ns"] == 0
    asked = client.query("decomposition", run="run", rollout="ro", by="rollout", law="1:10,0,0")
    assert asked["base_ns"].to_list() == [8 * 100 * 10_000_000]
    with pytest.raises(QueryRefused, match="is no decode law"):
        client.query("decomposition", rollout="ro", law="fast")


def test_cost_is_used_and_caused_gpu_time_at_a_price(client):
    rows = client.query("cost", run="run", rollout="ro", price=3.6)
    busy = client.query("efficiency", run="run", rollout="ro")["busy_gpu_ns"][0]
    assert rows["used_gpu_ns"].sum() == busy
    spent = (rows["used_gpu_ns"] + rows["caused_gpu_ns"]).sum()
    assert rows["price"].sum() == pytest.approx(spent / 1e9 / 1000)
    group = client.query("cost", run="run", rollout="ro", by="group")
    assert group["used_gpu_ns"].sum() == busy


def test_time_by_policy_and_hot_spots_add_up(client):
    by = client.query("policy_parts", run="run", by="policies").row(0, named=True)
    whole = client.query("decomposition", run="run", rollout="ro", by="rollout").row(0, named=True)
    assert (by["key"], by["rollouts"], by["makespan_s"]) == ("order=fcfs", 1, 100.0)
    assert all(by[part] == whole[part] for part in ("duration_ns", *PARTS))
    spots = client.query("hot_spots", run="run", rollout="ro")
    assert spots.select("worker_id", "trajectories", "stayed", "output_tokens").rows() == [
        ("w0", 2, 2, 400), ("w1", 2, 2, 400),
    ]  # fmt: skip
    assert spots["times_mean"].to_list() == [1.0, 1.0]
    assert spots["busy_share"].sum() / 2 == pytest.approx(0.37)


def test_counters_move_busy_time_to_host_overhead_and_keep_the_sum(client):
    row = client.query("counters", run="run", rollout="ro", worker="w0").row(0, named=True)
    assert (row["samples"], row["forward_ns"], row["host_bound"]) == (3, 30 * S, False)
    spans = client.query("partition", run="run", rollout="ro")
    counters = client.query("partition", run="run", rollout="ro", source="counters")
    assert counters["gpu_ns"].sum() == spans["gpu_ns"].sum()
    over = counters.filter(pl.col("state") == "host_overhead")["gpu_ns"].sum()
    assert over == 2 * (row["residence_ns"] - 30 * S)
    source = client.query("accounts", run="run", rollout="ro")["source"][0]
    assert source == "rollout span + engine counters"


def test_slices_an_engine_sends_itself_sharpen_the_partition(tmp_path):
    """SGLang's spans carry no run: they are found by the trace of the step they were sent under."""
    settings = CollectorSettings(data_dir=tmp_path, http_port=0, grpc_port=0, query_port=0)
    with running(settings) as ports:
        emitter = Emitter(f"http://127.0.0.1:{ports.http}", service="test")
        engine = Emitter(f"http://127.0.0.1:{ports.http}", service="sglang-w0")
        for index, (name, start, end) in enumerate(
            [("prefill_forward", 2, 4), ("decode_waiting", 4, 9), ("decode_forward", 9, 20)]
        ):
            engine.emit(
                name,
                trace_id=ids.trace_id("run", "t0"),
                span_id=f"{index + 1:016x}",
                start_ns=start * S,
                end_ns=end * S,
                attributes={},
            )
        assert engine.flush(30)
        story(emitter)
        assert emitter.flush(30)
        engine.close()
        emitter.close()
        with CollectorClient(f"http://127.0.0.1:{ports.query}") as client:
            source = client.query("accounts", rollout="ro")["source"][0]
            strips = client.query("strips", rollout="ro", worker="w0")
    assert source == "rollout span + engine spans + engine counters"
    assert strips["end_ns"].max() == 100 * S
    first = strips.filter(pl.col("state") == "busy_prefill")["start_ns"][0]
    assert first <= 2 * S


def test_a_weight_sync_names_whom_it_waited_for(tmp_path):
    settings = CollectorSettings(data_dir=tmp_path, http_port=0, grpc_port=0, query_port=0)
    with running(settings) as ports:
        emitter = Emitter(f"http://127.0.0.1:{ports.http}", service="test")
        for k in range(4):
            step(emitter, f"t{k}", 0, f"w{k % 2}", 1, 70)
        for worker in ("w0", "w1"):
            lease = {"heddle.worker.id": worker, "heddle.degree": 1}
            send(emitter, "heddle.worker", "heddle.worker", ("worker", worker), 0, 100, **lease)
        named = {"heddle.waited_for": ["t-1", "t-3"]}
        send(emitter, "heddle.weight_sync", "heddle.weight_sync", ("sync",), 70, 99, **named)
        send(
            emitter, "heddle.rollout", "heddle.rollout", ("rollout", "ro"), 0, 100,
            **{"heddle.gpus": 2},
        )  # fmt: skip
        assert emitter.flush(30)
        emitter.close()
        with CollectorClient(f"http://127.0.0.1:{ports.query}") as client:
            found = client.query("findings", run="run", rollout="ro")
    assert found["rule"].to_list() == ["sync-blocked"]
    assert "waited for 2 trajectories: t-1, t-3" in found["title"][0]


def test_a_result_is_computed_once_and_again_when_rows_change(tmp_path):
    store = Store(tmp_path / "heddle.duckdb")
    clock = [0.0]
    results = Results(lambda: clock[0])
    fleet = big_fleet(20, 2, 60)
    asked = {"run": ["bench"], "rollout": ["0"]}

    def ask(at_s: float):
        clock[0] = at_s
        with store.reading() as cursor:
            return results.of(cursor, asked)

    try:
        assert ask(0.0) is None
        fleet.send(store, 0.0, 0.5)
        running_one = ask(1.0)
        assert running_one is not None
        assert running_one.facts.provisional
        fleet.send(store, 0.5, 0.6)
        assert ask(1.0) is running_one
        later = ask(1_000.0)
        assert later is not running_one
        assert ask(1_000.0) is later
        fleet.send(store, 0.6, 1.0)
        # The rollout has ended: nobody is told provisional numbers any more.
        final = ask(1_000.1)
        assert final is not None
        assert not final.facts.provisional
        assert ask(2_000.0) is final
        assert results.computed == 3
    finally:
        store.close()


def test_windows_of_a_run_sum_to_the_rollout(client):
    rows = client.query("windows", run="run", width_s=30)
    assert rows["start_ns"].n_unique() == 4
    assert rows["gpu_ns"].sum() == 200 * S
    with pytest.raises(QueryRefused, match="width_s is '0', expected a number above 0"):
        client.query("windows", run="run", width_s=0)


@pytest.mark.parametrize(
    ("by", "key"),
    [("task", "coding"), ("tool", "bash"), ("worker", "w0"), ("policy", "order=fcfs")],
)
def test_the_tail_by_slice(client, by, key):
    rows = client.query("tail_slices", run="run", by=by)
    assert key in rows["key"].to_list()
    assert (rows["p50"] <= rows["max"]).all()


def test_the_rest_of_the_tail(client):
    assert client.query("ccdf", run="run", metric="duration_s")["share"][0] == 1.0
    assert client.query("spread", run="run").select("samples").to_series().to_list() == [4]
    drift = client.query("drift", run="run")
    assert drift["p50_ratio"].to_list() == [None] * drift.height
    gather = client.query("gather", run="run").row(0, named=True)
    assert (gather["makespan_s"], gather["step_s"], gather["waited_s"]) == (100.0, None, 0.0)
    assert client.query("stragglers", rollout="ro")["cause"].to_list() == ["tool"] * 4


def test_a_wrong_choice_names_the_right_ones(client):
    with pytest.raises(QueryRefused, match="by is 'colour'; choose one of trajectory, group, tool"):
        client.query("blame", rollout="ro", by="colour")


def test_names_that_senders_made_up_steer_no_table_and_no_terminal(capsys):
    show.table(["tool", "s"], [["[/bold]\x1b[31m=cmd()", "1"]])
    assert "[/bold]\N{REPLACEMENT CHARACTER}[31m=cmd()" in capsys.readouterr().out


def test_a_rollout_whose_gpus_nobody_described_is_not_called_sound(tmp_path, capsys):
    settings = CollectorSettings(data_dir=tmp_path, http_port=0, grpc_port=0, query_port=0)
    with running(settings) as ports:
        emitter = Emitter(f"http://127.0.0.1:{ports.http}", service="test")
        send(emitter, "chat", "chat m", ("t", 0), 1, 7, **{"gen_ai.conversation.id": "t"})
        send(emitter, "heddle.rollout", "heddle.rollout", ("rollout", "ro"), 0, 10)
        assert emitter.flush(30)
        emitter.close()
        with CollectorClient(f"http://127.0.0.1:{ports.query}") as client:
            diagnosis.print_all(
                diagnosis.ask(client, diagnosis.newest(client, None, None), laws=(), price=2), 3
            )
    said = capsys.readouterr().out
    assert "Every rule is below its threshold" not in said
    assert "nobody told what any GPU did" in said
    assert "% full" not in said
