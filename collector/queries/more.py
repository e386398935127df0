"""What came to a running rollout since it was last read, and of which trajectories?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import duckdb
import polars as pl

from heddle.collector import conventions as c
from heddle.collector.prefixes import prefixes
from heddle.collector.queries.query import one_instant
from heddle.collector.queries.reading import (
    BESIDE,
    COLUMNS,
    OF_SPANS,
    SECONDS,
    Reading,
    Version,
    dropped_of,
    of_fleet,
    rows_of,
    slices_of,
    trajectories_of,
    workers_of,
)
from heddle.collector.trails import Frames

_EARLY_NS: Final = 30 * 10**9
"""What an engine sent may be here before the step that says whose it is."""
_FLEET: Final = ", ".join(f"'{op}'" for op in (*c.FLEET_OPS, c.COUNTERS))
_SINCE: Final = (
    "SELECT count(*), max(received_ns), count(end_ns),"
    " count(end_ns) FILTER (received_ns > ?) FROM everything"
    f" WHERE run_id = ? AND (rollout_id = ? OR op IN ({_FLEET})) AND op NOT IN ({BESIDE})"
)
_CAME: Final = (
    "SELECT op, * EXCLUDE (op) REPLACE (coalesce(inferred, false) AS inferred) FROM (SELECT op,"
    f" {', '.join(dict.fromkeys(n for v in OF_SPANS for n in COLUMNS[v] if n not in SECONDS))},"
    " hidden_ns / 1e9 AS hidden_s, exposed_ns / 1e9 AS exposed_s FROM stated"
    " WHERE run_id = ? AND rollout_id = ? AND received_ns > ?)"
)


class More(NamedTuple):
    """The rows as they are now."""

    reading: Reading
    changed: list[str]
    """Trajectories with new rows."""
    part: Frames
    """All rows of these."""


def read_more(cursor: duckdb.DuckDBPyConnection, before: Reading) -> More | None:
    """None where all is to be read anew: the rollout ended, or what came is not told by when.

    Rows that went, and spans that a slow request commits after newer ones, are older than the
    newest row read before: then the numbers of rows do not fit.
    """
    with one_instant(cursor):
        return _read_more(cursor, before)


def _read_more(cursor: duckdb.DuckDBPyConnection, before: Reading) -> More | None:
    run, rollout = before.row["run_id"], before.row["rollout_id"]
    since_ns = before.version.received_ns
    *counts, came = cursor.execute(_SINCE, [since_ns, run, rollout]).fetchall()[0]
    now = Version(*(int(value or 0) for value in counts))
    rows = rows_of(cursor, _CAME, [run, rollout, since_ns])
    fits = now.ended - before.version.ended == came and now.rows >= before.version.rows
    if not fits or not rows.filter(pl.col("op") == c.ROLLOUT).is_empty():
        return None
    slices = slices_of(cursor, run, [rollout], since_ns - _EARLY_NS).drop("rollout_id")
    named = [*rows["trajectory_id"].drop_nulls().unique(), *slices["trajectory_id"].unique()]
    changed = sorted(set(named))
    read = {view: _of(rows, view) for view in OF_SPANS}
    trajectories = trajectories_of(cursor, run, [rollout], changed).drop("rollout_id")
    frames = Frames(**read, trajectories=trajectories, slices=slices)
    whole, part = _merged(before.frames, frames, changed)
    reading = replace(
        before,
        version=now,
        workers=_workers(cursor, before, rows),
        dropped=dropped_of(cursor, run, before.row),
        **whole._asdict(),
    )
    return More(replace(reading, **of_fleet(cursor, run, _seen(reading))), changed, part)


def _of(rows: pl.DataFrame, view: str) -> pl.DataFrame:
    """The rows that came of one view's."""
    mine = rows.filter(pl.col("op").is_in(OF_SPANS[view]))
    return mine.filter(pl.col("trajectory_id").is_not_null()).select(COLUMNS[view])


def _workers(
    cursor: duckdb.DuckDBPyConnection, before: Reading, rows: pl.DataFrame
) -> pl.DataFrame:
    """The leases, read again where one came or a step names a worker that has none."""
    named = rows.filter(pl.col("worker_id").is_not_null())
    new = named.filter(~pl.col("worker_id").is_in(before.workers["worker_id"].implode()))
    if new.is_empty() and named.filter(pl.col("op") == c.WORKER).is_empty() and _announced(before):
        return before.workers
    return workers_of(cursor, before.row["run_id"], before.row["rollout_id"])


def _announced(before: Reading) -> bool:
    """Whether every lease is open: one that is only seen on steps grows with them."""
    return before.workers["end_ns"].is_null().all()


def _seen(reading: Reading) -> dict[str, Any]:
    """The rollout's row, up to now."""
    return reading.row | {"seen_ns": reading.watermark_ns}


def _merged(before: Frames, came: Frames, changed: Sequence[str]) -> tuple[Frames, Frames]:
    """All rows, and all those of the changed trajectories; a span replaces its own marker."""
    whole: list[pl.DataFrame] = []
    part: list[pl.DataFrame] = []
    for name, old, new in zip(Frames._fields, before, came, strict=True):
        mine = old["trajectory_id"].is_in(changed)
        kept, rows = old.filter(~mine), old.filter(mine)
        if name == "trajectories":
            rows = new
        else:
            replaced = rows["span_id"].is_in(new["span_id"].implode())
            rows = pl.concat([rows.filter(~replaced).select(new.columns), new])
        rows = _ASKED[name](rows) if name in _ASKED else rows
        whole.append(pl.concat([kept, rows]))
        part.append(rows)
    return Frames(*whole), Frames(*part)


def _explicit(rows: pl.DataFrame) -> pl.DataFrame:
    """Calls inferred from gaps count only where a trajectory's client reports none itself."""
    told = rows.filter(~pl.col("inferred"))["trajectory_id"].unique()
    return rows.filter(~pl.col("inferred") | ~pl.col("trajectory_id").is_in(told.implode()))


_ASKED: Final = {"steps": prefixes, "tool_calls": _explicit}
