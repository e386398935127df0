"""How does the tail differ by task, tool, worker or policy, within groups, and between rollouts?

Finished trajectories only, unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import duckdb
import polars as pl

from heddle.collector import tail
from heddle.collector.queries.gpu_time import option
from heddle.collector.queries.query import Answer, Filters, Query, table_of
from heddle.collector.queries.reading import rows_of
from heddle.collector.queries.results import RESULTS, remembered
from heddle.collector.queries.trajectories import TRAJECTORIES
from heddle.collector.sources import excess

SLICES: Final = ("task", "tool", "worker", "policy", "preset")
STRAGGLERS: Final = 20
_FROM: Final = {
    "task": "SELECT task AS key, * EXCLUDE (task) FROM t",
    "worker": "SELECT worker_id AS key, * EXCLUDE (worker_id) FROM t",
    "policy": "SELECT r.policies AS key, t.* FROM t JOIN rollouts r USING (run_id, rollout_id)",
    "preset": "SELECT r.preset AS key, t.* FROM t JOIN rollouts r USING (run_id, rollout_id)",
}
_UNPIVOT: Final = " UNION ALL ".join(
    f"SELECT key, {at} AS place, '{metric}' AS metric, CAST({metric} AS DOUBLE) AS v FROM s"
    for at, metric in enumerate(tail.METRICS)
)
_QUANTILES: Final = (
    "count(v) AS count, quantile_cont(v, 0.5) AS p50, quantile_cont(v, 0.9) AS p90,"
    " quantile_cont(v, 0.99) AS p99, max(v) AS max"
)
_NAMES: Final = {"run": "run_id", "rollout": "rollout_id", "group": "group_id", "task": "task"}

_LONGEST: Final = (
    "SELECT * FROM trajectories WHERE run_id = ? AND rollout_id = ? AND duration_s IS NOT NULL"
    f" ORDER BY duration_s DESC, trajectory_id LIMIT {STRAGGLERS}"
)


def _where(filters: Filters) -> tuple[str, list[str]]:
    """The condition on trajectories or tool calls, and its values."""
    conditions: list[str] = []
    values: list[str] = []
    for name, column in _NAMES.items():
        if given := filters.get(name):
            conditions.append(f"{column} IN ({', '.join('?' * len(given))})")
            values += given
    return " AND ".join(["state = 'finished'", *conditions]), values


def _slices(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    by = option(filters, "by", SLICES, "task")
    where, values = _where(filters)
    if by == "tool":
        rows = (
            "SELECT tool_name AS key, 0 AS place, 'tool_s' AS metric, duration_s AS v"
            f" FROM tool_calls WHERE {where}"
        )
    else:
        rows = (
            f"WITH t AS (SELECT * FROM trajectories WHERE {where}), s AS ({_FROM[by]}) {_UNPIVOT}"
        )
    statement = (
        f"SELECT '{by}' AS by, key, metric, {_QUANTILES}, max(v) / nullif(quantile_cont(v, 0.5), 0)"
        f" AS max_over_median FROM ({rows}) GROUP BY key, place, metric HAVING count(v) > 0"
        " ORDER BY key, place"
    )
    return _sql(cursor, "tail_slices", statement, values)


def _drift(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    where, values = _where(filters)
    statement = (
        f"WITH t AS (SELECT * FROM trajectories WHERE {where} AND rollout_id IS NOT NULL),"
        " s AS (SELECT rollout_id AS key, * EXCLUDE (rollout_id) FROM t),"
        f" q AS (SELECT key, place, metric, {_QUANTILES} FROM ({_UNPIVOT}) GROUP BY ALL"
        " HAVING count(v) > 0),"
        " b AS (SELECT rollout_id AS key, start_ns FROM rollouts WHERE run_id = ?)"
        " SELECT key AS rollout_id, start_ns, metric, count, p50, p90, p99, max,"
        " p50 / nullif(lag(p50) OVER w, 0) AS p50_ratio,"
        " p99 / nullif(lag(p99) OVER w, 0) AS p99_ratio"
        " FROM q JOIN b USING (key) WINDOW w AS (PARTITION BY metric ORDER BY start_ns)"
        " ORDER BY start_ns, place"
    )
    return _sql(cursor, "drift", statement, [*values, filters["run"][0]])


def _sql(cursor: duckdb.DuckDBPyConnection, name: str, statement: str, values: list[str]) -> Answer:
    rows = cursor.execute(statement, values).fetchall()
    return Answer(table_of(name, rows), len(rows))


def _trajectories(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> pl.DataFrame:
    kept = {name: given for name, given in filters.items() if name in _NAMES}
    found = pl.from_arrow(TRAJECTORIES.answer(cursor, {**kept, "state": ["finished"]}).table)
    assert isinstance(found, pl.DataFrame)
    return found


def _spread(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    found = tail.spread(_trajectories(cursor, filters))
    rows = [(*row, found.between_share) for row in found.groups.iter_rows()]
    return Answer(table_of("spread", rows), len(rows))


def _ccdf(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    metric = option(filters, "metric", tail.METRICS, "output_tokens")
    rows = tail.ccdf(_trajectories(cursor, filters)[metric]).rows()
    return Answer(table_of("ccdf", rows), len(rows))


@remembered
def _stragglers(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    found = RESULTS.of(cursor, filters)
    if found is None:
        return Answer(table_of("stragglers", []), 0)
    caused = found.blame.by_trajectory
    longest = rows_of(cursor, _LONGEST, [found.run_id, found.rollout_id])
    rows = tail.stragglers(longest, STRAGGLERS).rows()
    told = [(*row, caused.get(row[0], 0)) for row in rows]
    return Answer(table_of("stragglers", told), found.reading.trajectories.height)


@remembered
def _sources(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    found = RESULTS.of(cursor, filters)
    rows = excess(found.parts, found.reading.trajectories) if found else []
    return Answer(table_of("tail_sources", rows), len(rows))


def _query(
    name: str, meaning: str, compute: Callable[..., Answer], needs: str, *more: str
) -> Query:
    filters: tuple[Any, ...] = ("run", "rollout", *more)
    return Query(name=name, meaning=meaning, filters=filters, needs=(needs,), compute=compute)


TAIL_SLICES = _query(
    "tail_slices", "How long the tail is by task, tool, worker, policy or preset (by=).",
    _slices, "run", "group", "task", "by",
)  # fmt: skip
SPREAD = _query(
    "spread", "How alike the samples of one prompt are; widest first.", _spread, "run", "task"
)
CCDF = _query(
    "ccdf", "Share of trajectories at or above a value (metric=).", _ccdf, "run",
    "group", "task", "metric",
)  # fmt: skip
STRAGGLERS_QUERY = _query(
    "stragglers", "The longest trajectories, with the cause and the idle time they caused.",
    _stragglers, "rollout",
)  # fmt: skip
DRIFT = _query(
    "drift", "The tail of each rollout of a run beside the one before.", _drift, "run", "task"
)
TAIL_SOURCES = _query(
    "tail_sources", "What made the slowest tenth slower than the median, by four sources.",
    _sources, "rollout",
)  # fmt: skip
