"""Which named query shows a finding, and whom is it about? Pure: the collector's words in.

A finding names its evidence as the collector's own address: `steps?trajectory=t7&run=a&rollout=r0`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from heddle.collector.records import FRAMES

ROWS: Final = 10_000
"""Read of one named query; the page says of how many."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A named query with its filters."""

    query: str
    filters: Mapping[str, str]

    @property
    def said(self) -> str:
        """`steps, trajectory t7, rollout r0`."""
        return ", ".join([self.query, *(f"{name} {value}" for name, value in self.filters.items())])


def read(text: str) -> Evidence | None:
    """The evidence in an address; None where no query of this collector is meant."""
    query, _, filters = text.partition("?")
    pairs = dict(parse_qsl(filters, keep_blank_values=True))
    if query not in FRAMES or not all(name.isidentifier() for name in pairs):
        return None
    return Evidence(query, pairs)


def trajectory(text: str) -> str | None:
    """Whose page shows more than the rows do."""
    found = read(text)
    return found.filters.get("trajectory") if found else None
