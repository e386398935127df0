"""What came to a running rollout since it was last read, and of which trajectories?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

import duckdb
import polars as pl

from heddle.collector import conventions as c
from heddle.collector.queries.query import one_instant
from heddle.collector.queries.reading import (
    BESIDE,
    BESIDE_OPS,
    COLUMNS,
    OF_SPANS,
    SAID,
    STAGES,
    Reading,
    Version,
    of_fleet,
    placed,
    rows_of,
    workers_of,
)
from heddle.collector.trails import Frames

_EARLY_NS: Final = 30 * 10**9
"""What an engine sent may be here before the step that says whose it is."""
_CHUNKS: Final = 16
_FLEET: Final = ", ".join(f"'{op}'" for op in (*c.FLEET_OPS, c.COUNTERS))
_SINCE: Final = (
    "SELECT count(*), max(received_ns), count(end_ns),"
    " count(end_ns) FILTER (received_ns > ?) FROM everything"
    f" WHERE run_id = ? AND (rollout_id = ? OR op IN ({_FLEET})) AND op NOT IN ({BESIDE})"
)
_NAMES: Final = dict.fromkeys(
    (
        "op",
        "name",
        "trace_id",
        "run_id",
        "received_ns",
        "hidden_ns",
        "exposed_ns",
        *(n for v in COLUMNS.values() for n in v if n not in SAID),
    )
)
_FOUND: Final = (
    f"SELECT {', '.join(_NAMES)} FROM {{table}} WHERE received_ns > ? AND"
    " (received_ns > ? AND run_id = ? AND"
    f" (rollout_id = ? OR op IN ({_FLEET}, '{c.SENDER}'))"
    f" OR name IN ({', '.join(repr(name) for name in STAGES)}) AND end_ns > start_ns)"
)
# What came since is in the tables of the database: only what fell silent is sealed. Their views
# cost 10 ms of planning.
_CAME: Final = " UNION ALL ".join(_FOUND.format(table=table) for table in ("markers", "spans"))
_NARROW: Final = (
    "SELECT trajectory_id, group_id, task, start_ns, root_end_ns AS end_ns,"
    " CASE WHEN root_end_ns IS NULL THEN 'running' ELSE 'finished' END AS state, outcome, seen_ns"
    " FROM rolled_trajectories WHERE run_id = ? AND rollout_id = ?"
)
"""The view's rows of a rollout that runs, for a fifth of the time."""


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
    rows = rows_of(cursor, _CAME, [since_ns - _EARLY_NS, since_ns, run, rollout] * 2)
    here = _ended(rows, run, since_ns)
    slices = placed(cursor, run, [rollout], rows.filter(pl.col("name").is_in(STAGES)))
    known = before.slices["span_id"].implode()
    slices = slices.drop("rollout_id").filter(~pl.col("span_id").is_in(known))
    rows = rows.filter((pl.col("run_id") == run) & ~pl.col("name").is_in(STAGES))
    ops = set(rows["op"])
    # What was sealed meanwhile is counted, but no longer here.
    fits = now.ended - before.version.ended == came == here and now.rows >= before.version.rows
    if not fits or c.ROLLOUT in ops:
        return None
    narrow = rows_of(cursor, _NARROW, [run, rollout])
    seen_ns = max([before.row["seen_ns"] or 0, *narrow["seen_ns"].drop_nulls()])
    frames = Frames(
        **{view: _with(getattr(before, view), _of(rows, view)) for view in OF_SPANS},
        trajectories=narrow.drop("seen_ns"),
        slices=pl.concat([before.slices, slices]),
    )
    frames = frames._replace(tool_calls=_explicit(frames.tool_calls))
    named = rows.filter(~pl.col("op").is_in(BESIDE_OPS))["trajectory_id"]
    changed = sorted({*named, *slices["trajectory_id"]} - {None})
    reading = replace(
        before,
        # Spans of other operations say how late it is as well.
        row=before.row | {"seen_ns": seen_ns},
        version=now,
        workers=_workers(cursor, before, rows),
        beside=before.beside | ops & BESIDE_OPS,
        **frames._asdict(),
    )
    told = of_fleet(cursor, run, _seen(reading), reading.beside)
    mine = pl.col("trajectory_id").is_in(changed)
    part = Frames(*(frame.filter(mine) for frame in frames))
    return More(replace(reading, **told), changed, part)


def _ended(rows: pl.DataFrame, run: str, since_ns: int) -> int:
    """How many of the spans that came have an end and count for the rollout."""
    beside = pl.col("op").is_in([c.SENDER, c.TRAINER, c.DEVICE]).fill_null(value=False)
    new = (pl.col("run_id") == run) & (pl.col("received_ns") > since_ns) & ~beside
    return rows.filter(new & pl.col("end_ns").is_not_null()).height


def _of(rows: pl.DataFrame, view: str) -> pl.DataFrame:
    """The rows that came of one view's."""
    mine = rows.filter(
        pl.col("op").is_in(OF_SPANS[view]) & pl.col("trajectory_id").is_not_null()
    ).with_columns(
        inferred=pl.col("inferred").fill_null(value=False),
        state=pl.when(pl.col("end_ns").is_null())
        .then(pl.lit("running"))
        .otherwise(pl.lit("finished")),
        hidden_s=pl.col("hidden_ns") / 1e9,
        exposed_s=pl.col("exposed_ns") / 1e9,
    )
    return mine.select(COLUMNS[view])


def _with(old: pl.DataFrame, new: pl.DataFrame) -> pl.DataFrame:
    """Both; a span replaces its own marker."""
    if new.is_empty():
        return old
    lasting = old.filter(pl.col("end_ns").is_null())["span_id"]
    gone = lasting.filter(lasting.is_in(new["span_id"].implode()))
    kept = old if gone.is_empty() else old.filter(~pl.col("span_id").is_in(gone.implode()))
    # Many small chunks would make every later look at the whole slow.
    return pl.concat([kept, new], rechunk=kept.n_chunks() > _CHUNKS)


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


def _explicit(rows: pl.DataFrame) -> pl.DataFrame:
    """Calls inferred from gaps count only where a trajectory's client reports none itself."""
    if not rows["inferred"].any():
        return rows
    told = rows.filter(~pl.col("inferred"))["trajectory_id"].unique()
    return rows.filter(~pl.col("inferred") | ~pl.col("trajectory_id").is_in(told.implode()))
