"""What spans does this OTLP trace request hold, in protobuf or in JSON?

`decode` gives one Arrow table and says which spans were rejected and why; BadRequest when the
request as a whole cannot be read. json_format is not used: it takes ids for base64, and is 13
times slower than walking the parsed JSON.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from heddle.collector import otlp_json
from heddle.collector.columns import BadSpan, Origin, Rows, Span, hex_id, parent_id
from heddle.collector.errors import CollectorError

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"


class BadRequest(CollectorError):
    """The request cannot be read at all."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The spans kept, how many were rejected, and the sentence naming them."""

    table: pa.Table
    rejected: int = 0
    message: str = ""


def decode(body: bytes, media: str, received_ns: int | None = None) -> Decoded:
    """The spans of one ExportTraceServiceRequest encoded as PROTOBUF or JSON."""
    rows = Rows(time.time_ns() if received_ns is None else received_ns)
    try:
        (_from_json if media == JSON else _from_protobuf)(body, rows)
    except (BadSpan, RecursionError) as error:
        message = f"a resource of the request cannot be kept: {error}"
        raise BadRequest(message) from error
    return Decoded(rows.table(), rows.rejected, rows.message)


def _from_json(body: bytes, rows: Rows) -> None:
    try:
        otlp_json.read(body, rows)
    except otlp_json.NotOtlp as error:
        raise BadRequest(str(error)) from error


def _from_protobuf(body: bytes, rows: Rows) -> None:
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError as error:
        message = f"the body is no protobuf ExportTraceServiceRequest: {error}"
        raise BadRequest(message) from error
    number = 0
    for group in request.resource_spans:
        resource = _attributes(group.resource.attributes)
        for scope in group.scope_spans:
            origin = Origin(resource, scope.scope.name)
            for span in scope.spans:
                _keep(span, number, origin, rows)
                number += 1


def _keep(span: trace_pb2.Span, number: int, origin: Origin, rows: Rows) -> None:
    try:
        rows.add(_span(span), origin)
    except BadSpan as error:
        hint = "" if span.trace_id or span.span_id else " (were logs or metrics sent as traces?)"
        rows.reject(f"span {number} ({span.name!r})", f"{error}{hint}")


def _span(span: trace_pb2.Span) -> Span:
    return Span(
        trace_id=hex_id(span.trace_id.hex(), 32, "trace id"),
        span_id=hex_id(span.span_id.hex(), 16, "span id"),
        parent_span_id=parent_id(span.parent_span_id.hex()),
        name=span.name,
        kind=span.kind,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        status=span.status.code,
        status_message=span.status.message,
        trace_state=span.trace_state,
        events=[_event(e) for e in span.events] if span.events else None,
        links=[_link(e) for e in span.links] if span.links else None,
        dropped=span.dropped_attributes_count,
    )


def _event(event: trace_pb2.Span.Event) -> dict[str, Any]:
    known: dict[str, Any] = {"name": event.name, "time_ns": event.time_unix_nano}
    if event.attributes:
        known["attributes"] = _attributes(event.attributes)
    return known


def _link(link: trace_pb2.Span.Link) -> dict[str, Any]:
    known: dict[str, Any] = {"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex()}
    if link.attributes:
        known["attributes"] = _attributes(link.attributes)
    return known


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _any(pair.value) for pair in pairs}


def _any(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    if which is None:
        return None
    if which == "array_value":
        return [_any(v) for v in value.array_value.values]
    if which == "kvlist_value":
        return _attributes(value.kvlist_value.values)
    return getattr(value, which)
