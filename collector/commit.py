"""Which of these incoming spans are new, and how do they get into the tables in one transaction?

A span already stored is dropped unless it ends later; then it replaces. A start marker becomes a
row of `markers` until the span it announces is there. Used by the one writer thread alone.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from heddle.collector import conventions as c
from heddle.collector.columns import SCHEMA
from heddle.collector.keys import UNKNOWN, Ends, Hashes, Keys, hashes
from heddle.collector.rollups import touching

_INSERT: Final = (
    "INSERT INTO {table} BY NAME "
    "SELECT * REPLACE (attrs::JSON::VARIANT AS attrs) FROM incoming_{table};"
    + touching("incoming_{table}")
)
_DELETE: Final = (
    "DELETE FROM {table} USING {source} "
    "WHERE {table}.trace_id = {source}.trace_id AND {table}.span_id = {source}.span_id"
)
_STARTS: Final = {"span_id": "starts_span_id", "op": "starts_op"}


@dataclass(slots=True)
class _Work:
    """One transaction's worth, worked out before it begins."""

    spans: Any
    keys: Hashes
    ends: Ends
    replaced: Any
    markers: Any
    marker_keys: Hashes
    closed: Any
    closed_keys: set[int]


class Committer:
    """Knows which spans are stored; `commit` stores those that are not."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._keys = Keys()
        self._open: set[int] = set()
        self._recall()

    def commit(self, table: Any, *, heartbeat: bool = False) -> int:
        """Store *table* (columns.SCHEMA) durably; how many rows were new or replaced older ones."""
        work = self._sift(table)
        con = self._connection
        con.begin()
        try:
            if heartbeat:
                con.execute("UPDATE heartbeat SET at_ns = ?", [time.time_ns()])
            self._write(work)
            con.commit()
        except BaseException:
            _roll_back(con)
            raise
        self._keys.put(work.keys, work.ends)
        self._open -= work.closed_keys
        self._open.update(work.marker_keys.tolist())
        return work.spans.num_rows + work.markers.num_rows

    def close(self) -> None:
        """Close the writer's cursor."""
        self._connection.close()

    def _write(self, work: _Work) -> None:
        steps = (
            (work.replaced, "replaced", _DELETE.format(table="spans", source="replaced")),
            (work.spans, "incoming_spans", _INSERT.format(table="spans")),
            (work.closed, "closed", _DELETE.format(table="markers", source="closed")),
            (work.markers, "incoming_markers", _INSERT.format(table="markers")),
        )
        for rows, name, statement in steps:
            if rows.num_rows:
                self._connection.register(name, rows)
                try:
                    self._connection.execute(statement)
                finally:
                    self._connection.unregister(name)

    def _sift(self, table: Any) -> _Work:
        announces = _announces(table)
        plain = table.filter(pa.array(~np.asarray(announces, bool)))
        keys, ends = _keys(plain), _ends(plain)
        known = self._keys.ends(keys)
        rows = _latest(keys, ends, ends > known)
        keys, ends, known, spans = keys[rows], ends[rows], known[rows], plain.take(rows)
        closing = np.fromiter((k in self._open for k in keys.tolist()), bool, len(keys))
        markers, marker_keys = self._new_markers(table.filter(announces), set(keys.tolist()))
        return _Work(
            spans,
            keys,
            ends,
            spans.filter(pa.array(known != UNKNOWN)).select(["trace_id", "span_id"]),
            markers,
            marker_keys,
            spans.filter(pa.array(closing)).select(["trace_id", "span_id"]),
            set(keys[closing].tolist()),
        )

    def _new_markers(self, markers: Any, arriving: set[int]) -> tuple[Any, Hashes]:
        for target, source in _STARTS.items():
            at = SCHEMA.get_field_index(target)
            markers = markers.set_column(at, SCHEMA.field(target), markers[source])
        at = SCHEMA.get_field_index("end_ns")
        markers = markers.set_column(at, "end_ns", pa.nulls(markers.num_rows, pa.int64()))
        keys = _keys(markers)
        stored = self._keys.ends(keys) != UNKNOWN
        pending = [k not in self._open and k not in arriving for k in keys.tolist()]
        rows = _latest(keys, np.zeros(len(keys), np.int64), ~stored & np.array(pending, bool))
        return markers.take(rows), keys[rows]

    def _recall(self) -> None:
        """The keys of what the file holds already."""
        reader = self._connection.sql(
            "SELECT trace_id, span_id, end_ns FROM spans"
        ).to_arrow_reader(100_000)
        for batch in reader:
            self._keys.put(_keys(batch), _ends(batch))
        rows = self._connection.sql("SELECT trace_id, span_id FROM markers").to_arrow_table()
        self._open.update(_keys(rows).tolist())


def _announces(table: Any) -> Any:
    """Which rows are start markers that name a span and its operation."""
    named = zip(
        *(_texts(table, name) for name in ("op", "starts_op", "starts_span_id")), strict=True
    )
    return pa.array([op == c.START and bool(a) and _is_id(s) for op, a, s in named], pa.bool_())


def _is_id(value: str | None) -> bool:
    return value is not None and re.fullmatch("[0-9a-f]{16}", value) is not None


def _keys(table: Any) -> Hashes:
    return hashes(_texts(table, "trace_id"), _texts(table, "span_id"))


def _texts(table: Any, column: str) -> list[str]:
    return table.column(column).to_pylist()


def _ends(table: Any) -> Ends:
    column = pc.fill_null(table.column("end_ns"), -1)
    return column.to_numpy(zero_copy_only=False) if table.num_rows else np.zeros(0, np.int64)


def _latest(keys: Hashes, ends: Ends, wanted: Any) -> Any:
    """Row numbers of the wanted rows, of equal keys only the one that ends last, in row order."""
    rows = np.flatnonzero(wanted)
    order = rows[np.lexsort((ends[rows], keys[rows]))]
    if not len(order):
        return order
    last = np.append(keys[order][1:] != keys[order][:-1], True)
    return np.sort(order[last])


def _roll_back(connection: duckdb.DuckDBPyConnection) -> None:
    try:
        connection.rollback()
    except duckdb.Error:
        # A commit that failed has ended the transaction already.
        return
