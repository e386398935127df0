"""What does the store hold of one rollout, read at one instant, and has it changed since?

All rows the accounting needs, in one transaction. What happened to the fleet (weight sync,
reallocation, an engine that is down) belongs to the run: it counts for every rollout whose window
it touches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import duckdb
import polars as pl

from heddle.collector import conventions as c
from heddle.collector.accounting import Kind
from heddle.collector.errors import QueryRefused
from heddle.collector.facts import NO_SLICES
from heddle.collector.queries import rollouts, trajectories
from heddle.collector.queries.query import Filters, Query

_FLEET: Final = ", ".join(f"'{op}'" for op in (*c.FLEET_OPS, c.COUNTERS))
_NAMES: Final = {"run": "run_id", "rollout": "rollout_id"}
_VERSION: Final = (
    "SELECT count(*), max(received_ns), count(end_ns) FROM everything"
    f" WHERE run_id = ? AND (rollout_id = ? OR op IN ({_FLEET}))"
)
_FLEET_ROWS: Final = (
    "SELECT op, worker_id, start_ns, end_ns, state,"
    " CAST(attrs['heddle.waited_for'] AS VARCHAR) AS waited_for FROM stated"
    f" WHERE run_id = ? AND op IN ({', '.join(repr(op) for op in c.FLEET_OPS)})"
    " AND start_ns < ? AND coalesce(end_ns, ?) > ? ORDER BY start_ns, op, worker_id"
)
_COUNTER_ROWS: Final = (
    "SELECT worker_id, start_ns AS at_ns, error_type IS NULL AS ok,"
    " CAST(attrs['heddle.counter.forward_s'] AS DOUBLE) AS forward_s,"
    " CAST(attrs['heddle.counter.idle_s'] AS DOUBLE) AS idle_s,"
    " CAST(attrs['heddle.counter.retracted'] AS DOUBLE) AS retracted,"
    " CAST(attrs['heddle.counter.running'] AS DOUBLE) AS running,"
    " CAST(attrs['heddle.counter.queue'] AS DOUBLE) AS queue,"
    " CAST(attrs['heddle.counter.kv_usage'] AS DOUBLE) AS kv_usage"
    f" FROM everything WHERE run_id = ? AND op = '{c.COUNTERS}' AND worker_id IS NOT NULL"
    " AND start_ns >= ? AND start_ns <= ? ORDER BY worker_id, start_ns"
)
_STAGES: Final[dict[str, Kind]] = {
    "prefill_waiting": "queued",
    "prefill_forward": "prefill",
    "decode_waiting": "queued",
    "decode_forward": "decode",
}
"""Slices of SGLang's trace level 1, which carry no run: they share the steps' traces."""
_SLICES: Final = (
    "SELECT t.trajectory_id, e.name, e.start_ns, e.end_ns FROM everything e JOIN ("
    "SELECT DISTINCT trace_id, trajectory_id FROM steps WHERE run_id = ? AND rollout_id = ?) t"
    f" ON e.trace_id = t.trace_id WHERE e.name IN ({', '.join(repr(n) for n in _STAGES)})"
    " AND e.end_ns > e.start_ns ORDER BY t.trajectory_id, e.start_ns, e.name"
)
_SAID: Final = (
    "SELECT CAST(attrs['heddle.laws'] AS VARCHAR) FROM everything"
    f" WHERE run_id = ? AND rollout_id = ? AND op = '{c.ROLLOUT}'"
    " AND attrs['heddle.laws'] IS NOT NULL LIMIT 1"
)
_DROPPED: Final = (
    "SELECT coalesce(sum(most), 0)::BIGINT FROM (SELECT max("
    "CAST(attrs['heddle.sender.dropped'] AS BIGINT)) AS most FROM everything"
    " WHERE run_id = ? AND rollout_id = ? AND attrs['heddle.sender.dropped'] IS NOT NULL"
    " GROUP BY service)"
)


class Version(NamedTuple):
    """Of one rollout's rows: equal means that nothing came, ended or went since."""

    rows: int
    received_ns: int
    ended: int


@dataclass(frozen=True, slots=True)
class Reading:
    """One rollout's rows."""

    row: dict[str, Any]
    """Of the view `rollouts`."""
    version: Version
    steps: pl.DataFrame
    tool_calls: pl.DataFrame
    moves: pl.DataFrame
    workers: pl.DataFrame
    trajectories: pl.DataFrame
    fleet: pl.DataFrame
    counters: pl.DataFrame
    laws: str
    """What the rollout's span says of decode, if it does."""
    dropped: int
    """Spans that senders say they dropped."""
    slices: pl.DataFrame = field(default_factory=lambda: NO_SLICES)
    """trajectory_id, kind, start_ns, end_ns: what engines say themselves."""

    @property
    def watermark_ns(self) -> int:
        """The latest instant anything of the rollout speaks of, in the rollout's own clock."""
        seen: list[int] = [self.row["seen_ns"] or 0, self.row["start_ns"] or 0]
        for frame in (self.steps, self.tool_calls, self.moves, self.workers, self.trajectories):
            for column in ("start_ns", "end_ns"):
                latest = frame[column].max()
                seen += [latest] if isinstance(latest, int) else []
        return max(seen)


def whose(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> tuple[str, str] | None:
    """Run and rollout asked for; None when there is no such rollout."""
    asked = {name: filters[name][0] for name in _NAMES if filters.get(name)}
    where = " AND ".join(f"{_NAMES[name]} = ?" for name in asked)
    found = cursor.execute(
        "SELECT DISTINCT run_id, rollout_id FROM everything"
        f" WHERE {where} AND rollout_id IS NOT NULL LIMIT 2",
        list(asked.values()),
    ).fetchall()
    if len(found) > 1:
        message = "several runs have a rollout of that name; add the filter run"
        raise QueryRefused(message)
    return (found[0][0], found[0][1]) if found else None


def version(cursor: duckdb.DuckDBPyConnection, run: str, rollout: str) -> Version:
    """What changes when rows of that rollout do; a scan of two columns."""
    rows = cursor.execute(_VERSION, [run, rollout]).fetchall()
    return Version(*(int(value or 0) for value in rows[0]))


def ended(cursor: duckdb.DuckDBPyConnection, run: str, rollout: str) -> bool:
    """Whether the rollout's own span has come."""
    both = "SELECT 1 FROM rollout_ends WHERE run_id = ? AND rollout_id = ?"
    return bool(cursor.execute(both, [run, rollout]).fetchall())


def read(cursor: duckdb.DuckDBPyConnection, run: str, rollout: str) -> Reading | None:
    """Every row of that rollout, all of the same instant; None when it has none to account for."""
    cursor.begin()
    try:
        return _read(cursor, run, rollout)
    finally:
        cursor.rollback()


def _read(cursor: duckdb.DuckDBPyConnection, run: str, rollout: str) -> Reading | None:
    asked = {"run": [run], "rollout": [rollout]}
    both = [run, rollout]
    # `seen_ns` and `announced` are of the view, not of the query's columns.
    row = _rows(cursor, "SELECT * FROM rollouts WHERE run_id = ? AND rollout_id = ?", both)
    if row.is_empty():
        return None
    said = cursor.execute(_SAID, both).fetchall()
    dropped = cursor.execute(_DROPPED, both).fetchall()
    window = (row["start_ns"][0] or 0, row["end_ns"][0] or row["seen_ns"][0] or 0)
    return Reading(
        row=row.to_dicts()[0],
        version=version(cursor, run, rollout),
        steps=_frame(trajectories.STEPS, cursor, asked),
        tool_calls=_frame(trajectories.TOOL_CALLS, cursor, asked),
        moves=_frame(trajectories.MOVES, cursor, asked),
        workers=_frame(rollouts.WORKERS, cursor, asked),
        trajectories=_frame(trajectories.TRAJECTORIES, cursor, asked),
        fleet=_rows(cursor, _FLEET_ROWS, [run, window[1], window[1], window[0]]),
        counters=_rows(cursor, _COUNTER_ROWS, [run, *window]),
        laws=str(said[0][0]) if said else "",
        dropped=int(dropped[0][0]),
        slices=_slices(cursor, both),
    )


def _slices(cursor: duckdb.DuckDBPyConnection, both: Sequence[str]) -> pl.DataFrame:
    rows = _rows(cursor, _SLICES, both)
    return rows.with_columns(kind=pl.col("name").replace_strict(_STAGES, return_dtype=pl.String))


def _rows(cursor: duckdb.DuckDBPyConnection, sql: str, values: Sequence[Any]) -> pl.DataFrame:
    return _polars(cursor.sql(sql, params=list(values)).to_arrow_table())


def _frame(query: Query, cursor: duckdb.DuckDBPyConnection, filters: Filters) -> pl.DataFrame:
    return _polars(query.answer(cursor, filters).table)


def _polars(table: Any) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
