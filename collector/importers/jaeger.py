"""How does a trace exported by Jaeger (or its API) become spans?

Microseconds become nanoseconds; 64-bit trace ids get leading zeros, as Jaeger itself reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from heddle.collector.importers.documents import (
    Document,
    Found,
    ImportRefused,
    Source,
    attributes,
    parsed,
    span,
    text_of,
)
from heddle.collector.importers.recognise import recognised

_KINDS: Final = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}


def read(source: Source) -> Iterator[Found]:
    """The document of /api/traces or of the page's download."""
    document = parsed(source.path, text_of(source.path))
    traces = document.get("data") if isinstance(document, dict) else None
    if not isinstance(traces, list) or not all(isinstance(t, dict) for t in traces):
        raise ImportRefused(source.path, "", recognised(document))
    for number, trace in enumerate(traces):
        if "spans" not in trace:
            raise ImportRefused(source.path, f"trace {number}", recognised(document))
        yield from _trace(source, f"trace {number}", trace)


def _trace(source: Source, place: str, trace: Document) -> Iterator[Found]:
    processes = trace.get("processes") or {}
    grouped: dict[tuple[str, str], list[Document]] = {}
    for number, told in enumerate(trace["spans"]):
        try:
            tags = _tags(told.get("tags"))
            key = (str(told.get("processID", "")), str(tags.pop("otel.scope.name", "")))
            grouped.setdefault(key, []).append(_span(told, tags))
        except (KeyError, TypeError, ValueError) as error:
            where = f"{place}, span {number}"
            raise ImportRefused(source.path, where, f"lacks or garbles {error}") from error
    for (process, scope), spans in grouped.items():
        known = processes.get(process) or {}
        resource = {**_tags(known.get("tags")), "service.name": known.get("serviceName")}
        yield Found(spans, place, resource, scope)


def _span(told: Document, tags: dict[str, Any]) -> Document:
    start_ns = int(told["startTime"]) * 1_000
    kind = _KINDS.get(str(tags.get("span.kind", "")), 0)
    failed = tags.get("error") is True or tags.get("otel.status_code") == "ERROR"
    return span(
        str(told["traceID"]).rjust(32, "0"),
        str(told["spanID"]).rjust(16, "0"),
        str(told["operationName"]),
        start_ns,
        start_ns + int(told.get("duration") or 0) * 1_000,
        tags,
        parent=_parent(told),
        kind=kind,
        failed=failed,
        events=[_event(log) for log in told.get("logs") or []],
    )


def _parent(told: Document) -> str:
    for reference in told.get("references") or []:
        if reference.get("refType") == "CHILD_OF":
            return str(reference["spanID"]).rjust(16, "0")
    return str(told.get("parentSpanID") or "")


def _event(log: Document) -> Document:
    fields = _tags(log.get("fields"))
    name = str(fields.pop("event", "log"))
    return {
        "name": name,
        "timeUnixNano": str(int(log["timestamp"]) * 1_000),
        "attributes": attributes(fields),
    }


def _tags(tags: list[Document] | None) -> dict[str, Any]:
    return {str(tag["key"]): tag.get("value") for tag in tags or []}
