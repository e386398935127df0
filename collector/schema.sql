-- What the tables mean. `spans` and `markers` themselves are made from collector/conventions.py
-- (columns.SCHEMA), so that a new attribute is one line there; everything here is a view. The
-- `rolled_` tables hold sums over spans, kept up to date by collector/rollups.py; `stored`,
-- `everything` and `stated` are of collector/sealed.py.
-- A marker row stands for the span it announces: that span's id and op, no end. The writer drops
-- it when the span arrives. Every view keeps run_id, rollout_id and trajectory_id plain, so that
-- a filter on them reaches the scan.

CREATE OR REPLACE VIEW rollout_ends AS
SELECT run_id, rollout_id, end_ns FROM rolled_rollouts WHERE end_ns IS NOT NULL;

-- A trajectory is finished when its own span came; without one (no client sends it), when its
-- rollout has ended. It is abandoned when neither came, only silence. One that crosses rollouts has
-- a row in each.
CREATE OR REPLACE VIEW trajectories AS
SELECT s.* EXCLUDE (explicit_calls, all_calls, explicit_ns, all_tool_ns, trajectory_key),
    CASE
        WHEN s.root_end_ns IS NOT NULL THEN 'finished'
        WHEN r.end_ns IS NULL AND (s.rollout_id IS NOT NULL OR s.has_root OR s.has_open_step)
            THEN CASE WHEN s.heard_ns < silent_before()
                THEN 'abandoned' ELSE 'running' END
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
    s.decode_ns / 1e9 AS decode_s,
    s.unknown_ns / 1e9 AS unknown_s
FROM rolled_trajectories s
LEFT JOIN rollout_ends r ON s.run_id = r.run_id AND s.rollout_id = r.rollout_id;

-- The samples of one prompt in one rollout, as a trainer compares them.
CREATE OR REPLACE VIEW groups AS
SELECT run_id, rollout_id, group_id,
    any_value(task) AS task,
    CASE WHEN bool_or(state = 'running') THEN 'running'
        WHEN bool_and(state = 'finished') THEN 'finished' ELSE 'abandoned' END AS state,
    min(start_ns) AS start_ns,
    CASE WHEN bool_and(end_ns IS NOT NULL) THEN max(end_ns) END AS end_ns,
    count(*) AS trajectories,
    count(*) FILTER (state = 'finished') AS finished,
    count(*) FILTER (truncated) AS truncated,
    sum(steps) AS steps,
    sum(tool_calls) AS tool_calls,
    sum(output_tokens) AS output_tokens,
    max(output_tokens) AS longest_tokens,
    max(duration_s) AS longest_s,
    quantile_cont(duration_s, 0.5) AS median_s,
    avg(reward) AS mean_reward
FROM trajectories WHERE group_id IS NOT NULL GROUP BY run_id, rollout_id, group_id;

CREATE OR REPLACE VIEW rollouts AS
WITH sums AS (
    SELECT run_id, rollout_id,
        min(start_ns) AS start_ns,
        max(seen_ns) AS seen_ns,
        max(heard_ns) AS heard_ns,
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
    CASE
        WHEN o.end_ns IS NOT NULL THEN 'finished'
        WHEN s.heard_ns < silent_before() THEN 'abandoned'
        ELSE 'running'
    END AS state,
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
    s.output_tokens,
    o.predicted_makespan_s,
    o.clock_speed
FROM rolled_rollouts o FULL JOIN sums s USING (run_id, rollout_id);

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
