"""How does an attribute as sent become the value of a typed column?

By the table of `conventions`: of a column's names the first known one wins, in whatever order they
come; a value that does not fit leaves room for the next name. Seconds become integer nanoseconds
where the column says so.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import orjson

from heddle.collector import conventions as c
from heddle.collector.dialects import OPERATIONS

INT64_MAX: Final = (1 << 63) - 1
_MOST_SECONDS: Final = INT64_MAX / 1e9
RESOURCE_RANK: Final = 1_000
"""Added to the rank of what the resource says: the span speaks first."""


class BadSpan(ValueError):
    """This span cannot be kept; its neighbours can. `reason` is one word for the counters."""

    def __init__(self, message: str, reason: str = "attribute") -> None:
        super().__init__(message)
        self.reason = reason


Typed = tuple[str, int, Any]
"""A column, the rank of the name that spoke for it, and its value."""


def typed(name: str, value: Any) -> Typed | None:
    """What one attribute says by column; None when it has no column or does not fit."""
    slot = _SLOTS.get(name)
    if slot is None:
        return None
    column, rank, convert = slot
    fitting = convert(value)
    return None if fitting is None else (column, rank, fitting)


def read(attributes: Mapping[str, Any]) -> list[Typed]:
    """What all attributes say by column."""
    found = (typed(name, value) for name, value in attributes.items())
    return [each for each in found if each is not None]


def put(said: Iterable[Typed], hot: dict[str, Any], ranks: dict[str, int], rank0: int = 0) -> None:
    """Put what was said into *hot* by column, where its rank is the best so far."""
    for column, rank, value in said:
        if rank + rank0 <= ranks.get(column, INT64_MAX):
            hot[column] = value
            ranks[column] = rank + rank0


def to_json(value: Any) -> str:
    """JSON text; what JSON lacks (NaN, infinities, bytes, huge integers) becomes a string."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except orjson.JSONEncodeError:
        pass
    try:
        return orjson.dumps(plain(value), option=orjson.OPT_NON_STR_KEYS).decode()
    except orjson.JSONEncodeError as error:
        message = f"an attribute cannot be kept: {error}"
        raise BadSpan(message) from error


def plain(value: Any) -> Any:
    """The value with what JSON lacks as strings; orjson would make null of NaN without a word."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, int) and not -INT64_MAX - 1 <= value <= 2 * INT64_MAX + 1:
        return str(value)
    return value


def finite(value: float) -> float | str:
    """A float that JSON has, else its name."""
    if value - value == 0.0:
        return value
    return {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")


def string(value: Any) -> str | None:
    """Text; empty text says nothing."""
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, bool):
        return "true" if value else "false"
    return to_json(value) if isinstance(value, list | dict | bytes) else str(value)


def _operation(value: Any) -> str | None:
    text = string(value)
    return OPERATIONS.get(text.lower(), text) if text else None


def _double(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if number - number == 0.0 else None


def _int(value: Any) -> int | None:
    if type(value) is int:
        return value if -INT64_MAX - 1 <= value <= INT64_MAX else None
    if not isinstance(value, str | float):
        return None
    number = _double(value)
    return _int(int(number)) if number is not None and number == int(number) else None


def _ns(value: Any) -> int | None:
    seconds = _double(value)
    if seconds is None or abs(seconds) > _MOST_SECONDS:
        return None
    return _int(round(seconds * 1e9))


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
    return string(value)


_CONVERT: Final[dict[str, Callable[[Any], Any]]] = {
    "string": string,
    "int": _int,
    "double": _double,
    "bool": _bool,
    "strings": _strings,
}


def _slots() -> dict[str, tuple[str, int, Callable[[Any], Any]]]:
    slots: dict[str, tuple[str, int, Callable[[Any], Any]]] = {}
    for column, attribute in c.COLUMNS.items():
        convert = _CONVERT[attribute.kind]
        if attribute.kind == "double" and column.endswith("_ns"):
            convert = _ns
        if column == "op":
            convert = _operation
        for rank, name in enumerate((attribute.name, *attribute.aliases)):
            slots[name] = (column, rank, convert)
    return slots


_SLOTS: Final = _slots()
