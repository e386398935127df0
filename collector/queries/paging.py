"""How is a list of any length read in pages while rows keep arriving?

By keyset: the token of a page holds the order key of its last row, and the next page begins after
that key. Nothing is skipped or repeated when rows come in between, and page 1,000 costs what page 1
does. The order of a query must name a row exactly.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from heddle.collector.errors import QueryRefused

MOST_FOUND: Final = 10_000
"""Longer pages are not looked for by their key first."""
KEY: Final = "__key_{}"
"""Name of the n-th key column that travels with a page and is cut off before the answer."""


@dataclass(frozen=True, slots=True)
class Key:
    """One part of an order: `start_ns` or `start_ns DESC`; nulls come last either way."""

    column: str
    descending: bool

    def past(self, value: Any) -> tuple[str, list[Any]]:
        """What sorts after *value*: nothing after null, null after everything else."""
        if value is None:
            return "false", []
        sign = "<" if self.descending else ">"
        return f"({self.column} {sign} ? OR {self.column} IS NULL)", [value]


def keys(order: str) -> list[Key]:
    """The parts of an ORDER BY."""
    parts = [part.split() for part in order.split(",")]
    return [Key(words[0], words[-1] == "DESC") for words in parts if words]


def columns(order: str) -> str:
    """Select-list text that carries the key along."""
    return ", ".join(f"{k.column} AS {KEY.format(n)}" for n, k in enumerate(keys(order)))


def condition(order: str, after: str) -> tuple[str, list[Any]]:
    """The SQL condition for rows after the one the token names, and its values."""
    parts, given = keys(order), values_of(after)
    if len(parts) != len(given):
        raise foreign(after)
    tests: list[str] = []
    values: list[Any] = []
    for depth, key in enumerate(parts):
        same = [f"{k.column} IS NOT DISTINCT FROM ?" for k in parts[:depth]]
        past, bound = key.past(given[depth])
        tests.append(f"({' AND '.join([*same, past])})")
        values += [*given[:depth], *bound]
    return f"({' OR '.join(tests)})", values


def found(order: str, counted: str, limit: int, after: str | None) -> tuple[str, list[Any]]:
    """SQL for how many rows there are, and the first key of each that the page may hold."""
    key = keys(order)[0]
    wanted, values = ("true", []) if after is None else condition(order, after)
    least = "max" if key.descending else "min"
    return (
        f"SELECT count(*), {least}({key.column}, {limit}) FILTER (WHERE {wanted}) FROM ({counted})",
        values,
    )


def within(order: str, last: int) -> str:
    """The condition for rows up to the page's last: a literal reaches the zone maps of the scan."""
    key = keys(order)[0]
    return f"{key.column} {'>=' if key.descending else '<='} {last:d}"


def token(values: Sequence[Any]) -> str:
    """Opaque text for a URL."""
    return base64.urlsafe_b64encode(orjson.dumps(list(values))).rstrip(b"=").decode()


def values_of(text: str) -> list[Any]:
    """What the token holds; QueryRefused when it is none of ours."""
    try:
        values = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError) as error:
        raise foreign(text) from error
    if not isinstance(values, list):
        raise foreign(text)
    return values


def row_of(text: str) -> int:
    """The row number that the token of a computed answer holds."""
    match values_of(text):
        case [int(row)] if row >= 0:
            return row
        case _:
            raise foreign(text)


def foreign(text: str) -> QueryRefused:
    """The refusal of a token that is none of this query's."""
    shown = text if len(text) <= 40 else text[:40] + "..."
    message = f"after is {shown!r}, which is no page of this query; take it from X-Heddle-Next"
    return QueryRefused(message)
