"""How does a span read from some file become OTLP/JSON, and what may an importer say of a file?

Every importer yields `Found`: spans of one resource with the place in the file they came from. Ids
are those of the file or derived from what is in it, so that importing twice stores once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from heddle.collector.errors import CollectorError

Document = dict[str, Any]


class ImportRefused(CollectorError):
    """The file, or one place in it, cannot be imported; the text names the place."""

    def __init__(self, path: Path, place: str, why: str) -> None:
        super().__init__(f"{path}{f', {place}' if place else ''}: {why}")


@dataclass(frozen=True, slots=True)
class Found:
    """OTLP/JSON spans that share a resource and a scope."""

    spans: list[Document]
    place: str
    resource: Mapping[str, Any] = field(default_factory=dict)
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """What an importer is given: the file, and what the command line says of it."""

    path: Path
    run: str | None = None
    trusted: bool = False


def request(found: Iterable[Found]) -> bytes:
    """One ExportTraceServiceRequest."""
    groups = [
        {
            "resource": {"attributes": attributes(each.resource)},
            "scopeSpans": [{"scope": {"name": each.scope}, "spans": each.spans}],
        }
        for each in found
    ]
    return orjson.dumps({"resourceSpans": groups})


def chunks(found: Iterable[Found], most: int) -> Iterator[tuple[list[Found], int]]:
    """Groups of at most *most* spans, and how many each holds."""
    held: list[Found] = []
    count = 0
    for each in found:
        for first in range(0, len(each.spans), most):
            part = each.spans[first : first + most]
            if count + len(part) > most and held:
                yield held, count
                held, count = [], 0
            held.append(Found(part, each.place, each.resource, each.scope))
            count += len(part)
    if held:
        yield held, count


def span(
    trace_id: str,
    span_id: str,
    name: str,
    start_ns: int,
    end_ns: int,
    given: Mapping[str, Any],
    *,
    parent: str = "",
    kind: int = 1,
    failed: bool = False,
    events: list[Document] | None = None,
) -> Document:
    """One OTLP/JSON span; attributes without a value are left out."""
    known: Document = {
        "traceId": trace_id,
        "spanId": span_id,
        "parentSpanId": parent,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(end_ns),
        "attributes": attributes(given),
        "status": {"code": 2} if failed else {},
    }
    return {**known, "events": events} if events else known


def attributes(given: Mapping[str, Any]) -> list[Document]:
    """OTLP/JSON attributes of plain values."""
    return [{"key": str(k), "value": value(v)} for k, v in given.items() if v is not None]


def value(plain: Any) -> Document:
    """One AnyValue."""
    if isinstance(plain, bool):
        return {"boolValue": plain}
    if isinstance(plain, int):
        return {"intValue": str(plain)}
    if isinstance(plain, float):
        return {"doubleValue": plain}
    if isinstance(plain, list | tuple):
        return {"arrayValue": {"values": [value(v) for v in plain]}}
    if isinstance(plain, dict):
        return {"kvlistValue": {"values": attributes(plain)}}
    return {"stringValue": str(plain)}


def text_of(path: Path) -> bytes:
    """The file; ImportRefused when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ImportRefused(path, "", f"cannot be read: {error.strerror}") from error


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, numbered from 1."""
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise ImportRefused(path, "", f"cannot be read: {error.strerror}") from error


def parsed(path: Path, text: bytes, line: int | None = None) -> Any:
    """JSON; ImportRefused with the line when it is none."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        at = line if line is not None else error.lineno
        raise ImportRefused(path, f"line {at}", f"is not JSON: {error.msg}") from error
