"""Which runs and rollouts are there, with which workers, plans and switches?"""

from __future__ import annotations

from heddle.collector.queries.query import Query

RUNS = Query(
    name="runs",
    meaning="Every run that sent anything; latest first.",
    filters=("run",),
    sql=(
        "SELECT run_id, count(DISTINCT rollout_id) AS rollouts,"
        " count(DISTINCT trajectory_id) AS trajectories, min(start_ns) AS first_ns,"
        " max(greatest(start_ns, end_ns)) AS last_ns FROM everything {where} GROUP BY run_id"
    ),
    order="last_ns DESC, run_id",
)
ROLLOUTS = Query(
    name="rollouts",
    meaning="Rollouts with their totals; newest first.",
    filters=("run", "rollout", "state"),
    sql="SELECT * FROM rollouts {where}",
    order="start_ns DESC, run_id, rollout_id",
)
WORKERS = Query(
    name="workers",
    meaning="Which worker, of which degree, served a rollout when.",
    filters=("run", "rollout", "worker", "state"),
    sql="SELECT * FROM workers {where}",
    order="start_ns, worker_id",
)
SWITCHES = Query(
    name="switches",
    meaning="Who switched which policy, from what to what, and why; latest first.",
    filters=("run",),
    sql=(
        "SELECT run_id, start_ns AS at_ns, switch_choice AS choice, switch_before AS before,"
        " switch_after AS after, switch_who AS who, switch_why AS why"
        " FROM (SELECT * FROM spans WHERE op = 'heddle.switch') {where}"
    ),
    order="at_ns DESC, choice",
)
PLANS = Query(
    name="plans",
    meaning="What the core decided for a rollout and what it expected; latest first.",
    filters=("run", "rollout"),
    sql=("SELECT *, start_ns AS at_ns FROM (SELECT * FROM spans WHERE op = 'heddle.plan') {where}"),
    order="at_ns DESC",
)
