"""Which of these incoming spans are new, and how do they get into the tables in one transaction?

A span already stored is dropped unless it ends later; then it replaces. A start marker becomes a
row of `markers` until the span it announces is there. Used by the one writer thread alone.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute

from heddle.collector import arrivals, sealed
from heddle.collector import conventions as c
from heddle.collector.columns import SCHEMA, Flood
from heddle.collector.floods import Change, Folds
from heddle.collector.keys import UNKNOWN, Ends, Hashes, Keys, hashes_of
from heddle.collector.rollups import touching

_INSERT: Final = (
    "INSERT INTO {table} BY NAME SELECT {columns}, attrs::JSON::VARIANT AS attrs FROM incoming;"
)
_DELETE: Final = (
    "DELETE FROM {table} USING incoming i "
    "WHERE {table}.trace_id = i.trace_id AND {table}.span_id = i.span_id"
)
_STARTS: Final = {"span_id": "starts_span_id", "op": "starts_op"}
_TOUCHED: Final = ["run_id", "rollout_id", "trajectory_id", "start_ns", "end_ns", "op"]
# Read whether they hold anything or not; of the others most are null in any commit.
_READ: Final = {"trace_id", "span_id", "attrs", *_STARTS.values(), *_TOUCHED, *arrivals.COLUMNS}
_LATELY_SEALED: Final = (
    "SELECT url FROM sealed_files"
    " QUALIFY sum(rows) OVER (ORDER BY sealed_ns DESC, url) <= ? ORDER BY sealed_ns"
)
# Senders try again for minutes, not days: 32 MB and half a second of the start.
_SEALED_REMEMBERED: Final = 2_000_000
# Its functions are made at run time, which the checker cannot see.
pc: Any = pyarrow.compute


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
    folds: Change


class Committer:
    """Knows which spans are stored; `commit` stores those that are not."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._keys = Keys()
        self.arrivals = arrivals.Arrivals()
        self.folds = Folds(connection)
        self._open: set[int] = set()
        self._recall()

    def commit(self, table: Any, floods: Sequence[Flood] = (), *, heartbeat: bool = False) -> int:
        """Store *table* (columns.SCHEMA) durably; how many rows were new or replaced older ones."""
        work = self._sift(table, floods)
        con = self._connection
        number = self.arrivals.add(work.spans)
        con.begin()
        try:
            if heartbeat:
                con.execute("UPDATE heartbeat SET at_ns = ?", [time.time_ns()])
            self._write(work, number)
            con.commit()
        except BaseException:
            self.arrivals.drop(number)
            _roll_back(con)
            raise
        self._keys.put(work.keys, work.ends)
        self._open -= work.closed_keys
        self._open.update(work.marker_keys.tolist())
        self.folds.keep(work.folds)
        return work.spans.num_rows + work.markers.num_rows + len(work.folds.keys)

    def forget(self, ids: Any) -> None:
        """Spans and markers with those ids (trace_id, span_id) are stored no more."""
        keys = hashes_of(ids)
        self._keys.drop(keys)
        self._open.difference_update(keys.tolist())

    def close(self) -> None:
        """Close the writer's cursor."""
        self._connection.close()

    def _write(self, work: _Work, number: int) -> None:
        """Four statements at most: each costs 4 to 9 ms, however few its rows."""
        if not work.folds.is_empty:
            self.folds.write(work.folds)
        if work.replaced.num_rows:
            # May not be taken off the sums: without a number they are computed anew.
            self._note(self._delete("spans", work.replaced), None)
        self._insert("spans", work.spans)
        gone = self._delete("markers", work.closed)
        self._insert("markers", work.markers)
        touched = [part.select(_TOUCHED) for part in (work.spans, work.markers)]
        self._note(pa.concat_tables([*touched, gone]), number)

    def _insert(self, table: str, rows: Any) -> None:
        if rows.num_rows:
            with self._incoming(rows):
                self._connection.execute(_insert(table, rows))

    def _delete(self, table: str, rows: Any) -> Any:
        """What was deleted, as `touched` wants it: what replaces it may say it is another's."""
        if not rows.num_rows:
            return SCHEMA.empty_table().select(_TOUCHED)
        statement = _DELETE.format(table=table)
        with self._incoming(rows):
            return self._connection.sql(
                f"{statement} RETURNING {', '.join(_TOUCHED)}"
            ).to_arrow_table()

    def _note(self, rows: Any, number: int | None) -> None:
        if rows.num_rows:
            with self._incoming(rows):
                self._connection.execute(touching("incoming", number))

    @contextmanager
    def _incoming(self, rows: Any) -> Generator[None, None, None]:
        self._connection.register("incoming", rows)
        try:
            yield
        finally:
            self._connection.unregister("incoming")

    def _sift(self, table: Any, floods: Sequence[Flood]) -> _Work:
        plain, announcing = _parted(_narrow(table))
        keys, ends = hashes_of(plain), _ends(plain)
        known = self._keys.ends(keys)
        rows = _latest(keys, ends, ends > known)
        keys, ends, known, spans = keys[rows], ends[rows], known[rows], plain.take(rows)
        arriving = keys.tolist()
        closing = np.fromiter((k in self._open for k in arriving), bool, len(keys))
        markers, marker_keys = self._new_markers(announcing, set(arriving))
        folds = self.folds.sift(floods, arriving)
        if folds.closed:
            spans = _with_folded(spans, [folds.closed.get(k) for k in arriving])
        return _Work(
            spans,
            keys,
            ends,
            spans.filter(pa.array(known != UNKNOWN)).select(["trace_id", "span_id"]),
            markers,
            marker_keys,
            spans.filter(pa.array(closing)).select(["trace_id", "span_id"]),
            set(keys[closing].tolist()),
            folds,
        )

    def _new_markers(self, markers: Any, arriving: set[int]) -> tuple[Any, Hashes]:
        if not markers.num_rows:
            return markers, np.zeros(0, np.uint64)
        for target, source in _STARTS.items():
            markers = _with(markers, target, markers[source])
        markers = _with(markers, "end_ns", pa.nulls(markers.num_rows, pa.int64()))
        keys = hashes_of(markers)
        stored = self._keys.ends(keys) != UNKNOWN
        pending = [k not in self._open and k not in arriving for k in keys.tolist()]
        rows = _latest(keys, np.zeros(len(keys), np.int64), ~stored & np.array(pending, bool))
        return markers.take(rows), keys[rows]

    def _recall(self) -> None:
        """The keys of what the file holds already, and of what was sealed last."""
        self._remember("spans")
        urls = self._connection.execute(_LATELY_SEALED, [_SEALED_REMEMBERED]).fetchall()
        if urls:
            self._remember(sealed.reading([url for (url,) in urls]))
        rows = self._connection.sql("SELECT trace_id, span_id FROM markers").to_arrow_table()
        self._open.update(hashes_of(rows).tolist())

    def _remember(self, rows: str) -> None:
        reader = self._connection.sql(
            f"SELECT trace_id, span_id, end_ns FROM {rows}"
        ).to_arrow_reader(100_000)
        for batch in reader:
            self._keys.put(hashes_of(batch), _ends(batch))


def _narrow(table: Any) -> Any:
    """Without the columns that hold nothing."""
    held = [
        field.name
        for field, column in zip(table.schema, table.columns, strict=True)
        if field.name in _READ or column.null_count < table.num_rows
    ]
    return table.select(held)


def _parted(table: Any) -> tuple[Any, Any]:
    """Spans, and start markers that name a span and its operation."""
    started = pc.fill_null(pc.equal(table["op"], c.START), False)
    if not pc.any(started).as_py():
        return table, table.slice(0, 0)
    named = pc.and_(pc.not_equal(table["starts_op"], ""), _are_ids(table["starts_span_id"]))
    announces = pc.and_(started, pc.fill_null(named, False))
    return table.filter(pc.invert(announces)), table.filter(announces)


def _are_ids(texts: Any) -> Any:
    return pc.match_substring_regex(texts, "^[0-9a-f]{16}$")


def _insert(table: str, rows: Any) -> str:
    """Names only the columns that hold something."""
    held = [
        f'"{field.name}"'
        for field, column in zip(rows.schema, rows.columns, strict=True)
        if field.name != "attrs" and column.null_count < rows.num_rows
    ]
    return _INSERT.format(table=table, columns=", ".join(held))


def _with_folded(spans: Any, folds: Sequence[Any]) -> Any:
    return _with(spans, "folded", pa.array([fold and fold.spans for fold in folds], pa.int64()))


def _with(table: Any, name: str, column: Any) -> Any:
    """The table with that column, in its old place or as the last one."""
    at = table.schema.get_field_index(name)
    if at < 0:
        return table.append_column(SCHEMA.field(name), column)
    return table.set_column(at, SCHEMA.field(name), column)


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
