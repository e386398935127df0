-- Sums over spans that lists and quantiles read instead of the spans. `touched` says which of them
-- a commit has changed. Stored spans only ever add to a state (`rolled_states`), so new ones are
-- merged into it; where spans were replaced or removed it is computed anew from all of them. Open
-- start markers come and go and are added last. rollups.py fills the braces.

-- :tables
CREATE TABLE IF NOT EXISTS touched (
    run_id VARCHAR, rollout_id VARCHAR, trajectory_id VARCHAR, first_ns BIGINT, last_ns BIGINT,
    of_rollout BOOLEAN, number BIGINT
);
CREATE TABLE IF NOT EXISTS rolled_runs (run_id VARCHAR, first_ns BIGINT, last_ns BIGINT);
CREATE TABLE IF NOT EXISTS rolled_of (definition VARCHAR);

-- :touch
INSERT INTO touched
SELECT run_id, rollout_id, trajectory_id, min(start_ns), max(greatest(start_ns, end_ns)),
    coalesce(bool_or(op IN ('heddle.rollout', 'heddle.plan')), false), {number}
FROM {incoming} GROUP BY run_id, rollout_id, trajectory_id;

-- :due
CREATE OR REPLACE TEMP TABLE due AS
SELECT run_id, rollout_id, trajectory_id, min(first_ns) AS first_ns, max(last_ns) AS last_ns,
    bool_or(of_rollout) AS of_rollout, bool_or(number IS NULL OR number <= {floor}) AS anew
FROM touched GROUP BY run_id, rollout_id, trajectory_id

-- :states
SELECT run_id, rollout_id, trajectory_id,
    any_value(group_id) AS group_id,
    any_value(sample_index) AS sample_index,
    any_value(task) AS task,
    min(start_ns) AS start_ns,
    greatest(max(start_ns), max(end_ns)) AS seen_ns,
    max(received_ns) AS heard_ns,
    max(end_ns) FILTER (is_root) AS root_end_ns,
    coalesce(bool_or(is_root), false) AS has_root,
    coalesce(bool_or(is_step AND NOT done), false) AS has_open_step,
    coalesce(list(DISTINCT step_index) FILTER (is_step AND done AND step_index IS NOT NULL), [])
        AS step_indices,
    count(*) FILTER (is_step AND done AND step_index IS NULL) AS unnumbered,
    coalesce(bool_or(is_explicit), false) AS has_explicit,
    count(*) FILTER (is_explicit AND done) AS explicit_calls,
    count(*) FILTER (is_tool AND done) AS all_calls,
    coalesce(sum(length_ns) FILTER (is_explicit), 0) AS explicit_ns,
    coalesce(sum(length_ns) FILTER (is_tool), 0) AS all_tool_ns,
    -- As sums are: a sender may say anything, and two of 2^63 must not stop everybody's reading.
    max(coalesce(input_tokens, 0)::HUGEINT + coalesce(output_tokens, 0))
        FILTER (is_step AND coalesce(input_tokens, output_tokens) IS NOT NULL)
        AS peak_context_tokens,
    -- Null where no step said it: nothing is not zero.
    sum(output_tokens) FILTER (is_step) AS output_tokens,
    sum(cached_tokens) FILTER (is_step) AS cached_tokens,
    sum(input_tokens) FILTER (is_step) AS input_tokens,
    sum(input_tokens) FILTER (is_step AND cached_tokens IS NOT NULL) AS looked_up_tokens,
    sum(held_ns) FILTER (is_step) AS held_ns,
    sum(queue_ns) FILTER (is_step) AS queue_ns,
    sum(prefill_ns) FILTER (is_step) AS prefill_ns,
    sum(decode_ns) FILTER (is_step) AS decode_ns,
    -- Of steps that tell neither prefill nor decode, what is not waiting: facts.py calls it opaque.
    coalesce(sum(greatest(
        length_ns::HUGEINT - greatest(coalesce(held_ns, 0), 0)
        - greatest(coalesce(queue_ns, 0), 0), 0
    )) FILTER (is_step AND done AND coalesce(prefill_ns, decode_ns) IS NULL), 0) AS unknown_ns,
    count(*) FILTER (op = 'heddle.move' AND done) AS moves,
    coalesce(list(DISTINCT worker_id) FILTER (is_step AND worker_id IS NOT NULL), [])
        AS worker_ids,
    max({'at': start_ns, 'id': worker_id}) FILTER (is_step AND worker_id IS NOT NULL) AS latest,
    sum(retractions) FILTER (is_step) AS retractions,
    min({'at': start_ns, 'p50': predicted_p50}) FILTER (is_step AND predicted_p50 IS NOT NULL)
        AS guess,
    any_value(reward) AS reward,
    any_value(truncated) AS truncated,
    any_value(outcome) FILTER (is_root) AS outcome,
    count(*) FILTER (status = 'error') AS errors
FROM (
    SELECT e.*,
        end_ns IS NOT NULL AS done,
        op = 'invoke_agent' AS is_root,
        op IN ('chat', 'text_completion', 'generate_content') AS is_step,
        op = 'execute_tool' AS is_tool,
        op = 'execute_tool' AND NOT coalesce(inferred, false) AS is_explicit,
        greatest(end_ns - start_ns, 0) AS length_ns
    FROM {rows} e
    SEMI JOIN {whose} t
        ON e.run_id = t.run_id AND e.trajectory_id = t.trajectory_id
        AND e.rollout_id IS NOT DISTINCT FROM t.rollout_id
    WHERE e.trajectory_id IS NOT NULL AND {rollouts}
)
GROUP BY run_id, rollout_id, trajectory_id

-- :merged
SELECT run_id, rollout_id, trajectory_id,
    any_value(group_id) AS group_id,
    any_value(sample_index) AS sample_index,
    any_value(task) AS task,
    min(start_ns) AS start_ns,
    max(seen_ns) AS seen_ns,
    max(heard_ns) AS heard_ns,
    max(root_end_ns) AS root_end_ns,
    bool_or(has_root) AS has_root,
    bool_or(has_open_step) AS has_open_step,
    list_distinct(flatten(list(step_indices))) AS step_indices,
    sum(unnumbered) AS unnumbered,
    bool_or(has_explicit) AS has_explicit,
    sum(explicit_calls) AS explicit_calls,
    sum(all_calls) AS all_calls,
    sum(explicit_ns) AS explicit_ns,
    sum(all_tool_ns) AS all_tool_ns,
    max(peak_context_tokens) AS peak_context_tokens,
    sum(output_tokens) AS output_tokens,
    sum(cached_tokens) AS cached_tokens,
    sum(input_tokens) AS input_tokens,
    sum(looked_up_tokens) AS looked_up_tokens,
    sum(held_ns) AS held_ns,
    sum(queue_ns) AS queue_ns,
    sum(prefill_ns) AS prefill_ns,
    sum(decode_ns) AS decode_ns,
    sum(unknown_ns) AS unknown_ns,
    sum(moves) AS moves,
    list_distinct(flatten(list(worker_ids))) AS worker_ids,
    max(latest) AS latest,
    sum(retractions) AS retractions,
    min(guess) AS guess,
    any_value(reward) AS reward,
    any_value(truncated) AS truncated,
    any_value(outcome) AS outcome,
    sum(errors) AS errors
FROM ({states})
GROUP BY run_id, rollout_id, trajectory_id

-- :rolled_trajectories
SELECT * EXCLUDE (step_indices, unnumbered, worker_ids, latest, guess),
    -- One trajectory among 250,000 is found in 1.4 ms by it, in 9 ms by its name; an index on names
    -- took 1.1 ms and 5 to 15 % of the ingest.
    hash(trajectory_id) AS trajectory_key,
    len(step_indices) + unnumbered AS steps,
    len(worker_ids) AS workers,
    latest.id AS worker_id,
    guess.p50 AS predicted_p50
FROM ({merged})

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
SEMI JOIN due t ON e.run_id = t.run_id AND e.rollout_id = t.rollout_id AND t.of_rollout
WHERE op IN ('heddle.rollout', 'heddle.plan') AND e.rollout_id IS NOT NULL AND {rollouts}
GROUP BY run_id, rollout_id;

-- :widened_runs
UPDATE rolled_runs r SET first_ns = least(r.first_ns, t.first_ns),
    last_ns = greatest(r.last_ns, t.last_ns)
FROM (SELECT run_id, min(first_ns) AS first_ns, max(last_ns) AS last_ns FROM due GROUP BY run_id) t
WHERE r.run_id IS NOT DISTINCT FROM t.run_id AND (r.first_ns > t.first_ns OR r.last_ns < t.last_ns);
INSERT INTO rolled_runs
SELECT run_id, min(first_ns), max(last_ns) FROM due d
WHERE NOT EXISTS (SELECT 1 FROM rolled_runs r WHERE r.run_id IS NOT DISTINCT FROM d.run_id)
GROUP BY run_id;
