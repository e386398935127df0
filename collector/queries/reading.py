"""What does the store hold of a rollout, read at one instant, and has it changed since?

One rollout, or several of a run with the same few statements. All rows the accounting needs, in one
transaction. What happened to the fleet (weight sync, reallocation, an engine that is down) belongs
to the run: it counts for every rollout whose window it touches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
_VERSIONS: Final = (
    f"SELECT CASE WHEN op IN ({_FLEET}) THEN NULL ELSE rollout_id END AS whose,"
    " count(*), max(received_ns), count(end_ns) FROM everything"
    f" WHERE run_id = ? AND (rollout_id IN ({{names}}) OR op IN ({_FLEET})) GROUP BY whose"
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
    "SELECT t.rollout_id, t.trajectory_id, e.name, e.start_ns, e.end_ns FROM everything e JOIN ("
    "SELECT DISTINCT trace_id, rollout_id, trajectory_id FROM steps"
    " WHERE run_id = ? AND rollout_id IN ({names})) t"
    f" ON e.trace_id = t.trace_id WHERE e.name IN ({', '.join(repr(n) for n in _STAGES)})"
    " AND e.end_ns > e.start_ns ORDER BY t.trajectory_id, e.start_ns, e.name"
)
_SAID: Final = (
    "SELECT rollout_id, any_value(CAST(attrs['heddle.laws'] AS VARCHAR)) FROM everything"
    f" WHERE run_id = ? AND rollout_id IN ({{names}}) AND op = '{c.ROLLOUT}'"
    " AND attrs['heddle.laws'] IS NOT NULL GROUP BY rollout_id"
)
_DROPPED: Final = (
    "SELECT rollout_id, sum(most)::BIGINT FROM (SELECT rollout_id, max("
    "CAST(attrs['heddle.sender.dropped'] AS BIGINT)) AS most FROM everything"
    " WHERE run_id = ? AND rollout_id IN ({names}) AND attrs['heddle.sender.dropped'] IS NOT NULL"
    " GROUP BY rollout_id, service) GROUP BY rollout_id"
)
# `seen_ns` and `announced` are of the view, not of the query's columns.
_ROLLOUTS: Final = (
    "SELECT * FROM rollouts WHERE run_id = ? AND rollout_id IN ({names}) ORDER BY start_ns"
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
    return versions(cursor, run, [rollout])[rollout]


def versions(
    cursor: duckdb.DuckDBPyConnection, run: str, names: Sequence[str]
) -> dict[str, Version]:
    """Of several rollouts of a run, with one scan."""
    found = {
        whose: Version(*(int(value or 0) for value in values))
        for whose, *values in cursor.execute(*_of(_VERSIONS, run, names)).fetchall()
    }
    none = Version(0, 0, 0)
    fleet = found.get(None, none)
    return {
        name: Version(
            fleet.rows + own.rows,
            max(fleet.received_ns, own.received_ns),
            fleet.ended + own.ended,
        )
        for name in names
        for own in (found.get(name, none),)
    }


def ended(cursor: duckdb.DuckDBPyConnection, run: str, rollout: str) -> bool:
    """Whether the rollout's own span has come."""
    both = "SELECT 1 FROM rollout_ends WHERE run_id = ? AND rollout_id = ?"
    return bool(cursor.execute(both, [run, rollout]).fetchall())


def read(cursor: duckdb.DuckDBPyConnection, run: str, rollout: str) -> Reading | None:
    """Every row of that rollout, all of the same instant; None when it has none to account for."""
    found = read_many(cursor, run, [rollout])
    return found[0] if found else None


def read_many(cursor: duckdb.DuckDBPyConnection, run: str, names: Sequence[str]) -> list[Reading]:
    """Those of the rollouts that have something to account for, in the order they began."""
    cursor.begin()
    try:
        return _read(cursor, run, names)
    finally:
        cursor.rollback()


def _read(cursor: duckdb.DuckDBPyConnection, run: str, names: Sequence[str]) -> list[Reading]:
    rows = _rows(cursor, *_of(_ROLLOUTS, run, names)).to_dicts()
    if not rows:
        return []
    asked = {"run": [run], "rollout": [row["rollout_id"] for row in rows]}
    of = versions(cursor, run, asked["rollout"])
    said = dict(cursor.execute(*_of(_SAID, run, names)).fetchall())
    dropped = dict(cursor.execute(*_of(_DROPPED, run, names)).fetchall())
    frames = {
        query.name: _by_rollout(_frame(query, cursor, asked))
        for query in (
            trajectories.STEPS,
            trajectories.TOOL_CALLS,
            trajectories.MOVES,
            rollouts.WORKERS,
            trajectories.TRAJECTORIES,
        )
    }
    slices = _by_rollout(_slices(cursor, run, names))
    found: list[Reading] = []
    for row in rows:
        name = row["rollout_id"]
        window = (row["start_ns"] or 0, row["end_ns"] or row["seen_ns"] or 0)
        found.append(
            Reading(
                row=row,
                version=of[name],
                fleet=_rows(cursor, _FLEET_ROWS, [run, window[1], window[1], window[0]]),
                counters=_rows(cursor, _COUNTER_ROWS, [run, *window]),
                laws=str(said.get(name, "")),
                dropped=int(dropped.get(name, 0)),
                slices=slices(name).drop("rollout_id"),
                **{kind: frame(name) for kind, frame in frames.items()},
            )
        )
    return found


def _of(sql: str, run: str, names: Sequence[str]) -> tuple[str, list[str]]:
    """A statement about some rollouts of a run, and its values."""
    return sql.format(names=", ".join("?" * len(names))), [run, *names]


def _by_rollout(frame: pl.DataFrame) -> Callable[[str], pl.DataFrame]:
    parts = frame.partition_by("rollout_id", as_dict=True)
    return lambda name: parts.get((name,), frame.clear())


def _slices(cursor: duckdb.DuckDBPyConnection, run: str, names: Sequence[str]) -> pl.DataFrame:
    rows = _rows(cursor, *_of(_SLICES, run, names))
    return rows.with_columns(kind=pl.col("name").replace_strict(_STAGES, return_dtype=pl.String))


def _rows(cursor: duckdb.DuckDBPyConnection, sql: str, values: Sequence[Any]) -> pl.DataFrame:
    return _polars(cursor.sql(sql, params=list(values)).to_arrow_table())


def _frame(query: Query, cursor: duckdb.DuckDBPyConnection, filters: Filters) -> pl.DataFrame:
    return _polars(query.answer(cursor, filters).table)


def _polars(table: Any) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
