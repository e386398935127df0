"""How do OTLP/JSON files, their file-exporter lines, and Tempo's `batches` become spans?

A Tempo export is OTLP/JSON under another key, with ids in base64 or hex and enums by name.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any, Final

import orjson

from heddle.collector.importers.documents import (
    Document,
    Found,
    ImportRefused,
    Source,
    lines_of,
    parsed,
    text_of,
)
from heddle.collector.importers.recognise import recognised

_KINDS: Final = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
_CODES: Final = {"STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2}
_SCOPES: Final = ("scopeSpans", "instrumentationLibrarySpans")


def read(source: Source) -> Iterator[Found]:
    """A document, or one request a line as the collector's file exporter writes."""
    for place, document in _documents(source):
        yield from _groups(source, place, document, "resourceSpans")


def read_tempo(source: Source) -> Iterator[Found]:
    """What Grafana Tempo's API and the Explore page give."""
    document = parsed(source.path, text_of(source.path))
    yield from _groups(source, "", document, "batches")


def _documents(source: Source) -> Iterator[tuple[str, Any]]:
    whole = text_of(source.path)
    try:
        document = orjson.loads(whole)
    except orjson.JSONDecodeError:
        # Lines, or broken: then the line that does not parse is named.
        for number, line in lines_of(source.path):
            yield f"line {number}", parsed(source.path, line, number)
        return
    yield "", document


def _groups(source: Source, place: str, document: Any, key: str) -> Iterator[Found]:
    groups = document.get(key) if isinstance(document, dict) else None
    if not isinstance(groups, list):
        raise ImportRefused(source.path, place, recognised(document))
    for group in groups:
        if not isinstance(group, dict):
            raise ImportRefused(source.path, place, f"{key} holds something that is no object")
        yield from _scopes(source, place, group)


def _scopes(source: Source, place: str, group: Document) -> Iterator[Found]:
    resource = _plain((group.get("resource") or {}).get("attributes") or [])
    for scope in (s for key in _SCOPES for s in group.get(key) or []):
        named = scope.get("scope") or scope.get("instrumentationLibrary") or {}
        spans = [_span(source, place, n, s) for n, s in enumerate(scope.get("spans") or [])]
        yield Found(spans, place, resource, str(named.get("name") or ""))


def _span(source: Source, place: str, number: int, span: Any) -> Document:
    if not isinstance(span, dict):
        raise ImportRefused(source.path, place, f"span {number} is no object")
    status = span.get("status") or {}
    code = status.get("code", 0)
    return {
        **span,
        "traceId": _hex(span.get("traceId", ""), 16),
        "spanId": _hex(span.get("spanId", ""), 8),
        "parentSpanId": _hex(span.get("parentSpanId") or "", 8),
        "kind": _kind(span.get("kind", 0)),
        "status": {**status, "code": _CODES.get(code, 0) if isinstance(code, str) else code},
    }


def _kind(kind: Any) -> Any:
    name = str(kind).removeprefix("SPAN_KIND_")
    return _KINDS.index(name) if name in _KINDS else kind


def _hex(text: Any, size: int) -> Any:
    """Base64 of an id as hex; everything else as it is, for the receiver to judge."""
    if not isinstance(text, str) or len(text) != (size + 2) // 3 * 4:
        return text
    try:
        return base64.b64decode(text, validate=True).hex()
    except binascii.Error:
        return text


def _plain(pairs: list[Document]) -> dict[str, Any]:
    """Attributes as plain values; nested ones are not needed of a resource."""
    found: dict[str, Any] = {}
    for pair in pairs:
        told = pair.get("value") or {}
        for kind, plain in told.items():
            found[str(pair.get("key", ""))] = int(plain) if kind == "intValue" else plain
    return found
