-- Sums over spans that lists and quantiles read instead of the spans. `touched` says which of them
-- a commit has changed; they are computed anew from their spans, whole, so that late, replaced and
-- repeated spans need no arithmetic of their own. {rollouts} narrows the scan; rollups.py fills it.

-- :tables
CREATE TABLE IF NOT EXISTS touched (
    run_id VARCHAR, rollout_id VARCHAR, trajectory_id VARCHAR, first_ns BIGINT, last_ns BIGINT
);
CREATE TABLE IF NOT EXISTS rolled_runs (run_id VARCHAR, first_ns BIGINT, last_ns BIGINT);
CREATE TABLE IF NOT EXISTS rolled_of (definition VARCHAR);
-- `sealed` stands for the spans in sealed Parquet files; sealed.py makes it.
CREATE OR REPLACE VIEW everything AS
SELECT * FROM spans UNION ALL BY NAME SELECT * FROM markers UNION ALL BY NAME SELECT * FROM sealed;

-- :touch
INSERT INTO touched
SELECT run_id, rollout_id, trajectory_id, min(start_ns), max(greatest(start_ns, end_ns))
FROM {incoming} GROUP BY ALL;

-- :rolled_trajectories
WITH kinds AS (
    SELECT e.*,
        end_ns IS NOT NULL AS done,
        op = 'invoke_agent' AS is_root,
        op IN ('chat', 'text_completion', 'generate_content') AS is_step,
        op = 'execute_tool' AS is_tool,
        op = 'execute_tool' AND NOT coalesce(inferred, false) AS is_explicit,
        greatest(end_ns - start_ns, 0) AS length_ns
    FROM everything e
    SEMI JOIN touched t
        ON e.run_id = t.run_id AND e.trajectory_id = t.trajectory_id
        AND e.rollout_id IS NOT DISTINCT FROM t.rollout_id
    WHERE e.trajectory_id IS NOT NULL AND {rollouts}
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

-- :rolled_rollouts
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
FROM everything e
SEMI JOIN touched t ON e.run_id = t.run_id AND e.rollout_id = t.rollout_id
WHERE op IN ('heddle.rollout', 'heddle.plan') AND e.rollout_id IS NOT NULL AND {rollouts}
GROUP BY run_id, rollout_id;

-- :rolled_runs
SELECT run_id, min(first_ns) AS first_ns, max(last_ns) AS last_ns
FROM (
    SELECT run_id, first_ns, last_ns FROM touched
    UNION ALL SELECT r.* FROM rolled_runs r SEMI JOIN touched t ON r.run_id = t.run_id
)
GROUP BY run_id;
