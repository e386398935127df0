"""OTLP over HTTP and gRPC: the receiver checklist row by row, each with its input."""

from __future__ import annotations

import gzip
import json
import uuid
import zlib

import grpc
import pytest
import zstandard
from google.rpc import status_pb2
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

B, C = "b" * 16, "c" * 16
PROTOBUF, JSON = "application/x-protobuf", "application/json"


@pytest.fixture
def collector(shared_collector):
    return shared_collector


@pytest.fixture
def trace():
    return uuid.uuid4().hex


def found(collector, trace):
    return collector.query("spans", trace=trace)


def document(trace, *spans):
    own = [
        {"traceId": trace, "spanId": B, "name": "s", "startTimeUnixNano": "5", **s} for s in spans
    ]
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": own}]}]}).encode()


def raw_deflate(body):
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
        ("zstd", zstandard.ZstdCompressor().compress),
        ("GZip", gzip.compress),
        ("identity", bytes),
    ],
    ids=["gzip", "zlib", "raw", "zstd", "case", "identity"],
)
def test_every_promised_encoding_is_undone(collector, trace, request_of, encoding, pack):
    body = pack(request_of((trace, B)).SerializeToString())
    assert collector.post(body, content_encoding=encoding).status_code == 200
    assert found(collector, trace)["span_id"].to_list() == [B]


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (PROTOBUF, PROTOBUF),
        ("application/x-protobuf; charset=utf-8", PROTOBUF),
        (JSON, JSON),
        ("application/json; charset=utf-8", JSON),
        ("Application/JSON;charset=UTF-8", JSON),
    ],
)
def test_success_is_200_in_the_media_type_of_the_request(
    collector, trace, request_of, sent, answered
):
    body = (
        request_of((trace, B)).SerializeToString() if answered == PROTOBUF else document(trace, {})
    )
    reply = collector.post(body, sent)
    assert (reply.status_code, reply.headers["content-type"]) == (200, answered)
    if answered == JSON:
        assert reply.json() == {}
    else:
        told = ExportTraceServiceResponse.FromString(reply.content)
        assert not told.HasField("partial_success")


@pytest.mark.parametrize(
    ("media", "body"),
    [
        (PROTOBUF, b""),
        (JSON, b""),
        (JSON, b"{}"),
        (JSON, b'{"resourceSpans":[]}'),
        (JSON, b'{"resourceSpans":null}'),
        (JSON, b'{"resourceSpans":[{"scopeSpans":[{"spans":[]}]}]}'),
    ],
)
def test_an_empty_request_is_a_success(collector, media, body):
    reply = collector.post(body, media)
    assert (reply.status_code, reply.content) == (200, b"" if media == PROTOBUF else b"{}")


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (("ab" * 15, "d" * 16), "the trace id is 15 bytes long, expected 16"),
        (("00" * 16, "d" * 16), "the trace id is all zeros"),
        (("ab" * 16, "00" * 8), "the span id is all zeros"),
        (("ab" * 16, ""), "the span id is 0 bytes long, expected 8"),
        (((b"ab" * 16).hex(), "d" * 16), "the trace id is 32 bytes long, expected 16: send bytes"),
    ],
    ids=["15 bytes", "zeros", "span zeros", "no span id", "hex as bytes"],
)
def test_one_bad_span_among_ten_good_is_rejected_alone_and_named(
    collector, trace, request_of, bad, sentence
):
    good = [(trace, f"{n:016x}") for n in range(1, 11)]
    reply = collector.post(request_of(good[0], bad, *good[1:]).SerializeToString())
    partial = ExportTraceServiceResponse.FromString(reply.content).partial_success
    assert (reply.status_code, partial.rejected_spans) == (200, 1)
    assert f"span 1 ('s'): {sentence}" in partial.error_message
    assert found(collector, trace)["span_id"].to_list() == [span for _, span in good]


def test_rejections_are_counted_where_an_operator_looks(collector, trace, request_of):
    before = collector.client.health()["rejected_spans"]
    collector.post(request_of((trace, B), ("00" * 16, C)).SerializeToString())
    assert collector.client.health()["rejected_spans"] == before + 1
    text = collector.http.get(f"{collector.client.url}/metrics").text
    assert 'heddle_spans_rejected_total{reason="id"}' in text


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ({"traceId": "Z6z8LqVvEI+kU1/Ci6mXBQ=="}, "ids must be hexadecimal, not base64"),
        ({"spanId": "0" * 16}, "all zeros"),
        ({"status": 5}, "status is int, expected an object"),
        ({"startTimeUnixNano": "soon"}, "startTimeUnixNano 'soon' is no integer"),
        ({"endTimeUnixNano": str(1 << 63)}, "outside 1970 to 2262"),
        ({"name": 5}, "name is int, expected a string"),
        ({"attributes": {"a": 1}}, "attributes is no list of objects"),
    ],
    ids=str,
)
def test_a_json_span_that_cannot_be_kept_is_named_and_the_good_one_stays(
    collector, trace, own, sentence
):
    reply = collector.post(document(trace, own, {"spanId": C}), JSON)
    partial = reply.json()["partialSuccess"]
    assert (reply.status_code, partial["rejectedSpans"]) == (200, "1")
    assert sentence in partial["errorMessage"]
    assert found(collector, trace)["span_id"].to_list() == [C]


@pytest.mark.parametrize(
    ("body", "media", "headers"),
    [
        (b"\xff\xff\xff", PROTOBUF, {}),
        (b"\x0a\x05\x01", PROTOBUF, {}),
        (b"no gzip", PROTOBUF, {"content_encoding": "gzip"}),
        (gzip.compress(b"x" * 99)[:-9], PROTOBUF, {"content_encoding": "gzip"}),
        (b"no deflate", PROTOBUF, {"content_encoding": "deflate"}),
        (b"no zstd", PROTOBUF, {"content_encoding": "zstd"}),
        (b"{", JSON, {}),
        (b"[1]", JSON, {}),
        (b'{"resourceSpans":5}', JSON, {}),
        (b'{"resourceSpans":[5]}', JSON, {}),
        (b'\xff{"resourceSpans":[]}', JSON, {}),
    ],
)
def test_what_cannot_be_read_is_400_with_a_status_body(collector, body, media, headers):
    reply = collector.post(body, media, **headers)
    assert (reply.status_code, reply.headers["content-type"]) == (400, media)
    if media == JSON:
        status = reply.json()
        assert (status["code"], bool(status["message"])) == (3, True)
    else:
        status = status_pb2.Status.FromString(reply.content)
        assert (status.code, bool(status.message)) == (3, True)


@pytest.mark.parametrize("encoding", ["br", "snappy", "nonsense"])
@pytest.mark.parametrize("media", [PROTOBUF, JSON])
def test_an_unknown_encoding_is_415_naming_the_known_ones(collector, encoding, media):
    reply = collector.post(b"{}", media, content_encoding=encoding)
    assert (reply.status_code, reply.headers["content-type"]) == (415, media)
    assert b"send gzip, deflate, zstd or none" in reply.content


def test_an_unknown_media_type_is_415_naming_the_known_ones(collector):
    reply = collector.post(b"", "text/plain")
    assert reply.status_code == 415
    assert b"send application/x-protobuf or application/json" in reply.content


def test_a_body_past_64_mib_is_413_packed_or_plain(collector):
    packed = collector.post(zlib.compress(bytes(65 << 20), 1), content_encoding="deflate")
    plain = collector.post(bytes((64 << 20) + 1))
    assert [packed.status_code, plain.status_code] == [413, 413]
    status = status_pb2.Status.FromString(packed.content)
    assert (status.code, "decompressed" in status.message) == (8, True)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_other_methods_are_405(collector, method):
    reply = collector.http.request(method, collector.traces)
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/v1/metrics", b"keeps traces; send metrics elsewhere"),
        ("/v1/logs", b"keeps traces; send logs elsewhere"),
        ("/", b"send traces to /v1/traces"),
    ],
)
def test_other_paths_are_404_with_a_sentence(collector, path, sentence):
    reply = collector.http.post(collector.traces.replace("/v1/traces", path), content=b"")
    assert reply.status_code == 404
    assert sentence in reply.content


def logs():
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=5)
    record.body.string_value = "hello"
    return request.SerializeToString()


def metrics():
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    metric.gauge.data_points.add(as_double=1.5)
    return request.SerializeToString()


@pytest.mark.parametrize("body", [logs(), metrics()], ids=["logs", "metrics"])
def test_another_signal_sent_as_traces_is_recognised(collector, body):
    reply = collector.post(body)
    assert reply.status_code == 400
    assert "were logs or metrics sent to the traces path?" in reply.text or b"protobuf" in (
        reply.content
    )


def test_json_ids_may_be_upper_case_numbers_strings_and_fields_unknown(collector, trace):
    own = {
        "traceId": trace.upper(),
        "startTimeUnixNano": 1_790_000_000_000_000_001,
        "endTimeUnixNano": "1790000000000000002",
        "kind": 2,
        "parentSpanId": "0" * 16,
        "foo": 1,
        "attributes": [{"key": "gen_ai.usage.input_tokens", "value": {"intValue": "7"}}],
    }
    assert collector.post(document(trace, own), JSON).json() == {}
    row = found(collector, trace).row(0, named=True)
    times = (row["start_ns"], row["end_ns"])
    assert times == (1_790_000_000_000_000_001, 1_790_000_000_000_000_002)
    assert row["parent_span_id"] is None


@pytest.mark.parametrize(
    ("start", "end", "kept"), [(9, 5, 5), (9, 0, None), (9, 9, 9)], ids=["before", "open", "same"]
)
def test_an_end_before_the_start_or_missing_is_kept_as_sent(collector, trace, start, end, kept):
    own = {"startTimeUnixNano": str(start), "endTimeUnixNano": str(end)}
    assert collector.post(document(trace, own), JSON).status_code == 200
    assert found(collector, trace).row(0, named=True)["end_ns"] == kept


VALUES = [
    ({"arrayValue": {"values": [{"intValue": "1"}, {"stringValue": "a"}, {}]}}, [1, "a", None]),
    ({"kvlistValue": {"values": [{"key": "k", "value": {"boolValue": True}}]}}, {"k": True}),
    ({"bytesValue": "AAE="}, "AAE="),
    ({"doubleValue": "NaN"}, "NaN"),
    ({}, None),
    (None, None),
]


@pytest.mark.parametrize(("value", "kept"), VALUES, ids=lambda v: str(v)[:20])
def test_every_kind_of_value_is_kept(collector, trace, value, kept):
    own = {"attributes": [{"key": "k", "value": value}]}
    assert collector.post(document(trace, own), JSON).json() == {}
    attrs = json.loads(found(collector, trace)["attrs"][0])
    assert attrs == {"k": kept}


def test_of_duplicate_keys_the_last_value_stays_in_both_encodings(collector, trace, request_of):
    pairs = [{"key": "k", "value": {"intValue": n}} for n in (1, 2)]
    collector.post(document(trace, {"attributes": pairs}), JSON)
    request = request_of((trace, C))
    for n in (1, 2):
        request.resource_spans[0].scope_spans[0].spans[0].attributes.add(
            key="k"
        ).value.int_value = n
    collector.post(request.SerializeToString())
    assert found(collector, trace)["attrs"].to_list() == ['{"k":2}', '{"k":2}']


def test_the_same_body_three_times_is_one_span(collector, trace, request_of):
    body = request_of((trace, B)).SerializeToString()
    assert [collector.post(body).status_code for _ in range(3)] == [200, 200, 200]
    assert found(collector, trace).height == 1


def test_a_child_whose_parent_never_comes_is_kept(collector, trace):
    assert collector.post(document(trace, {"parentSpanId": C}), JSON).status_code == 200
    assert found(collector, trace)["parent_span_id"].to_list() == [C]


def test_flags_state_links_events_scope_and_drop_counts_are_kept(collector, trace):
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add(schema_url="u1")
    scope = group.scope_spans.add(schema_url="u2")
    scope.scope.name, scope.scope.version = "lib", "1.2"
    span = scope.spans.add(trace_id=bytes.fromhex(trace), span_id=bytes.fromhex(B), name="s")
    span.trace_state, span.flags, span.dropped_attributes_count = "a=b", 257, 3
    span.dropped_events_count = 2
    span.events.add(name="e", time_unix_nano=7).attributes.add(key="k").value.int_value = 1
    span.links.add(trace_id=bytes.fromhex(trace), span_id=bytes.fromhex(C), trace_state="c=d")
    assert collector.post(request.SerializeToString()).status_code == 200
    statement = "SELECT scope, scope_info, trace_state, flags, dropped, events, links FROM spans"
    row = collector.client.sql(f"{statement} WHERE trace_id = '{trace}'").row(0)
    assert row[0] == "lib"
    assert json.loads(row[1]) == {"version": "1.2", "schema_url": "u2"}
    assert row[2:5] == ("a=b", 257, 5)
    assert json.loads(row[5]) == [{"name": "e", "time_ns": 7, "attributes": {"k": 1}}]
    assert json.loads(row[6]) == [{"trace_id": trace, "span_id": C, "trace_state": "c=d"}]


@pytest.mark.parametrize("body", [b"\xff\xff\xff", logs()], ids=["garbage", "logs"])
def test_bad_bytes_over_grpc_are_an_invalid_argument(collector, body):
    with grpc.insecure_channel(f"127.0.0.1:{collector.ports.grpc}") as channel:
        export = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
        with pytest.raises(grpc.RpcError) as failure:
            export(body, timeout=60)
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_partial_success_comes_over_grpc_too(collector, trace, request_of):
    with grpc.insecure_channel(f"127.0.0.1:{collector.ports.grpc}") as channel:
        export = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
        body = request_of((trace, B), ("00" * 16, C)).SerializeToString()
        told = ExportTraceServiceResponse.FromString(export(body, timeout=60))
    assert told.partial_success.rejected_spans == 1
    assert found(collector, trace)["span_id"].to_list() == [B]


def times(start, end):
    return {"startTimeUnixNano": str(start), "endTimeUnixNano": str(end)}


def test_what_is_odd_about_a_span_is_marked(collector, trace):
    own = [
        {"spanId": "1" * 16, "startTimeUnixNano": "10", "endTimeUnixNano": "90"},
        {"spanId": "2" * 16, "parentSpanId": "1" * 16, "endTimeUnixNano": "20"},
        {"spanId": "3" * 16, "parentSpanId": "9" * 16, "endTimeUnixNano": "20"},
        {"spanId": "4" * 16, "parentSpanId": "1" * 16, **times(30, 20)},
        {"spanId": "5" * 16, "parentSpanId": "1" * 16, "startTimeUnixNano": "30"},
        {"spanId": "6" * 16, "parentSpanId": "1" * 16, **times(30, 31)},
    ]
    assert collector.post(document(trace, *own), JSON).json() == {}
    rows = found(collector, trace)
    assert dict(zip(rows["span_id"].str.head(1), rows["marks"], strict=True)) == {
        "1": None,
        "2": "skewed",
        "3": "orphan",
        "4": "negative",
        "5": "running",
        "6": None,
    }


def test_two_roots_in_one_trace_are_both_marked(collector, trace):
    own = [{"spanId": f"{n}" * 16, "endTimeUnixNano": "9"} for n in (1, 2)]
    assert collector.post(document(trace, *own), JSON).json() == {}
    assert found(collector, trace)["marks"].to_list() == ["multi_root", "multi_root"]
