"""Whatever bytes come, the decoder answers with spans or with BadRequest, and what it keeps stores.

`python tests/collector/test_decoder_fuzz.py SECONDS` runs the same for as long as one likes.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import duckdb
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from heddle.collector import otlp
from heddle.collector.columns import SCHEMA
from heddle.collector.keys import hashes_of

A, B = "a" * 32, "b" * 16
WORDS = [
    b'"traceId"', b'"spans"', b"null", b"1e999", b"-1", b'""', b"[]", b"{}", b"\\ud800", b"\xff",
    b"18446744073709551616", b"NaN", b"\x00", b"[" * 300, b'{"value":' * 200, b"0x10", b"1_0",
    b'"decode_loop"', b'"rid"', b'"rollout_n"', b'"langfuse.observation.usage_details"',
]  # fmt: skip


def seeds() -> list[tuple[bytes, str]]:
    """One request of every kind of value, in both encodings."""
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add(schema_url="u")
    group.resource.attributes.add(key="service.name").value.string_value = "s"
    scope = group.scope_spans.add()
    scope.scope.name = "sglang server"
    for name in ("chat m", "decode_loop", " Req abc"):
        span = scope.spans.add(trace_id=bytes.fromhex(A), span_id=bytes.fromhex(B), name=name)
        span.parent_span_id = bytes.fromhex(B)
        span.start_time_unix_nano, span.end_time_unix_nano, span.kind = 5, 9, 2
        for key, kind, value in (
            ("gen_ai.usage.input_tokens", "int_value", 7),
            ("heddle.queue_s", "double_value", float("nan")),
            ("rid", "string_value", "t-1-2"),
            ("rollout_n", "bool_value", True),
            ("bytes", "bytes_value", b"\xff\x00"),
        ):
            setattr(span.attributes.add(key=key).value, kind, value)
        span.attributes.add(key="list").value.array_value.values.add().int_value = 1
        pairs = span.attributes.add(key="map").value.kvlist_value.values
        pairs.add(key="k").value.string_value = "v"
        span.events.add(name="exception", time_unix_nano=6).attributes.add(key="content")
        span.links.add(trace_id=bytes.fromhex(A), span_id=bytes.fromhex(B))
        span.status.code = 2
    values = [{"stringValue": "x"}, {"intValue": "5"}, {"doubleValue": 1.5}, {"bytesValue": "AA="}]
    values += [{"arrayValue": {"values": [{}]}}, {"kvlistValue": {"values": []}}, {}]
    attributes = [{"key": f"k{at}", "value": value} for at, value in enumerate(values)]
    own = {"traceId": A, "spanId": B, "name": "n", "kind": 1, "startTimeUnixNano": "5"}
    event = {"name": "e", "timeUnixNano": 1, "attributes": attributes}
    span = {**own, "attributes": attributes, "events": [event], "status": {"code": 1}}
    document = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": [span]}]}]}
    return [
        (request.SerializeToString(), otlp.PROTOBUF),
        (json.dumps(document).encode(), otlp.JSON),
    ]


def mutated(body: bytes, rng: random.Random) -> bytes:
    """One to eight random edits: bytes changed, cut, repeated, words put in."""
    data = bytearray(body)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(5)
        if kind == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at : at + rng.randint(1, 12)]
        elif kind == 2:
            data[at:at] = data[at : at + rng.randint(1, 40)]
        elif kind == 3:
            data[at:at] = rng.choice(WORDS)
        else:
            data[at:at] = rng.randbytes(rng.randint(1, 4))
    return bytes(data)


def check(body: bytes, media: str) -> int:
    """Rows kept; every one has ids that can be keyed and JSON that DuckDB takes."""
    try:
        decoded = otlp.decode(body, media, 1)
    except otlp.BadRequest:
        return 0
    table = decoded.table
    assert table.schema.equals(SCHEMA)
    assert len(hashes_of(table)) == table.num_rows
    assert decoded.rejected == 0 or decoded.message
    for column in ("attrs", "events", "links", "resource"):
        for text in table.column(column).drop_null().to_pylist():
            json.loads(text)
    return table.num_rows


def storable(body: bytes, media: str, connection: duckdb.DuckDBPyConnection) -> None:
    """What was kept becomes VARIANT."""
    try:
        table = otlp.decode(body, media, 1).table
    except otlp.BadRequest:
        return
    connection.register("incoming", table)
    connection.execute("SELECT attrs::JSON::VARIANT FROM incoming").fetchall()
    connection.unregister("incoming")


@pytest.mark.parametrize("which", [0, 1], ids=["protobuf", "json"])
def test_damaged_requests_are_refused_or_kept_in_part_and_never_crash(which):
    body, media = seeds()[which]
    assert check(body, media) >= 1
    rng = random.Random(which)
    with duckdb.connect() as connection:
        for turn in range(600):
            damaged = mutated(body, rng)
            check(damaged, media)
            if turn % 6 == 0:
                storable(damaged, media, connection)


@pytest.mark.parametrize("seconds", [1e300, -1e300, 9.3e9, "1e400"])
def test_seconds_beyond_the_nanoseconds_of_a_lifetime_are_not_known(seconds):
    pair = {"key": "heddle.queue_s", "value": {"doubleValue": seconds}}
    span = {"traceId": A, "spanId": B, "name": "n", "attributes": [pair]}
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    table = otlp.decode(json.dumps(body).encode(), otlp.JSON, 1).table
    assert table.column("queue_ns").to_pylist() == [None]


def main(seconds: float) -> None:
    """Print every body that broke something."""
    rng, began, cases, kept = random.Random(time.time_ns()), time.monotonic(), 0, 0
    known = seeds()
    with duckdb.connect() as connection:
        while time.monotonic() - began < seconds:
            body, media = rng.choice(known)
            damaged = mutated(body, rng)
            cases += 1
            try:
                kept += check(damaged, media)
                storable(damaged, media, connection)
            except Exception as error:  # noqa: BLE001 (a fuzz run goes on and tells)
                name = f"{type(error).__name__}-{cases}"
                Path(sys.argv[2], name).write_bytes(damaged)
                sys.stdout.write(f"{name} {media} {str(error)[:200]}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{cases} cases, {kept} spans kept\n")


if __name__ == "__main__":
    main(float(sys.argv[1]))
