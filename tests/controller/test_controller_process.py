"""The controller as a process, with real engines' processes and a real collector."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
import time

import httpx
import psutil
import pytest
from controller_processes import SPEED, processes, until
from predictor_weights import saved

from heddle.app.driver import drive
from heddle.collector import ids
from heddle.collector.client import CollectorClient
from heddle.collector.tracing import Emitter
from heddle.controller import wire
from heddle.controller.clock import Clock
from heddle.controller.emulator.workload import StepSpec, TrajectorySpec
from heddle.models.registry import Registry

AWAY_S = 60.0


def spec(number: int, tokens: int = 30) -> TrajectorySpec:
    steps = (StepSpec(64, 20, "bash", 1.0), StepSpec(16, tokens, None, 0.0))
    return TrajectorySpec(f"t{number}", f"g{number % 2}", number // 2, "math", steps)


def played(p, specs, rollout):
    emitter = Emitter(p.at("otlp"), service="test")
    work = drive(
        specs, controller_url=p.at("controller"), emitter=emitter, run="r", rollout=rollout,
        clock=Clock(p.origin_ns, SPEED),
    )  # fmt: skip
    result = asyncio.run(work)
    emitter.close()
    return result


def test_a_rollout_by_http_and_no_engine_outlives_a_killed_controller(tmp_path):
    version = saved(tmp_path, 0.7)
    with processes(tmp_path) as p:
        p.collector()
        env = {"PYTHONPROFILEIMPORTTIME": "1"}
        controller, client = p.controller(*p.launching(2), **env), p.client()
        client.switch(preset="heddle", prediction="learned", who="test")
        assert client.promote(version).version == version
        groups = [wire.GroupIn(group=g, samples=2, prompt_tokens=64) for g in ("g0", "g1")]
        begun = client.begin_rollout(wire.RolloutBegin(run="r", rollout="o", groups=groups))
        assert sum(begun.layout) == 2
        result = played(p, [spec(i) for i in range(4)], "o")
        assert (result.finished, dict(result.errors)) == (4, {})
        client.end_rollout("r", "o")
        with CollectorClient(p.at("queries")) as store:
            (steps,) = until(lambda: _whole(store, "steps", 8))
            # A running rollout answers each question up to its own second.
            until(lambda: _whole(store, "rollouts", 1))
            accounts = store.query("accounts", run="r", rollout="o").row(0, named=True)
            partition = store.query("partition", run="r", rollout="o")
        engines = psutil.Process(controller.pid).children(recursive=True)
        assert len(engines) >= len(begun.layout)
        controller.send_signal(signal.SIGKILL)
        controller.wait()
        _, alive = psutil.wait_procs(engines, timeout=10)
        imported = (tmp_path / "controller.log").read_text()
    assert alive == []
    assert set(steps["predictor_version"]) == {version}
    assert steps["output_tokens"].sum() == 4 * 50
    assert partition["gpu_ns"].sum() == accounts["wall_ns"] * accounts["gpus"]
    # What the interpreter says of every module it imports: the registry, and never torch.
    assert re.search(r"\| +heddle\.models\.registry$", imported, re.MULTILINE)
    assert not re.search(r"\| +torch$", imported, re.MULTILINE)
    assert Registry(tmp_path / "predictors").active() == version


def _whole(store, query, rows):
    frame = store.query(query, run="r", rollout="o")
    return [frame] if frame.height == rows and set(frame["state"]) == {"finished"} else []


def test_a_reward_by_http_reaches_the_store_without_any_client_spans(tmp_path):
    with processes(tmp_path) as p:
        p.collector()
        p.engine("w0")
        p.controller("--worker", p.at("w0"))
        headers = {"X-Heddle-Run": "r", "X-Heddle-Trajectory-Id": "t"}
        body = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 3}}
        url = p.at("controller")
        for _ in range(2):
            httpx.post(f"{url}/generate", json=body, headers=headers).raise_for_status()
        p.client().finish_trajectory("r", "t", reward=0.25, outcome="solved")
        with CollectorClient(p.at("queries")) as store:
            rows = until(lambda: [
                row for row in store.query("trajectories", run="r").to_dicts()
                if row["state"] == "finished" and row["reward"] is not None
            ])  # fmt: skip
    assert [(r["reward"], r["outcome"], r["steps"]) for r in rows] == [(0.25, "solved", 2)]


def test_killed_collector_and_killed_engine_cost_no_request_and_no_span(tmp_path):
    with processes(tmp_path) as p:
        collector = p.collector()
        engines = [p.engine("w0"), p.engine("w1")]
        p.controller("--worker", p.at("w0"), "--worker", p.at("w1"))
        collector.kill()
        collector.wait()
        begun = p.client().begin_rollout(wire.RolloutBegin(run="r", rollout="o", expected=64))
        killer = threading.Thread(target=_kill_when_busy, args=(engines[0], p.at("w0")))
        killer.start()
        result = played(p, [spec(i, tokens=1500) for i in range(64)], "o")
        killer.join()
        p.client().end_rollout("r", "o")
        p.collector()
        with CollectorClient(p.at("queries")) as store:
            until(lambda: store.query("rollouts", run="r").height)
            steps = until(lambda: _answered(store, 128))
            found = store.query("findings", run="r", rollout="o").to_dicts()
            cut = [
                s for s in store.query("steps", run="r", rollout="o", limit=10_000).to_dicts()
                if s["error_type"] == "engine_lost"
            ]  # fmt: skip
    assert begun.layout == [1, 1]
    assert (result.finished, dict(result.errors)) == (64, {})
    # Each step once; what ran on the killed engine ran again on the other one.
    assert len({(s["trajectory_id"], s["step_index"]) for s in steps}) == 128
    again = [s for s in steps if s["span_id"] != _first_attempt(s)]
    assert {s["worker_id"] for s in again} == {"w1"}
    assert again
    # The report names what that cost.
    (dead,) = [f["title"] for f in found if f["rule"] == "dead-engine"]
    wasted_s = sum(s["end_ns"] - s["start_ns"] for s in cut) / 1e9
    said = f"worker w0; {len(cut)} steps were cut off and made again ({wasted_s:,.1f} s)"
    assert said in dead


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_collector_away_for_a_minute_costs_no_request_and_no_span(tmp_path):
    with processes(tmp_path) as p:
        collector = p.collector()
        p.engine("w0")
        p.controller("--worker", p.at("w0"))
        collector.kill()
        collector.wait()
        back_s, rounds = time.monotonic() + AWAY_S, 0
        while time.monotonic() < back_s:
            result = played(p, [spec(i + 8 * rounds, 50) for i in range(8)], f"o{rounds}")
            assert (result.finished, dict(result.errors)) == (8, {})
            rounds += 1
        p.collector()
        with CollectorClient(p.at("queries")) as store:
            until(lambda: store.query("runs").height)
            until(lambda: len(_finished(store)) == rounds * 16, 120)
    assert rounds > 2


def _finished(store):
    rows = store.query("steps", run="r", limit=100_000).to_dicts()
    return {(s["trajectory_id"], s["step_index"]) for s in rows if s["state"] == "finished"}


def _kill_when_busy(engine, url):
    loads = f"{url}/v1/loads"
    until(lambda: httpx.get(loads).json()["loads"][0]["num_running_reqs"] > 0)
    engine.kill()


def _answered(store, count):
    rows = store.query("steps", run="r", rollout="o", limit=10_000).to_dicts()
    good = [r for r in rows if r["error_type"] is None and r["state"] == "finished"]
    return good if len(good) == count else []


def _first_attempt(step):
    return ids.step_span_id("r", step["trajectory_id"], step["step_index"], 0)
