"""How do millions of plausible spans get into a store without passing the receiver?

By SQL inside DuckDB: rollouts of 256 trajectories with 20 steps and 19 tool calls each, times and
tokens drawn per trajectory from a hash, so that a few of each rollout are much longer. The numbers
are made up; the shape (rows per rollout, distinct ids, sizes) is what queries meet.
"""

from __future__ import annotations

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
    SELECT i, i // {per_rollout} AS r, (i % {per_rollout}) // 40 AS t, i % 40 AS k
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
    start_ns + (CASE WHEN k = 0 THEN 40 ELSE 1 END) * slow * 5_000_000 AS end_ns,
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
    end_ns AS received_ns, 0 AS dropped, 8 AS gpus, 256 AS expected, 'heddle' AS preset,
    '1,1,1,1,1,1,1,1' AS layout, {{'heddle.rollout.kind': 'train'}}::VARIANT AS attrs
FROM range({first}, {last}) x(r)
"""


def build(path: Path, spans: int) -> int:
    """Fill the store at *path* with about that many spans; how many there are."""
    Store(path).close()
    rollouts = max(1, spans // PER_ROLLOUT)
    with duckdb.connect(str(path), config={"memory_limit": "3GB", "threads": 2}) as con:
        con.execute("SET preserve_insertion_order = false")
        for first in range(0, rollouts, _AT_ONCE):
            _insert(con, first, min(first + _AT_ONCE, rollouts))
        con.execute(rollups.touching("spans"))
        con.execute("CHECKPOINT")
    return rollouts * PER_ROLLOUT + rollouts


def _insert(con: duckdb.DuckDBPyConnection, first: int, last: int) -> None:
    fixed = {"per_rollout": PER_ROLLOUT, "a_run": ROLLOUTS_A_RUN, "start": START_NS}
    con.execute(_SPANS.format(first=first * PER_ROLLOUT, last=last * PER_ROLLOUT, **fixed))
    con.execute(_ROLLOUTS.format(first=first, last=last, **fixed))
