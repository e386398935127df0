"""Which columns does the store keep of a span, and how do spans of any encoding become them?

`Rows` gathers spans and turns them into one Arrow table. Attributes named by `conventions` get a
column each; all attributes as sent stay in `attrs`, without content unless capture is on. A span
with ids or times that no store could keep is rejected alone, with a sentence. Slices that an engine
sends per forward pass are set apart as `floods`: they are counted, not kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from heddle.collector import conventions as c
from heddle.collector import dialects
from heddle.collector.attributes import (
    INT64_MAX,
    RESOURCE_RANK,
    BadSpan,
    Typed,
    put,
    read,
    string,
    to_json,
)
from heddle.collector.content import Content

_DROPPED: Final = "heddle.sender.dropped"
UNKNOWN_RUN: Final = "unknown"
_STATUS: Final = ("unset", "ok", "error")
_NAMED_BEFORE_COUNTING: Final = 5

BASE: Final[dict[str, pa.DataType]] = {
    "trace_id": pa.string(),
    "span_id": pa.string(),
    "parent_span_id": pa.string(),
    "name": pa.string(),
    "kind": pa.int8(),
    "service": pa.string(),
    "scope": pa.string(),
    "scope_info": pa.string(),
    "trace_state": pa.string(),
    "flags": pa.int64(),
    "start_ns": pa.int64(),
    "end_ns": pa.int64(),
    "received_ns": pa.int64(),
    "status": pa.string(),
    "status_message": pa.string(),
    "attrs": pa.string(),
    "resource": pa.string(),
    "events": pa.string(),
    "links": pa.string(),
    "dropped": pa.int64(),
}


def _arrow(attribute: c.Attribute) -> Any:
    if attribute.kind == "double":
        return pa.int64() if attribute.column.endswith("_ns") else pa.float64()
    return {"int": pa.int64(), "bool": pa.bool_()}.get(attribute.kind, pa.string())


HOT: Final = {column: _arrow(attribute) for column, attribute in c.COLUMNS.items()}
SCHEMA: Final = pa.schema([*BASE.items(), *HOT.items()])


class Span(NamedTuple):
    """One span as decoded, whatever it was encoded in; times as sent, ids in lower-case hex."""

    trace_id: str
    span_id: str
    parent_span_id: str | None
    name: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    status: int = 0
    status_message: str | None = None
    trace_state: str | None = None
    events: list[dict[str, Any]] | None = None
    links: list[dict[str, Any]] | None = None
    dropped: int = 0
    flags: int = 0
    said: list[Typed] | None = None
    """What the attributes say by column, where the decoder knows already."""


class Flood(NamedTuple):
    """One slice of a flood: its own id, and the span it is counted in."""

    trace_id: str
    span_id: str
    parent_span_id: str
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Columns:
    """What `Rows` gathered, as one table: another process can hand it over."""

    spans: Any
    """A pyarrow Table of SCHEMA."""
    floods: list[Flood]
    rejected: int
    message: str
    reasons: Counter[str]
    sender_drops: dict[str, int]

    def __len__(self) -> int:
        return self.spans.num_rows + len(self.floods)

    def table(self) -> Any:
        """All rows kept."""
        return self.spans


class Origin:
    """What all spans of one resource and scope share, worked out once."""

    def __init__(
        self, resource: Mapping[str, Any], scope: str | None, info: Mapping[str, Any] | None = None
    ) -> None:
        self.service = string(resource.get("service.name"))
        self.scope = scope or None
        self.info = to_json(info) if info else None
        self.resource = to_json(resource) if resource else None
        self.hot: dict[str, Any] = {}
        self.ranks: dict[str, int] = {}
        put(read(resource), self.hot, self.ranks, RESOURCE_RANK)


class Rows:
    """Spans gathered row by row, handed over as columns."""

    def __init__(self, received_ns: int, content: Content | None = None) -> None:
        self._received_ns = received_ns
        self._content = content or Content()
        self._rows: list[tuple[Any, ...]] = []
        self._hots: list[dict[str, Any]] = []
        self._why: list[str] = []
        self.floods: list[Flood] = []
        self.rejected = 0
        self.reasons: Counter[str] = Counter()
        self.without_ids = 0
        self.sender_drops: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._rows) + len(self.floods)

    def add(self, span: Span, origin: Origin) -> None:
        """Keep one span; BadSpan when its times do not fit."""
        if not 0 <= span.start_ns <= INT64_MAX or not 0 <= span.end_ns <= INT64_MAX:
            raise _bad_time(span)
        if span.name in dialects.FLOODS and _is_flood(span, origin):
            self._fold(span)
            return
        span = self._stripped(span)
        base = (
            span.trace_id,
            span.span_id,
            span.parent_span_id,
            span.name,
            span.kind,
            origin.service,
            origin.scope,
            origin.info,
            span.trace_state or None,
            span.flags or None,
            span.start_ns,
            span.end_ns or None,
            self._received_ns,
            _STATUS[span.status] if 0 <= span.status <= 2 else "unset",
            span.status_message or None,
            to_json(span.attributes),
            origin.resource,
            to_json(span.events) if span.events else None,
            to_json(span.links) if span.links else None,
            span.dropped,
        )
        hot = _hot(span, origin)
        if _DROPPED in span.attributes:
            self._note_drops(span, origin)
        self._rows.append(base)
        self._hots.append(hot)

    def reject(self, what: str, why: str, reason: str = "shape") -> None:
        """Count one span that is not kept; the first few are named."""
        self.rejected += 1
        self.reasons[reason] += 1
        if len(self._why) < _NAMED_BEFORE_COUNTING:
            self._why.append(f"{what}: {why}")

    @property
    def all_without_ids(self) -> bool:
        """Whether nothing that was rejected had an id: no spans at all."""
        return 0 < self.rejected == self.without_ids

    @property
    def message(self) -> str:
        """Which spans were rejected and why."""
        more = self.rejected - len(self._why)
        return "; ".join(self._why) + (f"; and {more} more" if more else "")

    def take(self, other: Rows) -> None:
        """Add what another one gathered: one table for both costs half as much."""
        self._rows += other._rows
        self._hots += other._hots
        self.floods += other.floods

    def table(self) -> Any:
        """All rows kept: a pyarrow Table of SCHEMA."""
        if not self._rows:
            return SCHEMA.empty_table()
        rows = len(self._rows)
        arrays = [
            _array(list(values), kind)
            for values, kind in zip(zip(*self._rows, strict=True), BASE.values(), strict=True)
        ]
        present: set[str] = set().union(*self._hots)
        for column, kind in HOT.items():
            if column in present:
                arrays.append(pa.array([hot.get(column) for hot in self._hots], type=kind))
            else:
                arrays.append(pa.nulls(rows, kind))
        return pa.Table.from_arrays(arrays, schema=SCHEMA)

    def columns(self) -> Columns:
        """The same as one table, and what was said on the way."""
        return Columns(
            self.table(), self.floods, self.rejected, self.message, self.reasons, self.sender_drops
        )

    def _stripped(self, span: Span) -> Span:
        """Without content."""
        attributes = self._content.strip(span.attributes)
        if attributes is not span.attributes:
            span = span._replace(attributes=attributes)
        if not span.events:
            return span
        strip = self._content.strip_event
        events = [
            {**e, "attributes": strip(e["attributes"])} if "attributes" in e else e
            for e in span.events
        ]
        return span._replace(events=events)

    def _note_drops(self, span: Span, origin: Origin) -> None:
        dropped, service = span.attributes[_DROPPED], origin.service or UNKNOWN_RUN
        if isinstance(dropped, int):
            self.sender_drops[service] = max(dropped, self.sender_drops.get(service, 0))

    def _fold(self, span: Span) -> None:
        parent = span.parent_span_id or ""
        self.floods.append(Flood(span.trace_id, span.span_id, parent, span.start_ns, span.end_ns))


def hex_id(value: str, digits: int, what: str) -> str:
    """A lower-case hex id of that many digits, not all zero; BadSpan otherwise."""
    if len(value) != digits:
        hint = "" if _is_hex(value) else ": ids must be hexadecimal, not base64"
        message = f"the {what} is {len(value) / 2:g} bytes long, expected {digits // 2}{hint}"
        raise BadSpan(message, "id")
    if not _is_hex(value):
        message = f"the {what} {value!r} is not hexadecimal"
        raise BadSpan(message, "id")
    if not value.strip("0"):
        message = f"the {what} is all zeros"
        raise BadSpan(message, "id")
    return value.lower()


def parent_id(value: str) -> str | None:
    """Empty and all-zero parents mean a root."""
    return hex_id(value, 16, "parent span id") if value.strip("0") else None


def _is_hex(value: str) -> bool:
    # int() takes underscores, signs and blanks, and other scripts' digits.
    return value.isascii() and value.isalnum() and not value.lower().strip("0123456789abcdef")


def _bad_time(span: Span) -> BadSpan:
    what, value = ("start", span.start_ns), ("end", span.end_ns)
    name, at = what if not 0 <= what[1] <= INT64_MAX else value
    return BadSpan(f"the {name} time {at} is outside 1970 to 2262", "time")


def _is_flood(span: Span, origin: Origin) -> bool:
    return origin.scope == dialects.SGLANG_SCOPE and span.parent_span_id is not None


def _array(values: list[Any], kind: Any) -> Any:
    # Most base columns of most requests hold nothing; nulls cost a fortieth of a conversion.
    if values[0] is None and values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    return pa.array(values, type=kind)


def _hot(span: Span, origin: Origin) -> dict[str, Any]:
    said = read(span.attributes) if span.said is None else span.said
    hot = {**origin.hot, **{column: value for column, _, value in said}}
    if len(hot) != len(origin.hot) + len(said):
        # Two names spoke for one column: their ranks decide.
        hot = origin.hot.copy()
        put(said, hot, origin.ranks.copy())
    dialects.settle(hot, span, origin.scope)
    if "run_id" not in hot:
        hot["run_id"] = origin.service or UNKNOWN_RUN
    if span.status == 2 and "error_type" not in hot:
        hot["error_type"] = _exception(span) or "error"
    return hot


def _exception(span: Span) -> str | None:
    for event in span.events or ():
        if event.get("name") == "exception":
            return string(event.get("attributes", {}).get("exception.type"))
    return None
