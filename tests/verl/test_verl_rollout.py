"""verl 0.9.1 drives a rollout that Heddle decides, with its own router code and agent loop."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

import polars as pl
import pytest
from controller_processes import COMMAND, SPEED

from heddle.collector.client import CollectorClient

pytestmark = pytest.mark.timeout(600)
HERE = Path(__file__).parent
PYTHON = HERE.parent.parent / ".venv-verl" / "bin" / "python"
GROUPS, SAMPLES, STEPS = 2, 4, 3
LAST = 8_000
RUN = "verl-test"


@pytest.fixture(scope="module")
def said(stack, engines, tmp_path_factory):
    """What verl saw."""
    folder = tmp_path_factory.mktemp("driver")
    # The example of the docs, at this stack's addresses.
    yaml = (HERE.parents[1] / "docs/integrations/verl_router.yaml").read_text()
    for before, after in {
        "http://127.0.0.1:8600": stack.at("controller"),
        "my-run": RUN,
        "./.heddle/token": str(stack.data / "secret"),
        "quiet_s: 30": "quiet_s: 3",
    }.items():
        assert before in yaml
        yaml = yaml.replace(before, after)
    page = (HERE.parents[1] / "docs/integrations/verl.md").read_text()
    asked = {
        "yaml": yaml,
        "settings": re.findall(r"^  (\+?actor_rollout_ref\S+)", page, re.MULTILINE),
        "engines": engines,
        "groups": GROUPS,
        "samples": SAMPLES,
    }
    (folder / "asked.json").write_text(json.dumps(asked))
    there = os.pathsep.join([str(HERE), str(HERE.parent / "engines")])
    done = subprocess.run(
        [PYTHON, HERE / "driver.py", folder],
        capture_output=True,
        text=True,
        check=False,
        timeout=540,
        env={**os.environ, "PYTHONPATH": there, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "said.json").read_text())


def rows(stack, query, wanted=1, **asked):
    """The rows once as many have arrived: spans travel in batches."""
    deadline = time.monotonic() + 30
    with CollectorClient(stack.at("queries")) as client:
        while True:
            frame = client.query(query, run=RUN, limit=1000, **asked)
            if frame.height >= wanted:
                return frame
            assert time.monotonic() < deadline, frame
            time.sleep(0.2)


def rollout_ids(stack):
    """The announced one, and the one that nobody announced."""
    return rows(stack, "rollouts", 2).sort("start_ns")["rollout_id"].to_list()


def test_every_trajectory_is_whole_with_its_group_its_steps_and_its_tool_calls(stack, said):
    announced = rollout_ids(stack)[0]
    trajectories = rows(stack, "trajectories", GROUPS * SAMPLES, rollout=announced)
    steps = rows(stack, "steps", GROUPS * SAMPLES * STEPS, rollout=announced)
    tools = rows(stack, "tool_calls", GROUPS * SAMPLES * (STEPS - 1), rollout=announced)
    assert said["turns"] == [2 * STEPS] * (GROUPS * SAMPLES)
    assert set(trajectories["state"]) == {"finished"}
    assert sorted(trajectories.group_by("group_id").len()["len"]) == [SAMPLES] * GROUPS
    for (_,), group in trajectories.group_by("group_id"):
        assert sorted(group["sample_index"]) == list(range(SAMPLES))
    assert trajectories["steps"].to_list() == [STEPS] * (GROUPS * SAMPLES)
    assert steps["error_type"].null_count() == steps.height == GROUPS * SAMPLES * STEPS
    assert (steps["output_tokens"] > 0).all()
    assert tools["inferred"].all()
    # The tool sleeps 0.2 s; the fleet's time runs SPEED times as fast. A step is told of after it
    # ended, so a busy machine sees a gap that is shorter than the tool was.
    assert (tools["duration_s"] > 0.1 * SPEED).all()
    assert said["status"]["heddle"]["steps_without"] == 0


def test_the_rollout_is_what_the_trainer_announced(stack, said):
    row = rows(stack, "rollouts", 2).sort("start_ns").row(0, named=True)
    assert (row["state"], row["kind"], row["trajectories"]) == ("finished", "train", 8)
    with CollectorClient(stack.at("queries")) as client:
        asked = "SELECT trainer_step FROM spans WHERE op = 'heddle.rollout' ORDER BY start_ns"
        assert client.sql(asked)["trainer_step"].to_list()[0] == 7


def test_tool_time_in_the_store_is_the_one_that_verl_measured(stack, said):
    tools = rows(stack, "tool_calls", 16, rollout=rollout_ids(stack)[0])
    longest = tools.group_by("trajectory_id").agg(pl.col("duration_s").sum())["duration_s"].max()
    assert longest / SPEED >= said["timing"]["agent_loop/tool_calls/max"] / 2


def test_a_rollout_that_nobody_announced_has_its_window_too(stack, said):
    found = rows(stack, "trajectories", 3, rollout=rollout_ids(stack)[1])
    assert found.height == 3
    assert set(found["state"]) == {"finished"}


def test_priority_and_trace_reach_a_server_that_takes_them_and_the_id_every_server(stack, said):
    stepping = [seen for seen in said["seen"] if "priority" in seen]
    assert 0 < len(stepping) < len(said["seen"])
    assert all(isinstance(seen["priority"], int) for seen in stepping)
    traces = {seen["traceparent"].split("-")[1] for seen in stepping}
    stored = rows(stack, "steps", 8)
    assert len(traces) <= stored["trajectory_id"].n_unique()
    assert len({seen["rid"] for seen in said["seen"]}) == len(said["seen"])


def test_a_trainers_abort_is_the_trainers_and_the_step_goes_on_elsewhere_or_there(stack, said):
    aborted = said["aborted"]
    assert (aborted["stop"], aborted["tokens"], aborted["after"]) == ("length", LAST, 20)
    assert aborted["versions"][0] < aborted["versions"][1]
    steps = rows(stack, "steps", 3, trajectory="resumed").sort("start_ns")
    assert steps["step_index"].to_list() == [0, 0, 1]
    assert steps["error_type"].to_list() == ["aborted_by_trainer", None, None]
    assert steps["output_tokens"].head(2).sum() == LAST
    assert steps["input_tokens"][1] == 60 + steps["output_tokens"][0]
    # Nothing asked the engines to stop but the trainer, and its new weights were seen by nobody's
    # announcement: by the version of the answers.
    deadline = time.monotonic() + 30
    asked = "SELECT count(*) AS syncs FROM spans WHERE op = 'heddle.weight_sync'"
    with CollectorClient(stack.at("queries")) as client:
        while not client.sql(asked)["syncs"][0]:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_diagnose_explains_the_rollout(stack, said):
    there = ["--collector", stack.at("queries"), "--run", RUN, "--rollout", rollout_ids(stack)[0]]
    done = subprocess.run(
        [*COMMAND, "diagnose", "--json", *there], capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    whole = told["accounts"]["gpus"] * told["accounts"]["wall_ns"]
    assert sum(row["gpu_ns"] for row in told["partition"]) == whole
    states = {row["state"] for row in told["partition"] if row["gpu_ns"]}
    assert {"busy_decode", "tool_wait"} <= states
    assert told["blame_by_tool"]
