-- Spans by what they are. Executed twice: on `stated`, with the start markers, and as `ended_...` on
-- `ended`, without them, for those who know that no marker is asked for: planning the joins that say
-- what became of a marker takes 12 ms of the 18 ms that a look at one trajectory's steps is planned.
CREATE OR REPLACE VIEW {of}steps AS
SELECT * FROM {stated}
WHERE op IN ('chat', 'text_completion', 'generate_content') AND trajectory_id IS NOT NULL;

-- Tool calls inferred from gaps count only where the trajectory's client reports none itself.
CREATE OR REPLACE VIEW {of}tool_calls AS
SELECT c.* REPLACE (
        coalesce(c.inferred, false) AS inferred, coalesce(c.synthetic, false) AS synthetic
    ),
    greatest(c.end_ns - c.start_ns, 0) / 1e9 AS duration_s
FROM {stated} c
LEFT JOIN rolled_trajectories t
    ON coalesce(c.inferred, false)
    AND c.run_id = t.run_id AND c.rollout_id IS NOT DISTINCT FROM t.rollout_id
    AND c.trajectory_id = t.trajectory_id
WHERE c.op = 'execute_tool' AND c.trajectory_id IS NOT NULL AND NOT coalesce(t.has_explicit, false);

CREATE OR REPLACE VIEW {of}moves AS
SELECT *, hidden_ns / 1e9 AS hidden_s, exposed_ns / 1e9 AS exposed_s
FROM {stated} WHERE op = 'heddle.move';
