-- What the tables mean. `spans` and `markers` themselves are made from collector/conventions.py
-- (columns.SCHEMA), so that a new attribute is one line there; everything here is a view.
-- A marker row stands for the span it announces: that span's id and op, no end. The writer drops
-- it when the span arrives. Every view keeps run_id, rollout_id and trajectory_id plain, so that
-- a filter on them reaches the scan.

CREATE OR REPLACE VIEW everything AS
SELECT * FROM spans UNION ALL BY NAME SELECT * FROM markers;

CREATE OR REPLACE VIEW rollout_ends AS
SELECT run_id, rollout_id, max(end_ns) AS end_ns
FROM spans
WHERE op = 'heddle.rollout' AND end_ns IS NOT NULL
GROUP BY run_id, rollout_id;

-- What has no end is running, or abandoned once its rollout has ended.
CREATE OR REPLACE VIEW stated AS
SELECT e.*,
    CASE
        WHEN e.end_ns IS NOT NULL THEN 'finished'
        WHEN r.end_ns IS NOT NULL THEN 'abandoned'
        ELSE 'running'
    END AS state
FROM everything e
LEFT JOIN rollout_ends r ON e.run_id = r.run_id AND e.rollout_id = r.rollout_id;

CREATE OR REPLACE VIEW steps AS
SELECT * FROM stated
WHERE op IN ('chat', 'text_completion', 'generate_content') AND trajectory_id IS NOT NULL;

-- Tool calls inferred from gaps count only where the trajectory's client reports none itself.
CREATE OR REPLACE VIEW tool_calls AS
SELECT * REPLACE (coalesce(inferred, false) AS inferred, coalesce(synthetic, false) AS synthetic),
    greatest(end_ns - start_ns, 0) / 1e9 AS duration_s
FROM stated
WHERE op = 'execute_tool' AND trajectory_id IS NOT NULL
QUALIFY NOT (
    coalesce(inferred, false)
    AND bool_or(NOT coalesce(inferred, false)) OVER (PARTITION BY run_id, rollout_id, trajectory_id)
);

CREATE OR REPLACE VIEW moves AS
SELECT *, hidden_ns / 1e9 AS hidden_s, exposed_ns / 1e9 AS exposed_s
FROM stated WHERE op = 'heddle.move';

CREATE OR REPLACE VIEW trajectory_sums AS
WITH kinds AS (
    SELECT *,
        end_ns IS NOT NULL AS done,
        op = 'invoke_agent' AS is_root,
        op IN ('chat', 'text_completion', 'generate_content') AS is_step,
        op = 'execute_tool' AS is_tool,
        op = 'execute_tool' AND NOT coalesce(inferred, false) AS is_explicit,
        greatest(end_ns - start_ns, 0) AS length_ns
    FROM everything
    WHERE trajectory_id IS NOT NULL
)
SELECT run_id, rollout_id, trajectory_id,
    any_value(group_id) AS group_id,
    any_value(sample_index) AS sample_index,
    any_value(task) AS task,
    min(start_ns) AS start_ns,
    greatest(max(start_ns), max(end_ns)) AS seen_ns,
    max(end_ns) FILTER (is_root) AS root_end_ns,
    coalesce(bool_or(is_root), false) AS has_root,
    coalesce(bool_or(is_step AND NOT done), false) AS has_open_step,
    count(DISTINCT step_index) FILTER (is_step AND done)
        + count(*) FILTER (is_step AND done AND step_index IS NULL) AS steps,
    coalesce(bool_or(is_explicit), false) AS has_explicit,
    count(*) FILTER (is_explicit AND done) AS explicit_calls,
    count(*) FILTER (is_tool AND done) AS all_calls,
    coalesce(sum(length_ns) FILTER (is_explicit), 0) AS explicit_ns,
    coalesce(sum(length_ns) FILTER (is_tool), 0) AS all_tool_ns,
    max(coalesce(input_tokens, 0) + coalesce(output_tokens, 0)) FILTER (is_step)
        AS peak_context_tokens,
    coalesce(sum(output_tokens) FILTER (is_step), 0) AS output_tokens,
    coalesce(sum(cached_tokens) FILTER (is_step), 0) AS cached_tokens,
    coalesce(sum(input_tokens) FILTER (is_step), 0) AS input_tokens,
    coalesce(sum(held_ns) FILTER (is_step), 0) AS held_ns,
    coalesce(sum(queue_ns) FILTER (is_step), 0) AS queue_ns,
    coalesce(sum(prefill_ns) FILTER (is_step), 0) AS prefill_ns,
    coalesce(sum(decode_ns) FILTER (is_step), 0) AS decode_ns,
    count(*) FILTER (op = 'heddle.move' AND done) AS moves,
    count(DISTINCT worker_id) FILTER (is_step) AS workers,
    arg_max(worker_id, start_ns) FILTER (is_step AND worker_id IS NOT NULL) AS worker_id,
    coalesce(sum(retractions) FILTER (is_step), 0) AS retractions,
    arg_min(predicted_p50, start_ns) FILTER (is_step AND predicted_p50 IS NOT NULL)
        AS predicted_p50,
    any_value(reward) AS reward,
    any_value(truncated) AS truncated,
    any_value(outcome) FILTER (is_root) AS outcome,
    count(*) FILTER (status = 'error') AS errors
FROM kinds
GROUP BY run_id, rollout_id, trajectory_id;

-- A trajectory is finished when its own span came; without one (no client sends it), when its
-- rollout has ended. One that crosses rollouts has a row in each.
CREATE OR REPLACE VIEW trajectories AS
SELECT s.* EXCLUDE (explicit_calls, all_calls, explicit_ns, all_tool_ns),
    CASE
        WHEN s.root_end_ns IS NOT NULL THEN 'finished'
        WHEN r.end_ns IS NULL AND (s.rollout_id IS NOT NULL OR s.has_root OR s.has_open_step)
            THEN 'running'
        WHEN s.has_root OR s.has_open_step THEN 'abandoned'
        ELSE 'finished'
    END AS state,
    CASE
        WHEN s.root_end_ns IS NOT NULL THEN s.root_end_ns
        WHEN state = 'finished' THEN s.seen_ns
    END AS end_ns,
    greatest(coalesce(s.root_end_ns, s.seen_ns) - s.start_ns, 0) / 1e9 AS duration_s,
    CASE WHEN s.has_explicit THEN s.explicit_calls ELSE s.all_calls END AS tool_calls,
    CASE WHEN s.has_explicit THEN s.explicit_ns ELSE s.all_tool_ns END / 1e9 AS tool_s,
    s.held_ns / 1e9 AS held_s,
    s.queue_ns / 1e9 AS queue_s,
    s.prefill_ns / 1e9 AS prefill_s,
    s.decode_ns / 1e9 AS decode_s
FROM trajectory_sums s
LEFT JOIN rollout_ends r ON s.run_id = r.run_id AND s.rollout_id = r.rollout_id;

CREATE OR REPLACE VIEW rollouts AS
WITH own AS (
    SELECT run_id, rollout_id,
        min(start_ns) FILTER (op = 'heddle.rollout') AS start_ns,
        max(end_ns) FILTER (op = 'heddle.rollout') AS end_ns,
        any_value(attrs['heddle.rollout.kind']::VARCHAR) FILTER (op = 'heddle.rollout') AS kind,
        arg_max(preset, start_ns) FILTER (preset IS NOT NULL) AS preset,
        arg_max(policies, start_ns) FILTER (policies IS NOT NULL) AS policies,
        arg_max(layout, start_ns) FILTER (layout IS NOT NULL) AS layout,
        any_value(gpus) AS gpus,
        any_value(expected) AS expected,
        arg_max(predicted_makespan_s, start_ns) FILTER (predicted_makespan_s IS NOT NULL)
            AS predicted_makespan_s,
        any_value(clock_speed) AS clock_speed
    FROM everything
    WHERE op IN ('heddle.rollout', 'heddle.plan') AND rollout_id IS NOT NULL
    GROUP BY run_id, rollout_id
), sums AS (
    SELECT run_id, rollout_id,
        min(start_ns) AS start_ns,
        max(seen_ns) AS seen_ns,
        count(*) AS trajectories,
        count(*) FILTER (state = 'finished') AS finished,
        sum(steps) AS steps,
        sum(tool_calls) AS tool_calls,
        sum(moves) AS moves,
        sum(output_tokens) AS output_tokens
    FROM trajectories
    WHERE rollout_id IS NOT NULL
    GROUP BY run_id, rollout_id
)
SELECT run_id, rollout_id, o.kind, o.preset, o.policies,
    CASE WHEN o.end_ns IS NULL THEN 'running' ELSE 'finished' END AS state,
    coalesce(o.start_ns, s.start_ns) AS start_ns,
    o.end_ns,
    greatest(coalesce(o.end_ns, s.seen_ns, o.start_ns) - coalesce(o.start_ns, s.start_ns), 0) / 1e9
        AS makespan_s,
    greatest(s.seen_ns, o.start_ns) AS seen_ns,
    o.start_ns IS NOT NULL AS announced,
    o.gpus, o.layout, o.expected,
    coalesce(s.trajectories, 0) AS trajectories,
    coalesce(s.finished, 0) AS finished,
    coalesce(s.steps, 0) AS steps,
    coalesce(s.tool_calls, 0) AS tool_calls,
    coalesce(s.moves, 0) AS moves,
    coalesce(s.output_tokens, 0) AS output_tokens,
    o.predicted_makespan_s,
    o.clock_speed
FROM own o FULL JOIN sums s USING (run_id, rollout_id);

-- Workers announced to a rollout; one only seen on steps is there from its first to its last.
CREATE OR REPLACE VIEW workers AS
WITH announced AS (
    SELECT run_id, rollout_id, worker_id, degree, start_ns, end_ns, state
    FROM stated
    WHERE op = 'heddle.worker' AND worker_id IS NOT NULL
), seen AS (
    SELECT run_id, rollout_id, worker_id, max(degree) AS degree, min(start_ns) AS start_ns,
        CASE WHEN bool_and(state = 'finished') THEN max(end_ns) END AS end_ns,
        CASE WHEN bool_or(state = 'running') THEN 'running' ELSE 'finished' END AS state
    FROM steps
    WHERE worker_id IS NOT NULL
    GROUP BY run_id, rollout_id, worker_id
)
SELECT * FROM announced
UNION ALL
SELECT s.* FROM seen s
ANTI JOIN announced a
    ON s.run_id = a.run_id AND s.rollout_id IS NOT DISTINCT FROM a.rollout_id
    AND s.worker_id = a.worker_id;
