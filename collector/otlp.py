"""What spans does this OTLP trace request hold, in protobuf or in JSON?

`decode` gives one Arrow table and says which spans were rejected and why; BadRequest when the
request as a whole cannot be read. json_format is not used: it takes ids for base64, and is 13
times slower than walking the parsed JSON.
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.trace.v1 import trace_pb2

from heddle.collector import otlp_json
from heddle.collector.attributes import BadSpan
from heddle.collector.columns import Columns, Origin, Rows, Span, hex_id, parent_id
from heddle.collector.content import Content
from heddle.collector.errors import CollectorError
from heddle.collector.otlp_wire import TracesData, read_attributes, read_pairs

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"


class BadRequest(CollectorError):
    """The request cannot be read at all."""


class Decoded:
    """The spans kept, how many were rejected, and the sentence naming them."""

    def __init__(self, rows: Rows | Columns) -> None:
        self.rows = rows
        self.rejected = rows.rejected
        self.message = rows.message

    @cached_property
    def table(self) -> Any:
        """The spans as a pyarrow Table of columns.SCHEMA, floods left out."""
        return self.rows.table()


def decode(
    body: bytes, media: str, received_ns: int | None = None, content: Content | None = None
) -> Decoded:
    """The spans of one ExportTraceServiceRequest encoded as PROTOBUF or JSON."""
    rows = Rows(time.time_ns() if received_ns is None else received_ns, content)
    try:
        (_from_json if media == JSON else _from_protobuf)(body, rows)
    except (BadSpan, RecursionError) as error:
        message = f"a resource of the request cannot be kept: {error}"
        raise BadRequest(message) from error
    if rows.rejected and not len(rows) and rows.all_without_ids:
        raise BadRequest(_OTHER_SIGNAL)
    return Decoded(rows)


def _from_json(body: bytes, rows: Rows) -> None:
    try:
        otlp_json.read(body, rows)
    except otlp_json.NotOtlp as error:
        raise BadRequest(str(error)) from error


def _from_protobuf(body: bytes, rows: Rows) -> None:
    try:
        request = TracesData.FromString(body)
    except DecodeError as error:
        message = f"the body is no protobuf ExportTraceServiceRequest: {error}"
        raise BadRequest(message) from error
    number = 0
    for group in request.resource_spans:
        resource = read_attributes(group.resource.attributes)
        for scope in group.scope_spans:
            info = _scope_info(scope.scope, scope.schema_url or group.schema_url)
            origin = Origin(resource, scope.scope.name, info)
            for span in scope.spans:
                _keep(span, number, origin, rows)
                number += 1


def _scope_info(scope: InstrumentationScope, schema_url: str) -> dict[str, Any]:
    known = {"version": scope.version, "schema_url": schema_url}
    attributes = read_attributes(scope.attributes)
    return {k: v for k, v in known.items() if v} | (
        {"attributes": attributes} if attributes else {}
    )


def _keep(span: Any, number: int, origin: Origin, rows: Rows) -> None:
    try:
        rows.add(_span(span), origin)
    except (BadSpan, DecodeError, RecursionError) as error:
        rows.without_ids += not span.trace_id and not span.span_id
        reason = getattr(error, "reason", "shape")
        rows.reject(f"span {number} ({span.name!r})", str(error), reason)


def _span(span: Any) -> Span:
    trace, own, parent = span.trace_id, span.span_id, span.parent_span_id
    attributes, said = read_pairs(span.attributes)
    status, events, links = span.status, span.events, span.links
    # By place: sixteen names would cost as much as reading the fields.
    return Span(
        _id(trace, 16, "trace id"),
        _id(own, 8, "span id"),
        parent_id(parent.hex()) if parent else None,
        span.name,
        span.kind & 0x7F,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        attributes,
        status.code,
        status.message,
        span.trace_state,
        [_event(e) for e in events] if events else None,
        [_link(e) for e in links] if links else None,
        span.dropped_attributes_count + span.dropped_events_count + span.dropped_links_count,
        span.flags,
        said,
    )


def _id(value: bytes, size: int, what: str) -> str:
    if len(value) == size and any(value):
        return value.hex()
    if len(value) == 2 * size:
        # A sender that put hexadecimal text where bytes belong: say so, the length alone puzzles.
        message = f"the {what} is {len(value)} bytes long, expected {size}: send bytes, not hex"
        raise BadSpan(message, "id")
    return hex_id(value.hex(), 2 * size, what)


def _event(event: trace_pb2.Span.Event) -> dict[str, Any]:
    known: dict[str, Any] = {"name": event.name, "time_ns": event.time_unix_nano}
    if event.attributes:
        known["attributes"] = read_attributes(event.attributes)
    return known


def _link(link: trace_pb2.Span.Link) -> dict[str, Any]:
    known: dict[str, Any] = {"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex()}
    if link.trace_state:
        known["trace_state"] = link.trace_state
    if link.attributes:
        known["attributes"] = read_attributes(link.attributes)
    return known


_OTHER_SIGNAL: Final = (
    "not one span of the request has a trace id: were logs or metrics sent to the traces path? "
    "This collector keeps traces"
)
