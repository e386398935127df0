"""Which runs and rollouts are there, with which workers, plans and switches, and how late?"""

from __future__ import annotations

from heddle.collector.queries.query import Query

RUNS = Query(
    name="runs",
    meaning="Every run that sent anything; latest first.",
    filters=("run", "since", "until"),
    sql=(
        "SELECT * FROM (SELECT r.run_id, r.first_ns AS start_ns, r.first_ns, r.last_ns,"
        " coalesce(o.rollouts, 0) AS rollouts, coalesce(t.trajectories, 0) AS trajectories"
        " FROM rolled_runs r"
        " LEFT JOIN (SELECT run_id, count(*) AS rollouts FROM rollouts GROUP BY run_id) o"
        " USING (run_id)"
        " LEFT JOIN (SELECT run_id, count(DISTINCT trajectory_id) AS trajectories"
        " FROM rolled_trajectories GROUP BY run_id) t USING (run_id)) {where}"
    ),
    order="last_ns DESC, run_id",
)
ROLLOUTS = Query(
    name="rollouts",
    meaning="Rollouts with their totals; newest first.",
    filters=("run", "rollout", "state", "policy", "since", "until"),
    sql="SELECT * FROM rollouts {where}",
    order="start_ns DESC, run_id, rollout_id",
)
WORKERS = Query(
    name="workers",
    meaning="Which worker, of which degree, served a rollout when.",
    filters=("run", "rollout", "worker", "state", "policy", "since", "until"),
    sql="SELECT * FROM workers {where}",
    order="start_ns, worker_id, run_id, rollout_id, end_ns",
)
INGEST_LAG = Query(
    name="ingest_lag",
    meaning="How long after their end spans came, by sender and minute; latest first.",
    filters=("run", "rollout", "since", "until"),
    needs=("run", "since"),
    sql=(
        "SELECT run_id, coalesce(service, '') AS service,"
        " received_ns // 60000000000 * 60000000000 AS at_ns, count(*) AS spans,"
        " quantile_cont((received_ns - end_ns) / 1e9, 0.5) AS lag_p50_s,"
        " quantile_cont((received_ns - end_ns) / 1e9, 0.99) AS lag_p99_s,"
        " max(received_ns - end_ns) / 1e9 AS lag_max_s"
        " FROM (SELECT * FROM everything WHERE end_ns IS NOT NULL) {where} GROUP BY ALL"
    ),
    order="at_ns DESC, run_id, service",
)
SWITCHES = Query(
    name="switches",
    meaning="Who switched which policy, from what to what, and why; latest first.",
    filters=("run", "since", "until"),
    sql=(
        "SELECT run_id, span_id, start_ns AS at_ns, switch_choice AS choice,"
        " switch_before AS before, switch_after AS after, switch_who AS who, switch_why AS why"
        " FROM (SELECT * FROM spans WHERE op = 'heddle.switch') {where}"
    ),
    order="at_ns DESC, choice, span_id",
)
PLANS = Query(
    name="plans",
    meaning="What the core decided for a rollout and what it expected; latest first.",
    filters=("run", "rollout", "policy", "since", "until"),
    sql=(
        "SELECT *, start_ns AS at_ns FROM"
        " (SELECT * FROM everything WHERE op = 'heddle.plan' AND end_ns IS NOT NULL) {where}"
    ),
    order="at_ns DESC, run_id, span_id",
)
_SAID = {
    "of": "VARCHAR",
    "cell": "VARCHAR",
    "policy": "VARCHAR",
    "makespan_s": "DOUBLE",
    "bound_s": "DOUBLE",
    "idle_gpu_s": "DOUBLE",
    "held_s": "DOUBLE",
    "moves": "BIGINT",
    "engines": "VARCHAR",
}
REPLAYS = Query(
    name="replays",
    meaning="Paired replays that were saved, policy by policy; latest first.",
    filters=("run", "since", "until"),
    sql=(
        "SELECT run_id, span_id, start_ns, start_ns AS at_ns, gpus, layout, predicted_makespan_s, "
        + ", ".join(
            f"CAST(attrs['heddle.replay.{name}'] AS {kind}) AS {name}"
            for name, kind in _SAID.items()
        )
        + " FROM (SELECT * FROM everything WHERE op = 'heddle.replay') {where}"
    ),
    order="at_ns DESC, span_id",
)
