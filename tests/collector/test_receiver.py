"""OTLP over HTTP: every row of the receiver checklist with its input."""

from __future__ import annotations

import gzip
import json
import zlib

import grpc
import pytest
import zstandard
from google.rpc import status_pb2
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

A, B, C = "a" * 32, "b" * 16, "c" * 16


def spans(collector, **filters):
    return collector.query("spans", trace=A, **filters)


def json_span(**own):
    span = {"traceId": A, "spanId": B, "name": "s", "startTimeUnixNano": "5", **own}
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("zstd", zstandard.ZstdCompressor().compress),
        ("identity", bytes),
    ],
)
def test_every_promised_encoding_is_undone(collector, request_of, encoding, pack):
    body = pack(request_of((A, B)).SerializeToString())
    assert collector.post(body, content_encoding=encoding).status_code == 200
    assert spans(collector)["span_id"].to_list() == [B]


def test_success_is_200_in_the_same_media_type_with_partial_success_unset(collector, request_of):
    reply = collector.post(request_of((A, B)).SerializeToString())
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/x-protobuf")
    assert not ExportTraceServiceResponse.FromString(reply.content).HasField("partial_success")


def test_a_charset_parameter_is_tolerated(collector):
    reply = collector.post(json_span(), "application/json; charset=utf-8")
    assert (reply.status_code, reply.json()) == (200, {})
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("media", "body"), [("application/x-protobuf", b""), ("application/json", b"{}")]
)
def test_an_empty_request_is_a_success(collector, media, body):
    assert collector.post(body, media).status_code == 200


def test_one_bad_span_among_good_ones_is_rejected_alone_and_named(collector, request_of):
    reply = collector.post(request_of((A, B), ("ab" * 15, "d" * 16), (A, C)).SerializeToString())
    partial = ExportTraceServiceResponse.FromString(reply.content).partial_success
    assert (reply.status_code, partial.rejected_spans) == (200, 1)
    assert "span 1 ('s'): the trace id is 15 bytes long, expected 16" in partial.error_message
    assert spans(collector)["span_id"].to_list() == [B, C]
    assert collector.client.health()["rejected_spans"] == 1


def test_json_rejections_are_named_too(collector):
    reply = collector.post(json_span(spanId="0" * 16), "application/json")
    partial = reply.json()["partialSuccess"]
    assert partial["rejectedSpans"] == "1"
    assert "all zeros" in partial["errorMessage"]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"\xff\xff\xff", {}),
        (b"no gzip", {"content_encoding": "gzip"}),
        (gzip.compress(b"x" * 99)[:-9], {"content_encoding": "gzip"}),
        (b"no zstd", {"content_encoding": "zstd"}),
    ],
    ids=["protobuf", "gzip", "cut short", "zstd"],
)
def test_what_cannot_be_read_is_400_with_a_status_body(collector, body, headers):
    reply = collector.post(body, **headers)
    status = status_pb2.Status.FromString(reply.content)
    assert (reply.status_code, status.code) == (400, 3)
    assert status.message


@pytest.mark.parametrize("body", [b"{", b"[1]", b'{"resourceSpans":5}', b'{"resourceSpans":[5]}'])
def test_json_that_is_no_request_is_400_with_a_json_status(collector, body):
    reply = collector.post(body, "application/json")
    assert (reply.status_code, reply.json()["code"]) == (400, 3)


def test_an_unknown_encoding_or_media_type_is_415(collector):
    assert collector.post(b"", content_encoding="br").status_code == 415
    assert collector.post(b"", "text/plain").status_code == 415


def test_a_bomb_is_413_after_the_limit(collector):
    bomb = zlib.compress(bytes(65 << 20), 1)
    reply = collector.post(bomb, content_encoding="deflate")
    assert reply.status_code == 413
    assert "decompressed" in status_pb2.Status.FromString(reply.content).message


def test_get_is_405_and_other_signals_are_refused_by_name(collector):
    assert collector.http.get(collector.traces).status_code == 405
    reply = collector.http.post(collector.traces.replace("traces", "metrics"), content=b"")
    assert reply.status_code == 404
    assert "keeps traces; send metrics elsewhere" in reply.text


def test_logs_sent_as_traces_are_recognised(collector):
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=5)
    record.body.string_value = "hello"
    reply = collector.post(request.SerializeToString())
    assert reply.status_code == 400
    assert "were logs or metrics sent" in status_pb2.Status.FromString(reply.content).message


def test_json_ids_may_be_upper_case_and_numbers_strings(collector):
    body = json_span(
        traceId=A.upper(),
        startTimeUnixNano=1_790_000_000_000_000_001,
        endTimeUnixNano="1790000000000000002",
        kind=2,
        parentSpanId="0" * 16,
        foo=1,
        attributes=[{"key": "gen_ai.usage.input_tokens", "value": {"intValue": "7"}}],
    )
    assert collector.post(body, "application/json").json() == {}
    row = spans(collector).row(0, named=True)
    assert (row["start_ns"], row["end_ns"]) == (
        1_790_000_000_000_000_001,
        1_790_000_000_000_000_002,
    )
    assert row["parent_span_id"] is None


def test_an_end_before_the_start_is_kept_as_sent(collector):
    collector.post(json_span(startTimeUnixNano="9", endTimeUnixNano="5"), "application/json")
    assert spans(collector).row(0, named=True)["end_ns"] == 5


def test_a_number_where_an_object_belongs_rejects_that_span_only(collector):
    good = {"traceId": A, "spanId": C, "name": "good"}
    bad = {"traceId": A, "spanId": B, "status": 5}
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [bad, good]}]}]}
    reply = collector.post(json.dumps(body).encode(), "application/json")
    assert reply.json()["partialSuccess"]["rejectedSpans"] == "1"
    assert spans(collector)["span_id"].to_list() == [C]


def test_bad_bytes_over_grpc_are_an_invalid_argument(collector):
    with grpc.insecure_channel(f"127.0.0.1:{collector.ports.grpc}") as channel:
        export = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
        with pytest.raises(grpc.RpcError) as failure:
            export(b"\xff\xff\xff", timeout=60)
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
