"""What did each trajectory and group do: steps, tool calls, moves, spans; how long is the tail?"""

from __future__ import annotations

from heddle.collector.queries.query import Query
from heddle.collector.records import FRAMES

_WHOSE = ("run", "rollout", "group", "trajectory")
_WHEN = ("policy", "since", "until")
_METRICS = ("output_tokens", "steps", "duration_s", "tool_s")

TRAJECTORIES = Query(
    name="trajectories",
    meaning="One row per trajectory of a rollout, running ones with what is finished so far.",
    filters=(*_WHOSE, "worker", "task", "state", "outcome", *_WHEN),
    sql="SELECT * FROM trajectories {where}",
    counted="SELECT * FROM trajectories {where}",
    order="start_ns, run_id, trajectory_id, rollout_id",
)
GROUPS = Query(
    name="groups",
    meaning="One row per prompt and rollout: how far its samples are, and the longest of them.",
    filters=("run", "rollout", "group", "task", "state", *_WHEN),
    sql="SELECT * FROM groups {where}",
    order="start_ns, run_id, group_id, rollout_id",
)
STEPS = Query(
    name="steps",
    meaning="One row per LLM call, running ones from their start marker.",
    filters=(*_WHOSE, "worker", "task", "state", "step", *_WHEN),
    sql="SELECT * FROM {of}steps {where}",
    counted="SELECT * FROM {of}steps {where}",
    of_spans=True,
    order="start_ns, trajectory_id, step_index, trace_id, span_id",
)
TOOL_CALLS = Query(
    name="tool_calls",
    meaning="One row per tool call; inferred ones only where the client reports none.",
    filters=(*_WHOSE, "task", "state", "step", "tool", *_WHEN),
    sql="SELECT * FROM {of}tool_calls {where}",
    counted="SELECT * FROM {of}tool_calls {where}",
    of_spans=True,
    order="start_ns, trajectory_id, step_index, trace_id, span_id",
)
MOVES = Query(
    name="moves",
    meaning="Trajectories that changed worker, and what it cost.",
    filters=("run", "rollout", "trajectory", "state", *_WHEN),
    sql="SELECT * FROM {of}moves {where}",
    of_spans=True,
    order="start_ns, trajectory_id, trace_id, span_id",
)
# A parent outside the filter is looked up by itself; when none is missing nothing more is scanned.
_KEPT = ", ".join(c.name for c in FRAMES["spans"] if c.name != "marks")
_MARKED = f"""
WITH picked AS MATERIALIZED (
    SELECT trace_id, span_id, parent_span_id, start_ns FROM {{everything}} {{where}}
), page AS (SELECT {_KEPT}, state FROM {{stated}} {{where}}{{page}}), missing AS (
    SELECT DISTINCT p.trace_id, p.parent_span_id AS span_id
    FROM page p ANTI JOIN picked q ON q.trace_id = p.trace_id AND q.span_id = p.parent_span_id
    WHERE p.parent_span_id IS NOT NULL
), parents AS (
    SELECT trace_id, span_id, start_ns FROM picked
    UNION ALL SELECT e.trace_id, e.span_id, e.start_ns FROM everything e
    SEMI JOIN missing m ON e.trace_id = m.trace_id AND e.span_id = m.span_id
), crowded AS (
    SELECT trace_id FROM picked WHERE parent_span_id IS NULL GROUP BY trace_id HAVING count(*) > 1
)
SELECT p.* REPLACE (p.attrs::JSON::VARCHAR AS attrs), nullif(concat_ws(',',
    CASE WHEN p.state <> 'finished' THEN p.state END,
    CASE WHEN p.parent_span_id IS NOT NULL AND t.span_id IS NULL THEN 'orphan' END,
    CASE WHEN p.start_ns < t.start_ns THEN 'skewed' END,
    CASE WHEN p.end_ns < p.start_ns THEN 'negative' END,
    CASE WHEN p.parent_span_id IS NULL AND p.trace_id IN (FROM crowded) THEN 'multi_root' END
), '') AS marks
FROM page p LEFT JOIN parents t ON t.trace_id = p.trace_id AND t.span_id = p.parent_span_id
"""
SPANS = Query(
    name="spans",
    meaning="Spans as they were sent, with every attribute.",
    filters=(*_WHOSE, "worker", "op", "trace", "since", "until"),
    sql=_MARKED,
    counted="SELECT * FROM {everything} {where}",
    of_spans=True,
    order="start_ns, end_ns, trace_id, span_id",
    needs=("trajectory", "rollout", "trace"),
)
HISTORY = Query(
    name="history",
    meaning="What finished trajectories of each group took, for predictors.",
    filters=("run", "rollout", "task", "group", "before_rollout", *_WHEN),
    sql=(
        "SELECT run_id, task, group_id, count(*) FILTER (whole) AS trajectories,"
        " avg(ln(output_tokens)) FILTER (whole) AS mean_log_tokens,"
        " coalesce(var_samp(ln(output_tokens)) FILTER (whole), 0) AS var_log_tokens,"
        " avg(steps) AS mean_steps, avg(tool_s) AS mean_tool_s,"
        " avg(output_tokens) AS mean_tokens,"
        " count(*) FILTER (NOT whole) AS truncated,"
        " avg(ln(output_tokens)) FILTER (NOT whole) AS mean_log_truncated"
        " FROM (SELECT *, NOT coalesce(truncated, false) AS whole"
        " FROM (SELECT * FROM trajectories {where})"
        " WHERE state = 'finished' AND output_tokens > 0)"
        " GROUP BY run_id, task, group_id"
    ),
    order="run_id, task, group_id",
    extra={
        "before_rollout": (
            "(run_id, rollout_id) IN (SELECT (b.run_id, b.rollout_id) FROM rollouts b"
            " LEFT JOIN rollouts a ON a.run_id = b.run_id AND a.rollout_id = ?"
            # A rollout that has not begun comes after all of them: its plan asks just then.
            " WHERE a.start_ns IS NULL OR b.start_ns < a.start_ns)"
        )
    },
)
TAIL = Query(
    name="tail",
    meaning="How long the longest finished trajectories are compared with the middle one.",
    filters=(*_WHOSE, "task", *_WHEN),
    sql=(
        "WITH t AS (SELECT * FROM (SELECT * FROM trajectories {where}) WHERE state = 'finished'),"
        " m AS ("
        + " UNION ALL ".join(
            f"SELECT {at} AS place, '{metric}' AS metric, CAST({metric} AS DOUBLE) AS v FROM t"
            for at, metric in enumerate(_METRICS)
        )
        + ") SELECT place, metric, count(v) AS count, quantile_cont(v, 0.5) AS p50,"
        " quantile_cont(v, 0.9) AS p90, quantile_cont(v, 0.99) AS p99, max(v) AS max,"
        " max(v) / nullif(quantile_cont(v, 0.5), 0) AS max_over_median"
        " FROM m GROUP BY place, metric HAVING count(v) > 0"
    ),
    order="place",
)
