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
from heddle.collector.activities import Kind
from heddle.collector.errors import QueryRefused
from heddle.collector.facts import NO_SLICES
from heddle.collector.queries import rollouts
from heddle.collector.queries.query import Filters, Query, one_instant
from heddle.collector.trails import Frames

_FLEET: Final = ", ".join(f"'{op}'" for op in (*c.FLEET_OPS, c.COUNTERS))
BESIDE_OPS: Final = frozenset((*c.FLEET_OPS, c.COUNTERS, c.SENDER))
"""What no trajectory does: read where the run has any of it."""
BESIDE: Final = f"'{c.TRAINER}', '{c.DEVICE}'"
"""What is told beside the accounts and changes none of them."""
_NAMES: Final = {"run": "run_id", "rollout": "rollout_id"}
_VERSIONS: Final = (
    f"SELECT CASE WHEN op IN ({_FLEET}) THEN NULL ELSE rollout_id END AS whose,"
    " count(*), max(received_ns), count(end_ns) FROM everything"
    f" WHERE run_id = ? AND (rollout_id IN ({{names}}) OR op IN ({_FLEET}))"
    f" AND op NOT IN ({BESIDE}) GROUP BY whose"
)
_SENT: Final = (
    "SELECT DISTINCT op FROM everything WHERE run_id = ?"
    f" AND op IN ({', '.join(repr(op) for op in sorted(BESIDE_OPS))})"
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
STAGES: Final[dict[str, Kind]] = {
    "prefill_waiting": "queued",
    "prefill_forward": "prefill",
    "decode_waiting": "queued",
    "decode_forward": "decode",
}
"""Slices of SGLang's trace level 1, which carry no run: they share the steps' traces."""
_SLICES: Final = (
    "SELECT trace_id, span_id, name, start_ns, end_ns FROM everything"
    f" WHERE name IN ({', '.join(repr(n) for n in STAGES)}) AND end_ns > start_ns"
)
_TOLD_NS: Final = 60 * 10**9
_FOREVER_NS: Final = (1 << 63) - 1
_TRACES: Final = (
    "SELECT DISTINCT trace_id, rollout_id, trajectory_id FROM steps"
    " WHERE run_id = ? AND rollout_id IN ({names})"
)
_ALL: Final = (
    "SELECT rollout_id, {columns} FROM {view} WHERE run_id = ? AND rollout_id IN ({{names}})"
)
_SAID: Final = (
    "SELECT rollout_id, any_value(CAST(attrs['heddle.laws'] AS VARCHAR)) FROM everything"
    f" WHERE run_id = ? AND rollout_id IN ({{names}}) AND op = '{c.ROLLOUT}'"
    " AND attrs['heddle.laws'] IS NOT NULL GROUP BY rollout_id"
)
_DROPPED: Final = (
    "SELECT coalesce(sum(so_far - before), 0)::BIGINT FROM (SELECT"
    " coalesce(max(dropped) FILTER (start_ns <= ?), 0) AS so_far,"
    " coalesce(max(dropped) FILTER (start_ns < ?), 0) AS before FROM (SELECT service, start_ns,"
    " CAST(attrs['heddle.sender.dropped'] AS BIGINT) AS dropped FROM everything"
    f" WHERE run_id = ? AND op = '{c.SENDER}') GROUP BY service)"
)
# `seen_ns` and `announced` are of the view, not of the query's columns.
_ROLLOUTS: Final = "SELECT * FROM rollouts WHERE run_id = ? AND rollout_id IN ({names})"

COLUMNS: Final[dict[str, Sequence[str]]] = {
    "steps": (
        "span_id", "trajectory_id", "step_index", "worker_id", "degree", "state", "start_ns",
        "end_ns", "held_ns", "queue_ns", "prefill_ns", "decode_ns", "input_tokens",
        "output_tokens", "cached_tokens", "retractions", "error_type",
    ),
    "tool_calls": (
        "span_id", "trajectory_id", "tool_name", "start_ns", "end_ns", "error_type", "inferred",
    ),
    "moves": (
        "span_id", "trajectory_id", "move_target", "start_ns", "end_ns", "hidden_s", "exposed_s",
    ),
}  # fmt: skip
"""What the accounting reads of each view, beside rollout_id: a third of a wide row."""
_OF_TRAJECTORIES: Final = "trajectory_id, group_id, task, start_ns, end_ns, state, outcome"
SAID: Final = {"hidden_s": pl.Float64, "exposed_s": pl.Float64, "state": pl.String}
"""Columns that only the views have."""
_FLEET_SCHEMA: Final = {
    "op": pl.String, "worker_id": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64,
    "state": pl.String, "waited_for": pl.String,
}  # fmt: skip
_COUNTER_SCHEMA: Final = {
    "worker_id": pl.String, "at_ns": pl.Int64, "ok": pl.Boolean, "forward_s": pl.Float64,
    "idle_s": pl.Float64, "retracted": pl.Float64, "running": pl.Float64, "queue": pl.Float64,
    "kv_usage": pl.Float64,
}  # fmt: skip
OF_SPANS: Final[dict[str, Sequence[str]]] = {
    "steps": c.STEP_OPS,
    "tool_calls": (c.EXECUTE_TOOL,),
    "moves": (c.MOVE,),
}
"""The operations of each view."""


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
    beside: frozenset[str] = BESIDE_OPS
    """Which of BESIDE_OPS the run has sent anything of."""

    @property
    def frames(self) -> Frames:
        """The rows of trajectories."""
        return Frames(self.steps, self.tool_calls, self.moves, self.trajectories, self.slices)

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
        for whose, *values in cursor.execute(*about(_VERSIONS, run, names)).fetchall()
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
    with one_instant(cursor):
        return _read(cursor, run, names)


def _read(cursor: duckdb.DuckDBPyConnection, run: str, names: Sequence[str]) -> list[Reading]:
    # Sorted here: DuckDB 2.0.1's sort squeezes sums over a FULL JOIN into too few bits and fails.
    rows = rows_of(cursor, *about(_ROLLOUTS, run, names)).sort("start_ns").to_dicts()
    if not rows:
        return []
    asked = {"run": [run], "rollout": [row["rollout_id"] for row in rows]}
    of = versions(cursor, run, asked["rollout"])
    said = dict(cursor.execute(*about(_SAID, run, names)).fetchall())
    beside = frozenset(op for (op,) in cursor.execute(_SENT, [run]).fetchall())
    read = of_trajectories(cursor, run, names)
    frames = [_by_rollout(frame) for frame in read]
    workers = _by_rollout(_frame(rollouts.WORKERS, cursor, asked))
    found: list[Reading] = []
    for row in rows:
        name = row["rollout_id"]
        found.append(
            Reading(
                row=row,
                version=of[name],
                workers=workers(name),
                laws=str(said.get(name, "")),
                beside=beside,
                **Frames(*(frame(name) for frame in frames))._asdict(),
                **of_fleet(cursor, run, row, beside),
            )
        )
    return found


def of_trajectories(cursor: duckdb.DuckDBPyConnection, run: str, names: Sequence[str]) -> Frames:
    """What trajectories of those rollouts did, with rollout_id."""
    steps, tools, moves = (
        rows_of(cursor, *about(_ALL.format(columns=", ".join(COLUMNS[v]), view=v), run, names))
        for v in OF_SPANS
    )
    told = trajectories_of(cursor, run, names), slices_of(cursor, run, names)
    return Frames(steps, tools, moves, *told)


def trajectories_of(
    cursor: duckdb.DuckDBPyConnection, run: str, names: Sequence[str]
) -> pl.DataFrame:
    """The trajectories of those rollouts."""
    statement = _ALL.format(columns=_OF_TRAJECTORIES, view="trajectories")
    return rows_of(cursor, *about(statement, run, names))


def slices_of(cursor: duckdb.DuckDBPyConnection, run: str, names: Sequence[str]) -> pl.DataFrame:
    """What engines sent of those rollouts' steps."""
    return placed(cursor, run, names, rows_of(cursor, _SLICES, []))


def placed(
    cursor: duckdb.DuckDBPyConnection, run: str, names: Sequence[str], rows: pl.DataFrame
) -> pl.DataFrame:
    """Slices with the trajectory whose step's trace they share."""
    if rows.is_empty():
        return NO_SLICES.with_columns(rollout_id=pl.lit(None, pl.String))
    whose = rows_of(cursor, *about(_TRACES, run, names))
    kind = pl.col("name").replace_strict(STAGES, return_dtype=pl.String).alias("kind")
    told = rows.select("trace_id", "span_id", "name", "start_ns", "end_ns").join(
        whose, on="trace_id"
    )
    return told.with_columns(kind).select(*NO_SLICES.columns, "rollout_id")


def of_fleet(
    cursor: duckdb.DuckDBPyConnection, run: str, row: dict[str, Any], beside: frozenset[str]
) -> dict[str, Any]:
    """What the fleet did and counted in the rollout's window, and what senders dropped."""
    start, end = row["start_ns"] or 0, row["end_ns"] or row["seen_ns"] or 0
    fleet, counters = pl.DataFrame(schema=_FLEET_SCHEMA), pl.DataFrame(schema=_COUNTER_SCHEMA)
    if not beside.isdisjoint(c.FLEET_OPS):
        fleet = rows_of(cursor, _FLEET_ROWS, [run, end, end, start])
    if c.COUNTERS in beside:
        counters = rows_of(cursor, _COUNTER_ROWS, [run, start, end])
    dropped = _dropped_of(cursor, run, row) if c.SENDER in beside else 0
    return {"fleet": fleet, "counters": counters, "dropped": dropped}


def workers_of(cursor: duckdb.DuckDBPyConnection, run: str, rollout: str) -> pl.DataFrame:
    """The leases of a rollout."""
    return _frame(rollouts.WORKERS, cursor, {"run": [run], "rollout": [rollout]})


def _dropped_of(cursor: duckdb.DuckDBPyConnection, run: str, row: dict[str, Any]) -> int:
    """Spans that senders say they dropped while the rollout went on."""
    start_ns, end_ns = row["start_ns"] or 0, row["end_ns"]
    # Drops are told with the next flush, up to a minute after the rollout.
    until_ns = _FOREVER_NS if end_ns is None else end_ns + _TOLD_NS
    rows = cursor.execute(_DROPPED, [until_ns, start_ns, run]).fetchall()
    return int(rows[0][0])


def about(sql: str, run: str, names: Sequence[str]) -> tuple[str, list[str]]:
    """A statement about some rollouts of a run, and its values."""
    return sql.format(names=", ".join("?" * len(names))), [run, *names]


def _by_rollout(frame: pl.DataFrame) -> Callable[[str], pl.DataFrame]:
    parts = frame.partition_by("rollout_id", as_dict=True)
    return lambda name: parts.get((name,), frame.clear()).drop("rollout_id")


def rows_of(cursor: duckdb.DuckDBPyConnection, sql: str, values: Sequence[Any]) -> pl.DataFrame:
    """The rows of a statement."""
    return _polars(cursor.sql(sql, params=list(values)).to_arrow_table())


def _frame(query: Query, cursor: duckdb.DuckDBPyConnection, filters: Filters) -> pl.DataFrame:
    return _polars(query.answer(cursor, filters).table)


def _polars(table: Any) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
