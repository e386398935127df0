"""Did predictions hold: what was each step told, and what came?

A rollout's numbers need every step of it in order, so they are kept and computed anew only when
something of the rollout has come since: 256,000 steps of 50 rollouts take 0.5 s of CPU, asking
whether they changed 10 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import duckdb

from heddle.collector.queries.memory import Memory
from heddle.collector.queries.query import Answer, Filters, Query, one_instant, table_of
from heddle.collector.queries.results import database
from heddle.collector.sealed import among

Whose: TypeAlias = tuple[str | None, str | None]
KEPT: Final = 4_096
"""Rollouts whose numbers are kept, the least lately asked for dropped: 1 kB each."""
_TRAJECTORIES: Final = """
SELECT run_id, rollout_id, trajectory_id, steps, output_tokens, heard_ns
FROM (SELECT * FROM trajectories {where})
WHERE state = 'finished' AND NOT coalesce(truncated, false) AND predicted_p50 IS NOT NULL
"""
# Requests may be committed in another order than they came, and clocks go back: what was heard last
# does not tell everything.
_MARKS: Final = (
    "SELECT run_id, rollout_id, count(*), sum(steps), sum(output_tokens), max(heard_ns)"
    f" FROM ({_TRAJECTORIES})"
    " GROUP BY run_id, rollout_id ORDER BY run_id, rollout_id"
)
# What step k was told, beside the output of step k and all after it.
_TOLD: Final = f"""
WITH t AS ({_TRAJECTORIES} AND {{narrow}}), s AS (
    SELECT s.run_id, s.rollout_id, s.trajectory_id, predictor_version,
        predicted_p10, predicted_p50, predicted_p90,
        -- Where a step to come does not tell its output, nobody knows what remained.
        CASE WHEN count(output_tokens) OVER rest = count(*) OVER rest
            THEN greatest(sum(output_tokens) OVER rest, 1) END AS remaining
    FROM steps s SEMI JOIN t ON s.run_id = t.run_id AND s.trajectory_id = t.trajectory_id
        AND s.rollout_id IS NOT DISTINCT FROM t.rollout_id
    WHERE {{narrow}}
    WINDOW rest AS (
        PARTITION BY s.run_id, s.rollout_id, s.trajectory_id ORDER BY step_index, start_ns
        ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)
), p AS (
    SELECT *, ln(remaining / greatest(predicted_p50, 1)) AS off FROM s
    WHERE predicted_p50 > 0 AND remaining IS NOT NULL
)
SELECT run_id, rollout_id, predictor_version, count(*) AS steps,
    count(DISTINCT trajectory_id) AS trajectories,
    avg((remaining BETWEEN predicted_p10 AND predicted_p90)::INT) AS covered,
    avg((remaining < predicted_p10)::INT) AS below,
    avg((remaining > predicted_p90)::INT) AS above,
    exp(quantile_cont(off, 0.5)) AS bias,
    quantile_cont(abs(off), 0.5) AS median_log_error,
    avg(abs(remaining - predicted_p50)) AS mae_tokens,
    corr(ln(remaining), ln(greatest(predicted_p50, 1))) AS log_correlation
FROM p GROUP BY run_id, rollout_id, predictor_version ORDER BY run_id, rollout_id, predictor_version
"""


_MEMORY: Final = Memory[list[Any]](KEPT)


def _calibration(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    where, values = CALIBRATION.where(filters)
    asked = (database(cursor), where, tuple(values))
    with one_instant(cursor):
        marks = cursor.execute(_MARKS.format(where=where), values).fetchall()
        of: dict[Whose, Any] = {(run, rollout): mark for run, rollout, *mark in marks}
        found = {whose: _MEMORY.of((*asked, whose), mark) for whose, mark in of.items()}
        anew = [whose for whose, rows in found.items() if rows is None]
        if anew:
            text = _TOLD.format(where=where, narrow=_narrowed(anew))
            made: dict[Whose, list[Any]] = {whose: [] for whose in anew}
            for row in cursor.execute(text, values).fetchall():
                if row[:2] in made:
                    made[row[:2]].append(row)
            for whose, rows in made.items():
                _MEMORY.keep((*asked, whose), of[whose], rows)
            found |= made
    rows = [row for of_rollout in found.values() for row in of_rollout or ()]
    return Answer(table_of("calibration", rows), len(rows))


def _narrowed(whose: Sequence[Whose]) -> str:
    runs, rollouts = zip(*whose, strict=True)
    return f"{among('run_id', runs)} AND {among('rollout_id', rollouts)}"


CALIBRATION = Query(
    name="calibration",
    meaning="Whether predictions held, by rollout and version: steps of finished trajectories.",
    filters=("run", "rollout", "task", "group", "policy", "since", "until"),
    compute=_calibration,
)
