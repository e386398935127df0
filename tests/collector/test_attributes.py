"""Dialects become typed columns; what was sent stays readable as sent."""

from __future__ import annotations

import itertools
import json
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heddle.collector import otlp
from heddle.collector.columns import Origin, Rows, Span
from heddle.collector.keys import UNKNOWN, Keys, hashes
from heddle.collector.store import Store

A, B = "a" * 32, "b" * 16


def row(attributes, *, name="s", status=0, resource=None, events=None):
    rows = Rows(0)
    span = Span(A, B, None, name, 1, 1, 2, attributes, status=status, events=events)
    rows.add(span, Origin(resource or {}, None))
    return rows.table().to_pylist()[0]


@pytest.mark.parametrize(
    ("attributes", "column", "value"),
    [
        ({"gen_ai.latency.time_in_queue": 0.1}, "queue_ns", 100_000_000),
        ({"heddle.held_s": 1e-9}, "held_ns", 1),
        ({"heddle.held_s": 2}, "held_ns", 2_000_000_000),
        ({"heddle.held_s": float("nan")}, "held_ns", None),
        ({"gen_ai.usage.prompt_tokens": "12"}, "input_tokens", 12),
        ({"gen_ai.usage.cached_tokens": 7.0}, "cached_tokens", 7),
        ({"gen_ai.usage.output_tokens": 7.5}, "output_tokens", None),
        ({"llm.token_count.completion": 9}, "output_tokens", 9),
        ({"ai.usage.promptTokens": 3}, "input_tokens", 3),
        ({"gen_ai.response.finish_reasons": ["stop", "length"]}, "finish_reason", "stop,length"),
        ({"gen_ai.response.finish_reasons": '["stop"]'}, "finish_reason", "stop"),
        (
            {"gen_ai.response.finish_reasons": '{"type": "length", "length": 4}'},
            "finish_reason",
            "length",
        ),
        ({"gen_ai.response.finish_reasons": "[broken"}, "finish_reason", "[broken"),
        ({"openinference.span.kind": "LLM"}, "op", "chat"),
        ({"traceloop.span.kind": "tool"}, "op", "execute_tool"),
        ({"gen_ai.operation.name": "never heard of"}, "op", "never heard of"),
        ({"session.id": "t1"}, "trajectory_id", "t1"),
        ({"heddle.truncated": "true"}, "truncated", True),
        ({"heddle.sample.index": True}, "sample_index", None),
        ({"heddle.task": ""}, "task", None),
    ],
    ids=str,
)
def test_a_dialect_fills_the_column(attributes, column, value):
    assert row(attributes)[column] == value


@pytest.mark.parametrize("turn", [1, -1], ids=["ours first", "ours last"])
def test_the_first_name_of_the_table_wins_in_any_order(turn):
    sent = [("gen_ai.usage.input_tokens", 5), ("gen_ai.usage.prompt_tokens", 9)]
    assert row(dict(sent[::turn]))["input_tokens"] == 5


def test_an_unreadable_first_name_leaves_room_for_the_second():
    sent = {"gen_ai.usage.input_tokens": "many", "gen_ai.usage.prompt_tokens": 9}
    assert row(sent)["input_tokens"] == 9


def test_aggregated_usage_is_never_added_up():
    sent = {"gen_ai.aggregated_usage.input_tokens": 5, "llm.usage.total_tokens": 7}
    assert row(sent)["input_tokens"] is None


def test_the_resource_speaks_for_its_spans_unless_they_speak_themselves():
    resource = {"heddle.run.id": "r1", "heddle.worker.id": "w0", "service.name": "svc"}
    found = row({"heddle.worker.id": "w1"}, resource=resource)
    assert (found["run_id"], found["worker_id"], found["service"]) == ("r1", "w1", "svc")


def test_without_a_run_the_service_is_the_run():
    assert row({}, resource={"service.name": "svc"})["run_id"] == "svc"
    assert row({})["run_id"] == "unknown"


def test_an_error_without_a_type_takes_its_exception_event():
    event = {"name": "exception", "time_ns": 1, "attributes": {"exception.type": "KeyError"}}
    assert row({}, status=2, events=[event])["error_type"] == "KeyError"
    assert row({}, status=2)["error_type"] == "error"


TRACES = itertools.count(1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALAR = st.one_of(
    TEXT,
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False, allow_infinity=False),
)
VALUE = st.recursive(
    SCALAR, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXT, v, max_size=3), max_leaves=6
)


def protobuf_value(target, value):
    kinds = {bool: "bool_value", int: "int_value", float: "double_value", str: "string_value"}
    if isinstance(value, list):
        target.array_value.SetInParent()
        for each in value:
            protobuf_value(target.array_value.values.add(), each)
    elif isinstance(value, dict):
        target.kvlist_value.SetInParent()
        for key, each in value.items():
            protobuf_value(target.kvlist_value.values.add(key=key).value, each)
    else:
        setattr(target, kinds[type(value)], value)


def json_value(value):
    if isinstance(value, list):
        return {"arrayValue": {"values": [json_value(v) for v in value]}}
    if isinstance(value, dict):
        pairs = [{"key": k, "value": json_value(v)} for k, v in value.items()]
        return {"kvlistValue": {"values": pairs}}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue" if isinstance(value, float) else "stringValue": value}


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory):
    with closing(Store(tmp_path_factory.mktemp("laws") / "h.duckdb", window_s=0)) as store:
        yield store


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.dictionaries(TEXT, VALUE, max_size=4))
def test_attributes_come_back_as_sent_by_both_encodings(shared_store, request_of, sent):
    pair = (f"{next(TRACES):032x}", B)
    request = request_of(pair, name="both")
    span = request.resource_spans[0].scope_spans[0].spans[0]
    for key, value in sent.items():
        protobuf_value(span.attributes.add(key=key).value, value)
    by_protobuf = otlp.decode(request.SerializeToString(), otlp.PROTOBUF, 5)
    pairs = [{"key": k, "value": json_value(v)} for k, v in sent.items()]
    times = {"startTimeUnixNano": "1000", "endTimeUnixNano": 2000}
    document = {"traceId": pair[0], "spanId": B, "name": "both", "attributes": pairs, **times}
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [document]}]}]}).encode()
    assert by_protobuf.table.equals(otlp.decode(body, otlp.JSON, 5).table)
    shared_store.append(by_protobuf.table, 1).result(30)
    with shared_store.reading() as cursor:
        statement = "SELECT attrs::JSON::VARCHAR FROM spans WHERE trace_id = ?"
        assert json.loads(cursor.execute(statement, [pair[0]]).fetchall()[0][0]) == sent


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(1, 12), st.integers(-1, 5)), max_size=6), max_size=8)
)
def test_keys_remember_the_latest_end_like_a_dictionary(batches):
    keys, known = Keys(), {}
    for batch in batches:
        ids = [f"{key:016x}" for key, _ in batch]
        keys.put(hashes([A] * len(ids), ids), np.array([end for _, end in batch], np.int64))
        for key, end in batch:
            known[key] = max(end, known.get(key, UNKNOWN))
    asked = hashes([A] * 13, [f"{key:016x}" for key in range(13)])
    assert keys.ends(asked).tolist() == [known.get(key, UNKNOWN) for key in range(13)]
    assert len(keys) >= len(known)
