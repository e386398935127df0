"""A demo as a person runs it: every number it prints is accounted for."""

from __future__ import annotations

import json

import psutil
import pytest

from heddle.app.demo import DemoOptions, workload

SIZE = 16


@pytest.fixture(scope="module")
def demo(heddle, tmp_path_factory):
    data = tmp_path_factory.mktemp("demo")
    sizes = ("--trajectories", SIZE, "--gpus", 4, "--speed", 100, "--seed", 7)
    ended = heddle("demo", "--once", "--json", "--no-dashboard", *sizes, "--data", data)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout), data


@pytest.mark.parametrize("preset", ["verl", "heddle"])
def test_gpu_time_by_cause_sums_to_gpus_times_wall_exactly(demo, preset):
    said = demo[0]["presets"][preset]

    assert said["gpus"] == 4
    assert said["wall_ns"] > 0
    assert all(isinstance(ns, int) and ns >= 0 for ns in said["gpu_ns"].values())
    assert sum(said["gpu_ns"].values()) == said["gpus"] * said["wall_ns"]


@pytest.mark.parametrize("preset", ["verl", "heddle"])
def test_the_store_holds_the_workload_and_nothing_else(demo, preset):
    said = demo[0]["presets"][preset]
    specs = workload(DemoOptions(trajectories=SIZE, seed=7), epoch=1)
    steps = [step for spec in specs for step in spec.steps]

    assert said["trajectories"] == len(specs) == SIZE
    assert said["steps"] == len(steps)
    assert said["tool_calls"] == sum(step.tool_name is not None for step in steps)
    assert said["output_tokens"] == sum(step.output_tokens for step in steps)
    assert said["moves"] >= 0


def test_no_rollout_pays_for_the_layout_of_another(demo):
    layouts = [said["layout"] for said in demo[0]["presets"].values()]
    spent = [said["gpu_ns"].get("reallocation", 0) for said in demo[0]["presets"].values()]

    # They differ, so that the fleet was changed between the two and before the first.
    assert len({tuple(layout) for layout in layouts}) == 2
    assert spent == [0, 0]


def test_no_makespan_is_below_the_lower_bounds(demo):
    for said in demo[0]["presets"].values():
        assert set(said["lower_bounds_s"]) == {"longest_alone", "work"}
        assert said["makespan_s"] >= max(said["lower_bounds_s"].values())


def test_heddle_predicts_from_the_warm_up_and_verl_predicts_nothing(demo):
    from heddle.collector.client import CollectorClient
    from heddle.collector.service import running
    from heddle.collector.settings import CollectorSettings

    told, data = demo
    kept = CollectorSettings(data_dir=data, http_port=0, grpc_port=0, query_port=0)
    with running(kept) as at, CollectorClient(f"http://127.0.0.1:{at.query}") as client:
        plans = client.query("plans", run=told["run"]).to_dicts()
        steps = client.query("steps", run=told["run"], rollout="verl")
    because = {plan["rollout_id"]: plan["because"] for plan in plans}

    assert "history of 4 groups" in because["heddle"]
    assert steps["predicted_p50"].null_count() == steps.height


def test_nothing_of_the_demo_is_left_running(demo):
    data = str(demo[1])
    left = [p for p in psutil.process_iter(["cmdline"]) if data in (p.info["cmdline"] or [])]
    assert left == []
