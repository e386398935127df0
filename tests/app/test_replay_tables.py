"""Each rollout of the policy study is held against the baseline of its own cell, seed and fleet."""

from __future__ import annotations

from heddle.app.bench.replay_tables import tables


def row(policy, makespan_s, *, seed=0, workload="math", **how):
    job = {"model": "Qwen3-8B", "workload": workload, "seed": seed, "policy": policy}
    job |= {"error": None, "wrong": False, "slow": False, **how}
    return {
        "job": job, "policy": policy, "makespan_s": makespan_s, "predicted_s": 0.9 * makespan_s,
        "bound_s": 0.5 * makespan_s, "layout": "4+4+4", "workload_hash": "w" * 16,
        "truth_hash": "e" * 16,
    }  # fmt: skip


def lines(rows, first):
    return [line for line in tables(rows).splitlines() if line.startswith(first)]


STUDY = [
    row("verl/allocation=fixed-1", 300.0),
    row("verl/allocation=fixed-4", 200.0),
    row("slime/allocation=fixed-1", 150.0),
    row("heddle", 100.0),
    row("heddle", 80.0, error=0.0),
    row("heddle", 250.0, error=1.0, wrong=True),
    row("verl/allocation=fixed-1", 310.0, slow=True),
    row("heddle", 155.0, slow=True),
    row("verl/allocation=fixed-2", 90.0, seed=1),
    row("heddle", 100.0, seed=1),
]


def test_makespans_of_the_first_seed_with_a_dash_for_what_was_not_played():
    (found,) = lines(STUDY, "| 8B math | 300")
    assert found == "| 8B math | 300, -, 200, - | 150 | 100 (3x4) | 90 | 50 | wwwwwwww eeeeeeee |"


def test_each_ratio_is_over_the_best_of_its_own_seed_and_of_the_fleet_with_the_slow_engine():
    found = lines(STUDY, "| 8B math |")[1]
    assert found == "| 8B math | 2.00 | 0.90 | 2.50 | - | - | - | 0.80 | 2.00 |"


def test_medians_name_the_lowest_rollout():
    (found,) = lines(STUDY, "| by history |")
    said = "| by history | 2 | 1.45 | 0.90 (8B math, seed 1) | 3.00 | 1.50 | 0.50 | 10.0% |"
    assert found == said
