"""Requests nobody sane sends and somebody will: huge, slow, in crumbs, in floods."""

from __future__ import annotations

import json
import re
import socket
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import duckdb
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from heddle.collector import otlp
from heddle.collector.dialects import SGLANG_SCOPE
from heddle.collector.errors import StoreUnwritable
from heddle.collector.store import Store
from heddle.collector.store_file import SCHEMA_VERSION

B, C = "b" * 16, "c" * 16


@pytest.fixture
def collector(shared_collector):
    return shared_collector


@pytest.fixture
def trace():
    return uuid.uuid4().hex


def stored(collector, trace, what="*"):
    return collector.client.sql(f"SELECT {what} FROM spans WHERE trace_id = '{trace}'")


def spans_of(trace, first, count):
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for number in range(first, first + count):
        own = {"trace_id": bytes.fromhex(trace), "span_id": number.to_bytes(8, "big")}
        spans.add(**own, name="s", start_time_unix_nano=number, end_time_unix_nano=number + 1)
    return request.SerializeToString()


def test_eight_senders_at_once_lose_nothing(collector, trace):
    bodies = [spans_of(trace, 1 + 10 * n, 10) for n in range(80)]
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(collector.post, bodies))
    assert {reply.status_code for reply in replies} == {200}
    assert stored(collector, trace, "count(DISTINCT span_id)").row(0) == (800,)


def test_a_trace_of_50_000_spans_is_kept_whole(collector, trace):
    for first in range(1, 50_001, 10_000):
        assert collector.post(spans_of(trace, first, 10_000)).status_code == 200
    assert stored(collector, trace, "count(*), count(DISTINCT span_id)").row(0) == (50_000,) * 2


def test_10_000_attributes_on_a_span_and_one_of_5_mb_are_kept(collector, trace, request_of):
    request = request_of((trace, B), (trace, C))
    many, big = request.resource_spans[0].scope_spans[0].spans
    for number in range(10_000):
        many.attributes.add(key=f"k{number}").value.int_value = number
    big.attributes.add(key="k").value.string_value = "x" * 5_000_000
    assert collector.post(request.SerializeToString()).status_code == 200
    sizes = stored(collector, trace, "span_id, length(attrs::JSON::VARCHAR) AS size").sort(
        "span_id"
    )
    expected = len(json.dumps({f"k{n}": n for n in range(10_000)}, separators=(",", ":")))
    assert sizes["size"].to_list() == [expected, 5_000_000 + len('{"k":""}')]


def test_a_body_in_chunks_of_one_byte_is_read(collector, trace, request_of):
    body = request_of((trace, B)).SerializeToString()
    head = (
        "POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
        "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", collector.ports.http), timeout=60) as sock:
        sock.sendall(head.encode())
        for byte in body:
            sock.sendall(b"1\r\n" + bytes([byte]) + b"\r\n")
        sock.sendall(b"0\r\n\r\n")
        assert sock.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"
    assert stored(collector, trace).height == 1


def test_a_sender_that_stalls_halfway_holds_up_nobody(collector, trace, request_of):
    body = request_of((trace, B)).SerializeToString()
    head = f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    address = ("127.0.0.1", collector.ports.http)
    with socket.create_connection(address, timeout=60) as stalled:
        stalled.sendall(head + body[:10])
        assert collector.post(body).status_code == 200
        assert collector.client.healthy()
    assert stored(collector, trace).height == 1


def flood(trace, parent, first, count, thread=False):
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    scope.scope.name = SGLANG_SCOPE
    for number in range(first, first + count):
        own = {"trace_id": bytes.fromhex(trace), "span_id": number.to_bytes(8, "big")}
        slice_ = scope.spans.add(**own, name="decode_loop", parent_span_id=bytes.fromhex(parent))
        slice_.start_time_unix_nano, slice_.end_time_unix_nano = number, number + 1
    if thread:
        own = {"trace_id": bytes.fromhex(trace), "span_id": bytes.fromhex(parent)}
        scope.spans.add(**own, name="decode_forward", end_time_unix_nano=9_999)
    return request.SerializeToString()


def test_a_flood_is_counted_in_its_span_and_a_retry_counts_once(collector, trace):
    for first in (1, 101, 1):
        assert collector.post(flood(trace, B, first, 100)).status_code == 200
    assert stored(collector, trace).height == 0
    open_fold = f"SELECT spans, start_ns, end_ns FROM folds WHERE trace_id = '{trace}'"
    assert collector.client.sql(open_fold).rows() == [(200, 1, 201)]
    assert collector.post(flood(trace, B, 201, 50, thread=True)).status_code == 200
    assert stored(collector, trace, "name, folded").rows() == [("decode_forward", 250)]
    assert collector.client.sql(open_fold).height == 0


def test_counters_speak_prometheus(collector, trace, request_of):
    assert collector.post(request_of((trace, B)).SerializeToString()).status_code == 200
    reply = collector.http.get(f"{collector.client.url}/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in reply.text.splitlines() if not line.startswith("#")]
    known = {line.split("{")[0].split(" ")[0] for line in lines}
    wanted = "spans_accepted_total spans_stored_total spans_duplicate_total queue_bytes"
    wanted += " requests_overloaded_total commit_seconds_bucket ingest_lag_seconds disk_free_bytes"
    assert {f"heddle_{name}" for name in wanted.split()} <= known
    assert all(float(line.rpartition(" ")[2]) >= 0 for line in lines)


def test_alert_rules_watch_metrics_that_exist(collector, pytestconfig):
    rules = (pytestconfig.rootpath / "docs/alerts.yml").read_text()
    rules = rules.partition("- name: heddle-controller")[0]
    text = collector.http.get(f"{collector.client.url}/metrics").text
    names = set(re.findall("heddle_[a-z_]+", rules))
    assert names
    assert not [name for name in names if f"# TYPE {name} " not in text]


def test_what_a_sender_says_it_dropped_is_shown(collector, trace, request_of):
    request = request_of((trace, B))
    resource = request.resource_spans[0].resource
    resource.attributes.add(key="service.name").value.string_value = 'tr"ainer'
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.attributes.add(key="heddle.sender.dropped").value.int_value = 7
    collector.post(request.SerializeToString())
    text = collector.http.get(f"{collector.client.url}/metrics").text
    assert 'heddle_sender_dropped_spans{service="tr\\"ainer"} 7' in text


def test_an_older_file_is_migrated_and_kept_as_it_was(tmp_path):
    path = tmp_path / "h.duckdb"
    Store(path).close()
    with closing(duckdb.connect(str(path))) as connection:
        connection.execute("UPDATE heddle_schema SET version = 1; CHECKPOINT")
    before = path.read_bytes()
    with closing(Store(path)) as store:
        assert "h.duckdb.schema-1" in store.notice
        with store.reading() as cursor:
            rows = cursor.execute("SELECT max(version) FROM heddle_schema").fetchall()
    assert rows == [(SCHEMA_VERSION,)]
    assert (tmp_path / "h.duckdb.schema-1").read_bytes() == before


def test_after_a_fatal_error_the_file_is_opened_anew(tmp_path, request_of, trace, monkeypatch):
    def rows(span):
        return otlp.decode(request_of((trace, span)).SerializeToString(), otlp.PROTOBUF).rows

    with closing(Store(tmp_path / "h.duckdb")) as store:
        store.append(rows(B), 1).result(60)

        def fail(*_, **__):
            message = "FATAL Error: database has been invalidated"
            raise duckdb.FatalException(message)

        monkeypatch.setattr(store._committer, "commit", fail)
        with pytest.raises(StoreUnwritable, match="invalidated"):
            store.append(rows(C), 1).result(60)
        assert store.append(rows(C), 1).result(60) == 1
        assert store.reopened == 1
        with store.reading() as cursor:
            kept = cursor.execute("SELECT span_id FROM spans ORDER BY 1").fetchall()
    assert kept == [(B,), (C,)]
