"""Issue 9's Done-when on a real stack: retrain, see the gate's table, promote, roll back."""

from __future__ import annotations

import asyncio
import getpass
import random
import time

import pytest

from heddle.app.driver import drive
from heddle.app.settings import load, token
from heddle.collector.client import CollectorClient
from heddle.collector.tracing import Emitter
from heddle.controller.client import ControllerClient
from heddle.controller.clock import Clock
from heddle.controller.emulator.workload import StepSpec, TrajectorySpec
from heddle.controller.wire import RolloutBegin
from heddle.controller.wire_predictor import JobAsked

RUN, GROUPS, SAMPLES = "lengths", 8, 4


def rollout_of(number):
    """Steps of a trajectory write about equally much, so that one step tells the whole length."""
    draw = random.Random(number)
    made = []
    for g in range(GROUPS):
        for s in range(SAMPLES):
            size = round(draw.lognormvariate(3.5, 0.8)) + 4
            steps = [StepSpec(40, size, "bash", 1.0)] * 3 + [StepSpec(10, size, None, 0.0)]
            name = f"r{number}-g{g}-s{s}"
            made.append(TrajectorySpec(name, f"g{g}", s, "toy", tuple(steps)))
    return made


def play(stack, client, number):
    rollout = f"ro{number}"
    client.begin_rollout(RolloutBegin(run=RUN, rollout=rollout, expected=GROUPS * SAMPLES))
    emitter = Emitter(stack.otlp, service="test")
    said = client.health()
    work = drive(
        rollout_of(number), controller_url=stack.controller, emitter=emitter, run=RUN,
        rollout=rollout, clock=Clock(said.clock_origin_ns, said.clock_speed),
    )  # fmt: skip
    asyncio.run(work)
    emitter.close()
    client.end_rollout(RUN, rollout)


def versions_of(stack, rollout):
    """Who predicted, by the spans of that rollout, once all of them are stored."""
    deadline = time.monotonic() + 60
    with CollectorClient(stack.queries) as client:
        while True:
            steps = client.query("steps", run=RUN, rollout=rollout, state="finished")
            if steps.height == GROUPS * SAMPLES * 4:
                return set(steps["predictor_version"])
            assert time.monotonic() < deadline, steps.height
            time.sleep(0.2)


@pytest.fixture(scope="module")
def stack(up, tmp_path_factory):
    with up(tmp_path_factory.mktemp("predictor"), "--gpus", 2, "--speed", 50) as started:
        yield started


@pytest.fixture(scope="module")
def client(stack):
    secret = token(load({"data": stack.data}))
    with ControllerClient(stack.controller, token=secret) as made:
        yield made


def everybody_is_named(audit):
    said = [(deed.deed, deed.who, deed.why) for deed in audit[:2]]
    assert said == [("rollback", "ann", ""), ("rollback", "bob", "worse live")]
    assert [deed.who for deed in audit if deed.deed == "save"] == ["ann", getpass.getuser()]


# Seven processes, each with seconds of imports: 60 s alone, three times that on a busy machine.
@pytest.mark.timeout(500)
def test_from_three_rollouts_to_a_promoted_version_and_back(stack, client, heddle):
    client.switch(prediction="learned", who="test")
    for number in range(3):
        play(stack, client, number)
    assert versions_of(stack, "ro2") == {"group-history"}

    told = heddle("train", "--run", RUN, "--epochs", 10, "--data", stack.data)
    assert told.returncode == 0, told.stderr
    assert "group history" in told.stdout
    assert "spearman" in told.stdout
    from_cli = client.predictor().versions[0].version

    job = client.begin_job(JobAsked(kind="train", run=RUN, epochs=10, seed=1, who="ann"))
    while job.state == "running":
        time.sleep(0.2)
        job = client.job(job.id)
    assert job.state == "done", job.sentence
    rows = {(row.against, row.k, row.metric) for row in job.table}
    assert {("group history", -1, "spearman"), ("group history", 1, "recall20")} <= rows
    assert client.predictor_card(job.version).table == job.table

    # Whether 96 trajectories convince the gate is chance; the operator may insist, and it is noted.
    assert client.promote(job.version, who="ann", why="try", force=True).version == job.version
    play(stack, client, 3)
    assert versions_of(stack, "ro3") == {job.version}
    reviewed = heddle("evaluate", job.version, "--data", stack.data, "--run", RUN)
    assert "32 trajectories of 1 rollouts it never saw" in reviewed.stdout, reviewed.stderr
    with_token = ("--controller", stack.controller, "--data", stack.data)
    refused = heddle("promote", "length-none", *with_token)
    assert (refused.returncode, from_cli in refused.stderr) == (2, True), refused.stderr
    promoted = heddle("promote", from_cli, "--force", "--why", "compare", *with_token)
    assert client.predictor().version == from_cli, promoted.stderr
    assert "no step asks it" not in promoted.stdout
    client.switch(prediction="group-history", who="test")
    unasked = heddle("promote", from_cli, "--force", *with_token)
    assert "prediction is group-history: heddle switch prediction=learned" in unasked.stdout
    client.switch(prediction="learned", who="test")
    shown = heddle("predictor", "show", from_cli, "--controller", stack.controller)
    assert f"# {from_cli}" in shown.stdout, shown.stderr
    taken_back = heddle("rollback", "--who", "bob", "--why", "worse live", *with_token)
    assert taken_back.returncode == 0, taken_back.stderr
    assert client.predictor().version == job.version
    assert client.rollback(who="ann").version == "group-history"
    play(stack, client, 4)
    assert versions_of(stack, "ro4") == {"group-history"}
    everybody_is_named(client.predictor_audit())
    with CollectorClient(stack.queries) as asked:
        held = asked.query("calibration", run=RUN, rollout="ro3")
    assert held["predictor_version"].to_list() == [job.version]
