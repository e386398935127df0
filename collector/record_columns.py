"""What is one column of a named query: its name, type, unit and meaning?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

Type = Literal["text", "int", "float", "bool"]
_POLARS: Final[dict[Type, type[pl.DataType]]] = {
    "text": pl.String,
    "int": pl.Int64,
    "float": pl.Float64,
    "bool": pl.Boolean,
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a named query."""

    name: str
    type: Type
    meaning: str
    unit: str = ""

    @property
    def dtype(self) -> type[pl.DataType]:
        """Its polars type."""
        return _POLARS[self.type]


def text(name: str, meaning: str) -> Column:
    """A string."""
    return Column(name, "text", meaning)


def count(name: str, meaning: str, unit: str = "") -> Column:
    """An integer."""
    return Column(name, "int", meaning, unit)


def ns(name: str, meaning: str) -> Column:
    """Integer nanoseconds."""
    return Column(name, "int", meaning, "ns")


def seconds(name: str, meaning: str) -> Column:
    """Seconds."""
    return Column(name, "float", meaning, "s")


def number(name: str, meaning: str, unit: str = "") -> Column:
    """A float."""
    return Column(name, "float", meaning, unit)


def flag(name: str, meaning: str) -> Column:
    """True or false."""
    return Column(name, "bool", meaning)
