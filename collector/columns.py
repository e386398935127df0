"""Which columns does the store keep of a span, and how do attributes become typed values?

`Rows` gathers spans of any encoding and turns them into one Arrow table. Attributes named by
`conventions` get a column each (first known name wins); all attributes as sent stay in `attrs`.
A span with ids or times that no store could keep is rejected alone, with a sentence.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
import pyarrow as pa

from heddle.collector import conventions as c

INT64_MAX: Final = (1 << 63) - 1
UNKNOWN_RUN: Final = "unknown"
_STATUS: Final = {0: "unset", 1: "ok", 2: "error"}
_RESOURCE_RANK: Final = 1_000
_NAMED_BEFORE_COUNTING: Final = 5

BASE: Final[dict[str, pa.DataType]] = {
    "trace_id": pa.string(),
    "span_id": pa.string(),
    "parent_span_id": pa.string(),
    "name": pa.string(),
    "kind": pa.int8(),
    "service": pa.string(),
    "scope": pa.string(),
    "trace_state": pa.string(),
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


class BadSpan(ValueError):
    """This span cannot be kept; its neighbours can."""


@dataclass(frozen=True, slots=True)
class Span:
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


class Origin:
    """What all spans of one resource and scope share, worked out once."""

    def __init__(self, resource: Mapping[str, Any], scope: str | None) -> None:
        self.service = _string(resource.get("service.name"))
        self.scope = scope or None
        self.resource = to_json(resource) if resource else None
        self.hot: list[Any] = [None] * len(HOT)
        ranks: dict[int, int] = {}
        _fill(self.hot, ranks, resource, _RESOURCE_RANK)
        self.ranks = ranks


class Rows:
    """Spans gathered row by row, handed over as columns."""

    def __init__(self, received_ns: int) -> None:
        self._received_ns = received_ns
        self._rows: list[tuple[Any, ...]] = []
        self._why: list[str] = []
        self.rejected = 0

    def add(self, span: Span, origin: Origin) -> None:
        """Keep one span; BadSpan when its times do not fit."""
        end_ns = _time(span.end_ns, "end") or None
        base = (
            span.trace_id,
            span.span_id,
            span.parent_span_id,
            span.name,
            span.kind,
            origin.service,
            origin.scope,
            span.trace_state or None,
            _time(span.start_ns, "start"),
            end_ns,
            self._received_ns,
            _STATUS.get(span.status, "unset"),
            span.status_message or None,
            to_json(span.attributes),
            origin.resource,
            to_json(span.events) if span.events else None,
            to_json(span.links) if span.links else None,
            span.dropped,
        )
        self._rows.append((*base, *_hot(span, origin)))

    def reject(self, what: str, why: str) -> None:
        """Count one span that is not kept; the first few are named."""
        self.rejected += 1
        if len(self._why) < _NAMED_BEFORE_COUNTING:
            self._why.append(f"{what}: {why}")

    @property
    def message(self) -> str:
        """Which spans were rejected and why."""
        more = self.rejected - len(self._why)
        return "; ".join(self._why) + (f"; and {more} more" if more else "")

    def table(self) -> Any:
        """All rows kept: a pyarrow Table of SCHEMA."""
        if not self._rows:
            return SCHEMA.empty_table()
        columns = zip(*self._rows, strict=True)
        arrays = [pa.array(v, type=f.type) for v, f in zip(columns, SCHEMA, strict=True)]
        return pa.Table.from_arrays(arrays, schema=SCHEMA)


def hex_id(value: str, digits: int, what: str) -> str:
    """A lower-case hex id of that many digits, not all zero; BadSpan otherwise."""
    if len(value) != digits:
        message = f"the {what} is {len(value) / 2:g} bytes long, expected {digits // 2}"
        raise BadSpan(message)
    try:
        if int(value, 16) == 0:
            message = f"the {what} is all zeros"
            raise BadSpan(message)
    except BadSpan:
        raise
    except ValueError:
        message = f"the {what} {value!r} is not hexadecimal"
        raise BadSpan(message) from None
    return value.lower()


def parent_id(value: str) -> str | None:
    """Empty and all-zero parents mean a root."""
    return hex_id(value, 16, "parent span id") if value.strip("0") else None


def to_json(value: Any) -> str:
    """JSON text; what JSON lacks (NaN, infinities, bytes, huge integers) becomes a string."""
    try:
        return orjson.dumps(_plain(value), option=orjson.OPT_NON_STR_KEYS).decode()
    except orjson.JSONEncodeError as error:
        message = f"an attribute cannot be kept: {error}"
        raise BadSpan(message) from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and value - value != 0.0:
        return {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value


def _time(value: int, what: str) -> int:
    if 0 <= value <= INT64_MAX:
        return value
    message = f"the {what} time {value} is outside 1970 to 2262"
    raise BadSpan(message)


def _hot(span: Span, origin: Origin) -> list[Any]:
    row = origin.hot.copy()
    _fill(row, dict(origin.ranks), span.attributes, 0)
    if row[_OP] is None and span.name in c.HEDDLE_SPANS:
        row[_OP] = span.name
    if row[_RUN] is None:
        row[_RUN] = origin.service or UNKNOWN_RUN
    if row[_ERROR] is None and span.status == 2:
        row[_ERROR] = _exception(span) or "error"
    return row


def _exception(span: Span) -> str | None:
    for event in span.events or ():
        if event.get("name") == "exception":
            return _string(event.get("attributes", {}).get("exception.type"))
    return None


def _fill(row: list[Any], ranks: dict[int, int], attributes: Mapping[str, Any], rank0: int) -> None:
    for name, value in attributes.items():
        slot = _SLOTS.get(name)
        if slot is None:
            continue
        index, rank, convert = slot
        if rank0 + rank < ranks.get(index, INT64_MAX):
            typed = convert(value)
            if typed is not None:
                row[index] = typed
                ranks[index] = rank0 + rank


def _string(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, bool):
        return "true" if value else "false"
    return to_json(value) if isinstance(value, list | dict | bytes) else str(value)


def _operation(value: Any) -> str | None:
    text = _string(value)
    return c.OPERATIONS.get(text.lower(), text) if text else None


def _double(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if number - number == 0.0 else None


def _int(value: Any) -> int | None:
    if isinstance(value, str | float):
        number = _double(value)
        value = int(number) if number is not None and number == int(number) else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -INT64_MAX - 1 <= value <= INT64_MAX else None


def _ns(value: Any) -> int | None:
    seconds = _double(value)
    return None if seconds is None else _int(round(seconds * 1e9))


def _bool(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "1": True, "false": False, "0": False}.get(value.lower())
    return bool(value) if isinstance(value, bool | int) else None


def _strings(value: Any) -> str | None:
    """A list of reasons as one text; SGLang sends the list (or one reason's fields) as JSON."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    if isinstance(value, dict):
        value = value.get("type", value)
    if isinstance(value, list):
        return ",".join(_strings(v) or "" for v in value) or None
    return _string(value)


_CONVERT: Final[dict[str, Callable[[Any], Any]]] = {
    "string": _string,
    "int": _int,
    "double": _double,
    "bool": _bool,
    "strings": _strings,
}


def _slots() -> dict[str, tuple[int, int, Callable[[Any], Any]]]:
    slots: dict[str, tuple[int, int, Callable[[Any], Any]]] = {}
    for index, (column, attribute) in enumerate(c.COLUMNS.items()):
        convert = _CONVERT[attribute.kind]
        if attribute.kind == "double" and column.endswith("_ns"):
            convert = _ns
        if column == "op":
            convert = _operation
        for rank, name in enumerate((attribute.name, *attribute.aliases)):
            slots[name] = (index, rank, convert)
    return slots


_SLOTS: Final = _slots()
_ORDER: Final = list(HOT)
_OP: Final = _ORDER.index("op")
_RUN: Final = _ORDER.index("run_id")
_ERROR: Final = _ORDER.index("error_type")
