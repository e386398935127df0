"""Importers: what files say becomes spans with stable ids; what cannot be read names its place."""

from __future__ import annotations

import json

import polars as pl
import pytest
import torch

from heddle.collector.client import CollectorClient
from heddle.collector.errors import CollectorError
from heddle.collector.exporters.files import csv_text, export
from heddle.collector.importers.documents import ImportRefused, Source, chunks
from heddle.collector.importers.send import reader, send
from heddle.collector.service import running
from heddle.collector.settings import CollectorSettings

NS = 1_000_000_000
TRACE, SPAN = "5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174"


@pytest.fixture(scope="module")
def collector(tmp_path_factory):
    data = tmp_path_factory.mktemp("importers")
    settings = CollectorSettings(data_dir=data, http_port=0, grpc_port=0, query_port=0)
    with running(settings) as ports, CollectorClient(f"http://127.0.0.1:{ports.query}") as client:
        yield f"http://127.0.0.1:{ports.http}", client


def found(kind, path, **more):
    return [s for part in reader(kind)(Source(path, **more)) for s in part.spans]


def refused(kind, path, match, **more):
    with pytest.raises(ImportRefused, match=match):
        found(kind, path, **more)


def written(path, text):
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return path


def otlp(span):
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


PLAIN = {"traceId": TRACE, "spanId": SPAN, "name": "s", "startTimeUnixNano": "1"}


def test_a_broken_line_of_many_is_named(tmp_path):
    line = json.dumps(otlp(PLAIN))
    path = written(tmp_path / "lines", f"{line}\n\n{line}\n{{broken\n")
    refused("otlp-json", path, r"lines, line 4: is not JSON")
    refused(
        "otlp-json", written(tmp_path / "l2", f'{line}\n{{"resourceLogs": []}}\n'), "line 2.*logs"
    )
    refused("otlp-json", tmp_path / "missing", "cannot be read: No such file")


def test_a_broken_document_names_the_line_of_its_end(tmp_path):
    refused("jaeger-json", written(tmp_path / "j", '{\n"data": [\n{]\n'), r"line 3: is not JSON")
    unfinished = {"data": [{"traceID": TRACE, "spans": [{"traceID": TRACE, "spanID": SPAN}]}]}
    refused(
        "jaeger-json", written(tmp_path / "k", unfinished), "trace 0, span 0: lacks.*Name|startTime"
    )


def test_tempo_ids_in_base64_and_enums_by_name_become_otlp(tmp_path):
    span = {
        **PLAIN,
        "traceId": "W47/95gDgQPSabYzgT/GDA==",
        "spanId": "7uGbfsPBsXQ=",
        "kind": "SPAN_KIND_CLIENT",
        "status": {"code": "STATUS_CODE_ERROR"},
    }
    path = written(tmp_path / "t", {"batches": [{"scopeSpans": [{"spans": [span]}]}]})
    (made,) = found("tempo", path)
    assert (made["traceId"], made["spanId"]) == (TRACE, SPAN)
    assert (made["kind"], made["status"]["code"]) == (3, 2)


def record(rid, session, at_s, **more):
    return {
        "request_parameters": json.dumps({"rid": rid, "session_id": session}),
        "id": rid,
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "cached_tokens": 64,
        "queue_time": 0.25,
        "forward_entry_time": at_s + 0.25,
        "prefill_finished_time": at_s + 0.5,
        "request_received_ts": at_s,
        "request_finished_ts": at_s + 2,
        "finish_reason": {"type": "stop"},
        **more,
    }


def test_sglang_records_become_steps_of_their_sessions_and_twice_is_once(collector, tmp_path):
    url, client = collector
    lines = [record("a", "s1", 1000), record("b", "s1", 1010), record("c", None, 1020)]
    path = written(tmp_path / "m.log", "\n".join(map(json.dumps, lines)))
    for _ in range(2):
        assert send("sglang-metrics", Source(path, "sg"), url).spans == 3
    steps = client.query("steps", run="sg")
    assert steps["trajectory_id"].to_list() == ["s1", "s1", "c"]
    assert steps["step_index"].to_list() == [0, 1, 0]
    first = steps.row(0, named=True)
    assert (first["start_ns"], first["end_ns"]) == (1000 * NS, 1002 * NS)
    assert (first["queue_ns"], first["prefill_ns"], first["decode_ns"]) == (
        NS // 4,
        NS // 4,
        3 * NS // 2,
    )
    assert (first["input_tokens"], first["cached_tokens"], first["finish_reason"]) == (
        100,
        64,
        "stop",
    )


def test_sglang_lines_that_lack_what_is_needed_say_what_to_do(tmp_path):
    bare = record("a", "s", 1)
    del bare["request_finished_ts"]
    lines = f"{json.dumps(record('x', 's', 1))}\n{json.dumps(bare)}"
    refused(
        "sglang-metrics",
        written(tmp_path / "a", lines),
        "line 2: has no request_received_ts.*--enable",
    )
    refused("sglang-metrics", written(tmp_path / "b", {"a": 1}), "line 1: its shape is not known")


class Hostile:
    def __reduce__(self):
        return (print, ("ran code",))


def slime_dump(**more):
    def event(kind, name, span, ts, **attrs):
        base = {"type": kind, "name": name, "span_id": span, "ts": ts, "attrs": attrs}
        return {**base, "parent_span_id": None if name == "generate_and_rm" else "1"}

    events = [
        event("span_start", "generate_and_rm", "1", 100.0),
        event("span_start", "sglang_generate", "2", 101.0),
        event("span_end", "sglang_generate", "2", 104.5, completion_tokens=9, prompt_tokens=3),
        event("span_end", "generate_and_rm", "1", 105.0),
        event("span_start", "reward_model", "3", 105.0),
    ]
    trace = {"version": 1, "sample_id": 4, "group_id": 2, "attempt": 0, "events": events}
    return {
        "rollout_id": 7,
        "samples": [{"reward": 1, "status": "truncated", "trace": trace, **more}],
    }


def test_a_slime_dump_becomes_trajectories_with_groups_and_rewards(collector, tmp_path):
    url, client = collector
    torch.save(slime_dump(tokens=torch.tensor([1, 2])), tmp_path / "d_7.pt")
    assert send("slime", Source(tmp_path / "d_7.pt", "sl"), url).spans == 3
    row = client.query("trajectories", run="sl").row(0, named=True)
    assert (row["rollout_id"], row["group_id"], row["trajectory_id"]) == ("7", "2", "7/4/0")
    assert (row["steps"], row["output_tokens"], row["reward"], row["truncated"]) == (
        1,
        9,
        1.0,
        True,
    )
    assert (row["start_ns"], row["end_ns"]) == (100 * NS, 105 * NS)


def test_a_pickle_that_would_run_code_is_refused_unless_trusted(tmp_path, capsys):
    torch.save(slime_dump(extra=Hostile()), tmp_path / "x.pt")
    refused("slime", tmp_path / "x.pt", "add --trusted only if that was you")
    assert capsys.readouterr().out == ""
    assert len(found("slime", tmp_path / "x.pt", trusted=True)) == 3
    torch.save([1], tmp_path / "l.pt")
    refused("slime", tmp_path / "l.pt", "no slime dump")
    refused("slime", written(tmp_path / "t.pt", "text"), "is no file that torch.load reads")


def trace_set(**more):
    steps = {
        "source": ["tau"] * 3,
        "group_id": ["airline/1"] * 3,
        "trajectory_id": ["a", "a", "b"],
        "step_index": [0, 1, 0],
        "output_tokens": [5, 6, 7],
        "tool_name": ["search", None, None],
        "tool_seconds": [2.0, None, None],
        "llm_seconds": [1.0, None, 3.0],
        "reward": [1.0, 1.0, 0.0],
    }
    return pl.DataFrame({**steps, **more})


def test_a_trace_set_keeps_its_numbers_and_marks_what_it_does_not_know(collector, tmp_path):
    url, client = collector
    trace_set().write_parquet(tmp_path / "set.parquet")
    for _ in range(2):
        assert send("parquet", Source(tmp_path / "set.parquet"), url).spans == 6
    rows = client.query("trajectories", run="import-tau").sort("trajectory_id")
    assert rows["output_tokens"].to_list() == [11, 7]
    assert rows["duration_s"].to_list() == [3.0, 3.0]
    assert rows["tool_s"].to_list() == [2.0, 0.0]
    assert rows["reward"].to_list() == [1.0, 0.0]
    spans = client.query("spans", run="import-tau", op="chat", trajectory="a").sort("start_ns")
    assert ["synthetic" in a for a in spans["attrs"]] == [False, True]
    tools = client.query("tool_calls", run="import-tau")
    assert tools["synthetic"].to_list() == [False]


def test_a_trace_set_that_lacks_columns_or_ids_names_them(tmp_path):
    trace_set().drop("group_id").write_parquet(tmp_path / "a.parquet")
    refused("parquet", tmp_path / "a.parquet", "lacks the columns group_id")
    trace_set(output_tokens=[1, 2, None]).write_parquet(tmp_path / "b.parquet")
    refused("parquet", tmp_path / "b.parquet", "row 3: has no trajectory_id or no output_tokens")
    refused("parquet", written(tmp_path / "c.parquet", "x"), "is no Parquet file")


def test_an_unknown_format_names_the_ones_there_are():
    with pytest.raises(CollectorError, match="no format called 'xml'; choose one of otlp-json"):
        reader("xml")


def test_chunks_keep_every_span_in_order_and_none_too_many(tmp_path):
    lines = "\n".join(json.dumps(otlp({**PLAIN, "name": str(n)})) for n in range(23))
    parts = reader("otlp-json")(Source(written(tmp_path / "l", lines)))
    made = list(chunks(parts, 5))
    assert [count for _, count in made] == [5, 5, 5, 5, 3]
    names = [s["name"] for held, _ in made for part in held for s in part.spans]
    assert names == [str(n) for n in range(23)]


def test_spans_leave_as_otlp_and_come_back_the_same(collector, tmp_path):
    url, client = collector
    event = {
        "name": "e",
        "timeUnixNano": "5",
        "attributes": [{"key": "k", "value": {"boolValue": True}}],
    }
    given = [
        {"key": "heddle.run.id", "value": {"stringValue": "round"}},
        {"key": "heddle.rollout.id", "value": {"stringValue": "ro"}},
        {
            "key": "list",
            "value": {"arrayValue": {"values": [{"intValue": "1"}, {"doubleValue": 0.5}]}},
        },
    ]
    span = {
        **PLAIN,
        "endTimeUnixNano": "9",
        "attributes": given,
        "events": [event],
        "status": {"code": 2},
    }
    send("otlp-json", Source(written(tmp_path / "in", otlp(span))), url)
    before = client.query("spans", run="round", rollout="ro")
    asked = {"run": "round", "rollout": "ro"}
    assert export(client, "spans", tmp_path / "o.jsonl", asked) == (1, "spans", 0)
    (again,) = found("otlp-json", tmp_path / "o.jsonl")
    assert again["events"] == [event]
    assert {a["key"]: a["value"] for a in again["attributes"]} == {
        a["key"]: a["value"] for a in given
    }
    assert send("otlp-json", Source(tmp_path / "o.jsonl"), url).spans == 1
    assert (
        client.query("spans", run="round", rollout="ro")
        .drop("received_ns")
        .equals(before.drop("received_ns"))
    )


def test_csv_cells_a_sheet_would_run_are_defused_and_numbers_are_not(collector, tmp_path):
    frame = pl.DataFrame({"id": ["=cmd|' /C calc'!A1", "-5", "ok", "@x"], "n": [-5, 1 << 60, 0, 1]})
    assert csv_text(frame).splitlines()[1:] == [
        "'=cmd|' /C calc'!A1,-5",
        "'-5,1152921504606846976",
        "ok,0",
        "'@x,1",
    ]
    assert csv_text(frame, raw=True).splitlines()[2] == "-5,1152921504606846976"
    client = collector[1]
    total = client.page("spans", trace=TRACE)[1]
    for name in ("a.csv", "a.parquet"):
        assert export(client, "spans", tmp_path / name, {"trace": TRACE}) == (total, "spans", 0)
    assert pl.read_parquet(tmp_path / "a.parquet").height == total
    with pytest.raises(CollectorError, match="names no format"):
        export(client, "spans", tmp_path / "a.xlsx", {})
    with pytest.raises(CollectorError, match="takes spans"):
        export(client, "steps", tmp_path / "a.jsonl", {})
