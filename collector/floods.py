"""How many slices of a flood does a span hold, when the slices themselves are not kept?

SGLang at trace level 3 sends a span per request and forward pass. They are counted in a row of
`folds` per parent until the parent itself is stored, which then carries the count in its column
`folded`; what comes later stays in `folds`. A retried batch counts once: the ids of the last two
million slices are remembered. Used by the one writer thread alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from heddle.collector.columns import Flood
from heddle.collector.keys import UNKNOWN, Hashes, Keys, hashes

TABLE_SQL: Final = (
    "CREATE TABLE IF NOT EXISTS folds"
    " (trace_id VARCHAR, span_id VARCHAR, spans BIGINT, start_ns BIGINT, end_ns BIGINT);"
)
# 16 bytes each, in two halves: when the newer is full the older is forgotten.
_REMEMBERED: Final = 1_000_000


class Fold(NamedTuple):
    """What is counted of one parent so far."""

    trace_id: str
    span_id: str
    spans: int
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Change:
    """What one commit does to the folds."""

    keys: Hashes
    grown: dict[int, Fold] = field(default_factory=dict[int, Fold])
    closed: dict[int, Fold] = field(default_factory=dict[int, Fold])

    @property
    def is_empty(self) -> bool:
        return not self.grown and not self.closed


class Folds:
    """The counts of spans that are still open."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._open: dict[int, Fold] = {}
        self._recent, self._older = Keys(), Keys()
        self.counted = 0
        rows = connection.execute("SELECT * FROM folds").fetchall()
        for fold in map(Fold._make, rows):
            self._open[_key(fold.trace_id, fold.span_id)] = fold

    def sift(self, floods: Sequence[Flood], arriving: Sequence[int]) -> Change:
        """What these slices and these newly stored spans change."""
        change = Change(np.zeros(0, np.uint64))
        if floods:
            keys = hashes([f.trace_id for f in floods], [f.span_id for f in floods])
            new = (self._recent.ends(keys) == UNKNOWN) & (self._older.ends(keys) == UNKNOWN)
            _, first = np.unique(keys, return_index=True)
            rows = [int(row) for row in first if new[row]]
            change.keys = keys[rows]
            for row in rows:
                self._grow(change.grown, floods[row])
        if self._open or change.grown:
            known = self._open | change.grown
            change.closed = {key: known[key] for key in arriving if key in known}
            for key in change.closed:
                change.grown.pop(key, None)
        return change

    def write(self, change: Change) -> None:
        """Inside the writer's transaction."""
        gone = [f for k, f in self._open.items() if k in change.grown or k in change.closed]
        if gone:
            self._run(
                "DELETE FROM folds USING changed_folds c"
                " WHERE folds.trace_id = c.trace_id AND folds.span_id = c.span_id",
                gone,
            )
        if change.grown:
            self._run("INSERT INTO folds SELECT * FROM changed_folds", [*change.grown.values()])

    def keep(self, change: Change) -> None:
        """After the commit."""
        self.counted += len(change.keys)
        for key in change.closed:
            self._open.pop(key, None)
        self._open |= change.grown
        self._recent.put(change.keys, np.zeros(len(change.keys), np.int64))
        if len(self._recent) > _REMEMBERED:
            self._recent, self._older = Keys(), self._recent

    def _grow(self, grown: dict[int, Fold], flood: Flood) -> None:
        key = _key(flood.trace_id, flood.parent_span_id)
        fold = grown.get(key) or self._open.get(key)
        spans, start, end = fold[2:] if fold else (0, flood.start_ns, flood.end_ns)
        grown[key] = Fold(
            flood.trace_id,
            flood.parent_span_id,
            spans + 1,
            min(start, flood.start_ns),
            max(end, flood.end_ns),
        )

    def _run(self, statement: str, folds: Sequence[Fold]) -> None:
        columns: dict[str, Any] = {
            name: [getattr(fold, name) for fold in folds] for name in Fold._fields
        }
        self._connection.register("changed_folds", pa.table(columns))
        try:
            self._connection.execute(statement)
        finally:
            self._connection.unregister("changed_folds")


def _key(trace_id: str, span_id: str) -> int:
    return int(hashes([trace_id], [span_id])[0])
