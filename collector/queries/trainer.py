"""What share of the trainer's step was rollout, and how long did everybody wait for the last one?

By the trainer's own phases where it sends them (spans `heddle.trainer`: by rollout id, else by its
global step); without any, a step lasts until the next rollout starts and rollout is its makespan.
"""

from __future__ import annotations

from typing import Any, Final

import duckdb

from heddle.collector import conventions as c
from heddle.collector.queries.query import Answer, Filters, Query, table_of

GENERATING: Final = ("gen", "rollout", "generate_sequences")
"""What trainers call the phase in which trajectories are made."""
WHOLE: Final = "step"
OTHER: Final = "other"
_PHASES: Final = (
    "o AS (SELECT rollout_id, any_value(trainer_step) AS trainer_step FROM everything"
    f" WHERE run_id = ? AND op = '{c.ROLLOUT}' GROUP BY rollout_id),"
    " p AS (SELECT coalesce(e.rollout_id, o.rollout_id) AS rollout_id, e.trainer_step, phase,"
    " e.start_ns, e.end_ns FROM (SELECT rollout_id, trainer_step, start_ns, end_ns,"
    " CAST(attrs['heddle.trainer.phase'] AS VARCHAR) AS phase FROM everything"
    f" WHERE run_id = ? AND op = '{c.TRAINER}' AND end_ns IS NOT NULL) e"
    # A rollout that names no trainer step may be called by it.
    " LEFT JOIN o ON e.rollout_id IS NULL AND e.trainer_step ="
    " coalesce(o.trainer_step, TRY_CAST(o.rollout_id AS BIGINT))),"
    " s AS (SELECT rollout_id, any_value(trainer_step) AS trainer_step,"
    f" coalesce(sum(end_ns - start_ns) FILTER (phase = '{WHOLE}'), max(end_ns) - min(start_ns))"
    " AS step_ns, min(start_ns) AS start_ns,"
    f" coalesce(sum(end_ns - start_ns) FILTER (phase <> '{WHOLE}'), 0) AS told_ns,"
    f" sum(end_ns - start_ns) FILTER (phase IN ({', '.join(repr(g) for g in GENERATING)}))"
    " AS generating_ns FROM p GROUP BY rollout_id)"
)
_GATHER: Final = (
    f"WITH {_PHASES},"
    " t AS (SELECT rollout_id, trajectory_id, end_ns, truncated FROM trajectories"
    " WHERE run_id = ? AND state = 'finished' AND end_ns IS NOT NULL),"
    " e AS (SELECT rollout_id, max(end_ns) AS last_ns, median(end_ns) AS middle_ns, count(*) AS n,"
    " arg_max(trajectory_id, end_ns) AS last_trajectory,"
    " sum(CAST(truncated AS INTEGER)) / count(*) AS truncated_share,"
    # Six trajectories' UTC nanoseconds together no longer fit 64 bits.
    " CAST(count(*) AS HUGEINT) * max(end_ns) - sum(end_ns) AS wait_ns"
    " FROM t GROUP BY rollout_id),"
    " r AS (SELECT rollout_id, start_ns, makespan_s,"
    " (lead(start_ns) OVER (ORDER BY start_ns) - start_ns) / 1e9 AS next_s"
    " FROM rollouts WHERE run_id = ?),"
    " a AS (SELECT r.*, coalesce(s.trainer_step, o.trainer_step) AS trainer_step,"
    " coalesce(s.step_ns / 1e9, next_s) AS step_s,"
    " CASE WHEN s.step_ns IS NOT NULL THEN 'trainer' WHEN next_s IS NOT NULL THEN 'next' END"
    " AS step_source, coalesce(s.generating_ns / 1e9, makespan_s) AS generating_s"
    " FROM r LEFT JOIN s USING (rollout_id) LEFT JOIN o USING (rollout_id))"
    " SELECT rollout_id, start_ns, trainer_step, makespan_s, step_s, step_source, generating_s,"
    " CASE WHEN step_s > 0 THEN least(generating_s / step_s, 1.0) END AS rollout_share,"
    " last_trajectory,"
    " (last_ns - middle_ns) / 1e9 AS waited_s, CAST(wait_ns AS DOUBLE) / 1e9 AS trajectory_wait_s,"
    " CAST(wait_ns AS DOUBLE) / nullif(n * (last_ns - start_ns), 0) AS wait_share,"
    " coalesce(truncated_share, 0.0) AS truncated_share"
    " FROM a LEFT JOIN e USING (rollout_id) {chosen} ORDER BY start_ns"
)
_TRAINER: Final = (
    f"WITH {_PHASES}, told AS ("
    " SELECT p.rollout_id, p.trainer_step, phase, p.start_ns, end_ns - p.start_ns AS time_ns,"
    f" 0 AS place FROM p WHERE phase <> '{WHOLE}'"
    f" UNION ALL SELECT rollout_id, trainer_step, '{OTHER}', NULL, step_ns - told_ns, 1 FROM s"
    " WHERE step_ns > told_ns)"
    " SELECT rollout_id, trainer_step, phase, start_ns, time_ns, share FROM (SELECT t.*,"
    " time_ns / nullif(step_ns, 0) AS share, s.start_ns AS step_start_ns FROM told t JOIN s"
    " ON s.rollout_id IS NOT DISTINCT FROM t.rollout_id) {chosen}"
    " ORDER BY step_start_ns, place, start_ns, phase"
)


def _gather(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    return _answer(cursor, "gather", _GATHER, filters, runs=4)


def _trainer(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    return _answer(cursor, "trainer", _TRAINER, filters, runs=2)


def _answer(
    cursor: duckdb.DuckDBPyConnection, name: str, sql: str, filters: Filters, *, runs: int
) -> Answer:
    """The statement for one run, all of its rollouts or one."""
    values: list[Any] = [filters["run"][0]] * runs
    one = filters.get("rollout", ())[:1]
    statement = sql.format(chosen="WHERE rollout_id = ?" if one else "")
    rows = cursor.execute(statement, [*values, *one]).fetchall()
    return Answer(table_of(name, rows), len(rows))


GATHER = Query(
    name="gather",
    meaning="Rollout's share of each trainer step, and how long all waited for the last one.",
    filters=("run", "rollout"),
    needs=("run",),
    compute=_gather,
)
TRAINER = Query(
    name="trainer",
    meaning="What the trainer's steps were spent on, phase by phase, where the trainer says so.",
    filters=("run", "rollout"),
    needs=("run",),
    compute=_trainer,
)
