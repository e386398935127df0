"""What spans does an OTLP/JSON document hold?

Walks what orjson parsed, as the OTLP specification says: hex ids in any case, 64-bit integers as
string or number, integer enums, unknown fields ignored. Raises NotOtlp when there is no reading it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

from heddle.collector.attributes import BadSpan, finite
from heddle.collector.columns import Origin, Rows, Span, hex_id, parent_id


class NotOtlp(ValueError):
    """Not an OTLP/JSON trace request."""


def read(body: bytes, rows: Rows) -> None:
    """Add every span of the document to *rows*; spans that cannot be kept are rejected there."""
    if not body:
        return
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        message = f"the body is not JSON: {error}"
        raise NotOtlp(message) from error
    number = 0
    _refuse_other_signals(_object(document, "the document"))
    for group in _list(document, "resourceSpans"):
        resource = _attributes(_object(group.get("resource") or {}, "resource"))
        for scope in _list(group, "scopeSpans"):
            own = _object(scope.get("scope") or {}, "scope")
            name = own.get("name")
            info = _scope_info(own, scope.get("schemaUrl") or group.get("schemaUrl"))
            origin = Origin(resource, name if isinstance(name, str) else None, info)
            for span in _listed(scope, "spans"):
                _keep(span, number, origin, rows)
                number += 1


def _scope_info(scope: dict[str, Any], schema_url: Any) -> dict[str, Any]:
    known = {"version": scope.get("version"), "schema_url": schema_url}
    attributes = _attributes(scope)
    return {k: v for k, v in known.items() if v and isinstance(v, str)} | (
        {"attributes": attributes} if attributes else {}
    )


def _refuse_other_signals(document: dict[str, Any]) -> None:
    other = [key for key in ("resourceLogs", "resourceMetrics") if key in document]
    if other and "resourceSpans" not in document:
        message = f"the body holds {other[0]} and no resourceSpans; this collector keeps traces"
        raise NotOtlp(message)


def _keep(span: Any, number: int, origin: Origin, rows: Rows) -> None:
    if not isinstance(span, dict):
        rows.reject(f"span {number}", f"it is {type(span).__name__}, expected an object")
        return
    try:
        rows.add(_span(span), origin)
    except (BadSpan, NotOtlp, RecursionError) as error:
        rows.without_ids += not span.get("traceId") and not span.get("spanId")
        reason = getattr(error, "reason", "shape")
        rows.reject(f"span {number} ({span.get('name', '')!r})", str(error), reason)


def _span(span: dict[str, Any]) -> Span:
    status = _object(span.get("status") or {}, "status")
    events, links = _list(span, "events"), _list(span, "links")
    return Span(
        trace_id=hex_id(_text(span, "traceId"), 32, "trace id"),
        span_id=hex_id(_text(span, "spanId"), 16, "span id"),
        parent_span_id=parent_id(_text(span, "parentSpanId")),
        name=_text(span, "name"),
        kind=_integer(span, "kind") & 0x7F,
        start_ns=_integer(span, "startTimeUnixNano"),
        end_ns=_integer(span, "endTimeUnixNano"),
        attributes=_attributes(span),
        status=_integer(status, "code"),
        status_message=_text(status, "message"),
        trace_state=_text(span, "traceState"),
        events=[_event(e) for e in events] if events else None,
        links=[_link(e) for e in links] if links else None,
        dropped=sum(_integer(span, f"dropped{what}Count") for what in _DROPPED),
        flags=_integer(span, "flags"),
    )


def _event(event: dict[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {
        "name": _text(event, "name"),
        "time_ns": _integer(event, "timeUnixNano"),
    }
    attributes = _attributes(event)
    return {**known, "attributes": attributes} if attributes else known


def _link(link: dict[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {
        "trace_id": _text(link, "traceId").lower(),
        "span_id": _text(link, "spanId").lower(),
    }
    if link.get("traceState"):
        known["trace_state"] = _text(link, "traceState")
    attributes = _attributes(link)
    return {**known, "attributes": attributes} if attributes else known


def _object(value: Any, what: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    message = f"{what} is {type(value).__name__}, expected an object"
    raise NotOtlp(message)


def _list(owner: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = _listed(owner, key)
    if all(isinstance(v, dict) for v in value):
        return value
    message = f"{key} is no list of objects"
    raise NotOtlp(message)


def _listed(owner: dict[str, Any], key: str) -> list[Any]:
    value = owner.get(key) or []
    if isinstance(value, list):
        return value
    message = f"{key} is no list of objects"
    raise NotOtlp(message)


def _text(owner: dict[str, Any], key: str) -> str:
    value = owner.get(key) or ""
    if isinstance(value, str):
        return value
    message = f"{key} is {type(value).__name__}, expected a string"
    raise BadSpan(message)


def _integer(owner: dict[str, Any], key: str) -> int:
    value = owner.get(key) or 0
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        message = f"{key} {value!r} is no integer"
        raise BadSpan(message) from None


def _attributes(owner: dict[str, Any]) -> dict[str, Any]:
    pairs = _list(owner, "attributes")
    return {str(pair.get("key", "")): _any(pair.get("value")) for pair in pairs}


def _any(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    for kind, read_value in _KINDS.items():
        if kind in value:
            return read_value(value[kind])
    return None


def _number(value: Any) -> float | str:
    try:
        return finite(float(value))
    except (TypeError, ValueError):
        message = f"doubleValue {value!r} is no number"
        raise BadSpan(message) from None


_DROPPED: Final = ("Attributes", "Events", "Links")
_KINDS: Final[dict[str, Callable[[Any], Any]]] = {
    "stringValue": str,
    "intValue": lambda v: _integer({"intValue": v}, "intValue"),
    "doubleValue": _number,
    "boolValue": bool,
    "arrayValue": lambda v: [_any(e) for e in _list(_object(v, "arrayValue"), "values")],
    "kvlistValue": lambda v: {
        str(e.get("key", "")): _any(e.get("value")) for e in _list(_object(v, "kvlist"), "values")
    },
    # base64 text: the store keeps bytes as base64 anyway.
    "bytesValue": str,
}
