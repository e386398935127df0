"""How do millions of plausible spans get into a store without passing the receiver?

By SQL inside DuckDB: rollouts of 256 trajectories with 20 steps and 19 tool calls each, times and
tokens drawn per trajectory from a hash, so that a few of each rollout are much longer. The numbers
are made up; the shape (rows per rollout, distinct ids, sizes) is what queries meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb

from heddle.collector import rollups
from heddle.collector.store import Store

PER_TRAJECTORY: Final = 40
PER_ROLLOUT: Final = 256 * PER_TRAJECTORY
ROLLOUTS_A_RUN: Final = 50
START_NS: Final = 1_790_000_000_000_000_000
_AT_ONCE: Final = 50
"""Rollouts of one insert: bounds what DuckDB holds in memory."""

_SPANS: Final = """
INSERT INTO spans BY NAME
WITH n AS (
    SELECT i, i // {per_rollout} AS r, (i % {per_rollout}) // {each} AS t, i % {each} AS k
    FROM range({first}, {last}) x(i)
), d AS (
    SELECT *, 'run-' || r // {a_run} AS run_id,
        'r' || lpad(CAST(r AS VARCHAR), 5, '0') AS rollout_id,
        't' || r || '-' || t AS trajectory_id,
        (1 + hash(r * 1000 + t) % 100) * (CASE WHEN t % 16 = 0 THEN 20 ELSE 1 END) AS slow,
        {start} + r * 600_000_000_000 AS base
    FROM n
)
SELECT run_id, rollout_id, trajectory_id,
    'g' || t // 16 AS group_id, t % 16 AS sample_index, 'coding' AS task,
    md5(run_id || trajectory_id) AS trace_id,
    substr(md5(CAST(i AS VARCHAR)), 1, 16) AS span_id,
    CASE WHEN k > 0 THEN substr(md5(CAST(i - k AS VARCHAR)), 1, 16) END AS parent_span_id,
    CASE WHEN k = 0 THEN 'invoke_agent' WHEN k % 2 = 1 THEN 'chat' ELSE 'execute_tool' END AS op,
    op AS name, 1 AS kind, 'bench' AS service, 'unset' AS status,
    base + k * slow * 5_000_000 AS start_ns,
    start_ns + (CASE WHEN k = 0 THEN {each} ELSE 1 END) * slow * 5_000_000 AS end_ns,
    end_ns AS received_ns, 0 AS dropped,
    CASE WHEN k % 2 = 1 THEN k // 2 END AS step_index,
    CASE WHEN k % 2 = 1 THEN 'w' || (t % 8) END AS worker_id,
    CASE WHEN k % 2 = 1 THEN 1 END AS degree,
    CASE WHEN k % 2 = 1 THEN 400 + k * slow END AS input_tokens,
    CASE WHEN k % 2 = 1 THEN slow * 2 END AS output_tokens,
    CASE WHEN k % 2 = 1 THEN 300 END AS cached_tokens,
    CASE WHEN k % 2 = 1 THEN slow * 500_000 END AS queue_ns,
    CASE WHEN k % 2 = 1 THEN slow * 500_000 END AS prefill_ns,
    CASE WHEN k % 2 = 1 THEN slow * 4_000_000 END AS decode_ns,
    CASE WHEN k % 2 = 1 THEN slow * (90 + hash(i) % 20) / 50.0 * ({each} // 2 - k // 2) END
        AS predicted_p50,
    predicted_p50 * 0.8 AS predicted_p10, predicted_p50 * 1.3 AS predicted_p90,
    CASE WHEN k % 2 = 1 THEN 'heddle-1' END AS predictor_version,
    CASE WHEN k > 0 AND k % 2 = 0 THEN 'bash' END AS tool_name,
    {{'heddle.seed': i % 100, 'gen_ai.request.model': 'Qwen3-14B', 'k': k}}::VARIANT AS attrs
FROM d
"""
_ROLLOUTS: Final = """
INSERT INTO spans BY NAME
SELECT 'run-' || r // {a_run} AS run_id, 'r' || lpad(CAST(r AS VARCHAR), 5, '0') AS rollout_id,
    md5('rollout' || r) AS trace_id, substr(md5('rollout' || r), 1, 16) AS span_id,
    'heddle.rollout' AS op, op AS name, 1 AS kind, 'bench' AS service, 'unset' AS status,
    {start} + r * 600_000_000_000 AS start_ns, start_ns + 500_000_000_000 AS end_ns,
    end_ns AS received_ns, 0 AS dropped, 8 AS gpus, {expected} AS expected, 'heddle' AS preset,
    '1,1,1,1,1,1,1,1' AS layout, {{'heddle.rollout.kind': 'train'}}::VARIANT AS attrs
FROM range({first}, {last}) x(r)
"""
_ANNOUNCED: Final = "rollout_id = ? AND op IN ('heddle.rollout', 'invoke_agent')"


@dataclass(frozen=True, slots=True)
class Shape:
    """Spans of a trajectory (itself, steps and tools in turn) and trajectories of a rollout."""

    each: int = PER_TRAJECTORY
    trajectories: int = 256

    @property
    def per_rollout(self) -> int:
        return self.each * self.trajectories


def build(path: Path, spans: int) -> int:
    """Fill the store at *path* with about that many spans; how many there are."""
    rollouts = max(1, spans // PER_ROLLOUT)
    made(path, {0: (rollouts, Shape())})
    return rollouts * PER_ROLLOUT + rollouts


def made(path: Path, rollouts: Mapping[int, tuple[int, Shape]], running: str | None = None) -> None:
    """Fill the store: number of the first rollout to how many, and their shape. *running* is a
    rollout that has not ended, nor have its trajectories."""
    Store(path).close()
    with duckdb.connect(str(path), config={"memory_limit": "3GB", "threads": 2}) as con:
        con.execute("SET preserve_insertion_order = false")
        for begin, (count, shape) in rollouts.items():
            at_once = max(1, _AT_ONCE * PER_ROLLOUT // shape.per_rollout)
            for first in range(begin, begin + count, at_once):
                _insert(con, first, min(first + at_once, begin + count), shape)
        if running is not None:
            _reopen(con, running)
        for table in _TABLES:
            con.execute(rollups.touching(table))
        con.execute("CHECKPOINT")


def _reopen(con: duckdb.DuckDBPyConnection, rollout: str) -> None:
    """As if it had not ended: markers instead of the spans that end it."""
    known = [{row[0] for row in con.execute(f"DESCRIBE {t}").fetchall()} for t in _TABLES]
    named = ", ".join(sorted((known[0] & known[1]) - {"end_ns"}))
    con.execute(
        f"INSERT INTO markers BY NAME SELECT {named} FROM spans WHERE {_ANNOUNCED}", [rollout]
    )
    con.execute(f"DELETE FROM spans WHERE {_ANNOUNCED}", [rollout])


_TABLES: Final = ("spans", "markers")


def _insert(con: duckdb.DuckDBPyConnection, first: int, last: int, shape: Shape) -> None:
    fixed = {"per_rollout": shape.per_rollout, "a_run": ROLLOUTS_A_RUN, "start": START_NS}
    fixed |= {"each": shape.each, "expected": shape.trajectories}
    ends = {"first": first * shape.per_rollout, "last": last * shape.per_rollout}
    con.execute(_SPANS.format(**ends, **fixed))
    con.execute(_ROLLOUTS.format(first=first, last=last, **fixed))
