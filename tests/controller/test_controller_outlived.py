"""What do agents notice of a controller that is killed, or that changes its mind every second?"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import httpx
import pytest
from controller_processes import SPEED, processes, until

from heddle.app.driver import drive
from heddle.collector.client import CollectorClient
from heddle.collector.tracing import Emitter
from heddle.controller import wire
from heddle.controller.clock import Clock
from heddle.controller.emulator.workload import StepSpec, TrajectorySpec

AGENTS = 64
LONG = 30_000
"""Output tokens of the steps in flight: none ends before the controller is killed."""


async def ask(http: httpx.AsyncClient, agent: int, step: int, tokens: int) -> str:
    """One step; the worker that did it."""
    body = {
        "rid": f"t{agent}-{step}", "input_ids": [agent + 5] * 20,
        "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True},
    }  # fmt: skip
    headers = {"X-Heddle-Run": "r", "X-Heddle-Rollout": "o", "X-Heddle-Trajectory-Id": f"t{agent}"}
    reply = await http.post("/generate", json=body, headers=headers)
    reply.raise_for_status()
    assert reply.json()["meta_info"]["completion_tokens"] == tokens
    return reply.headers["X-Heddle-Worker"]


async def everyone(url: str, step: int, tokens: int) -> list[str | BaseException]:
    limits = httpx.Limits(max_connections=AGENTS)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits, trust_env=False) as http:
        asked = (ask(http, agent, step, tokens) for agent in range(AGENTS))
        return await asyncio.gather(*asked, return_exceptions=True)


def running_on(p, names) -> int:
    loads = [httpx.get(p.at(name, "/v1/loads")).json()["loads"][0] for name in names]
    return sum(one["num_running_reqs"] + one["num_waiting_reqs"] for one in loads)


@pytest.mark.timeout(120)
def test_agents_of_a_killed_controller_ask_again_and_keep_their_workers(tmp_path):
    with processes(tmp_path) as p:
        p.collector()
        engines = ("w0", "w1")
        for name in engines:
            p.engine(name)
        workers = [word for name in engines for word in ("--worker", p.at(name))]
        controller = p.controller(*workers)
        url = p.at("controller")
        # Of verl nobody moves a trajectory, and the restarted controller still knows.
        p.client().switch(preset="verl", who="test")
        before = asyncio.run(everyone(url, 0, 3))
        with CollectorClient(p.at("queries")) as store:
            # What a killed process had not sent yet (0.2 s of spans) nobody can tell.
            until(lambda: _finished(store, AGENTS))

        def kill() -> None:
            until(lambda: running_on(p, engines) == AGENTS)
            controller.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        broken = asyncio.run(everyone(url, 1, LONG))
        killer.join()
        controller.wait()
        # Nobody generates for agents that were cut off.
        until(lambda: running_on(p, engines) == 0)
        p.controller(*workers)
        after = asyncio.run(everyone(url, 1, 7))
        with CollectorClient(p.at("queries")) as store:
            steps = until(lambda: _finished(store, 2 * AGENTS))
    assert Counter(before).keys() == {"w0", "w1"}
    assert all(isinstance(error, httpx.TransportError) for error in broken), broken
    assert after == before
    counts = Counter((s["trajectory_id"], s["step_index"]) for s in steps)
    assert counts == {(f"t{agent}", step): 1 for agent in range(AGENTS) for step in (0, 1)}


def _finished(store: CollectorClient, count: int) -> list[dict]:
    rows = store.query("steps", run="r", limit=10_000).to_dicts()
    done = [row for row in rows if row["state"] == "finished" and row["error_type"] is None]
    return done if len(done) >= count else []


@pytest.mark.timeout(120)
def test_a_preset_changed_all_the_time_under_512_trajectories_loses_and_doubles_nothing(tmp_path):
    specs = [
        TrajectorySpec(
            f"t{n}", f"g{n % 32}", n // 32, "math",
            (StepSpec(64, 200 + n, "bash", 5.0), StepSpec(16, 300, None, 0.0)),
        )
        for n in range(512)
    ]  # fmt: skip
    presets = ("verl", "slime", "heddle")
    with processes(tmp_path) as p:
        p.collector()
        engines = ("w0", "w1")
        for name in engines:
            p.engine(name)
        p.controller(*[word for name in engines for word in ("--worker", p.at(name))])
        client = p.client()
        client.begin_rollout(wire.RolloutBegin(run="r", rollout="o", expected=512))
        over, switched = threading.Event(), []

        def switch() -> None:
            # Every second of the fleet's: by the wall, a quick machine is done before the fourth.
            while not over.wait(1 / SPEED):
                asked = presets[len(switched) % len(presets)]
                switched.append(client.switch(preset=asked, who="test", why="again").preset)

        other = threading.Thread(target=switch)
        other.start()
        emitter = Emitter(p.at("otlp"), service="test")
        try:
            played = asyncio.run(
                drive(
                    specs, controller_url=p.at("controller"), emitter=emitter, run="r",
                    rollout="o", clock=Clock(p.origin_ns, SPEED),
                )
            )  # fmt: skip
        finally:
            over.set()
            other.join()
            emitter.close()
        client.end_rollout("r", "o")
        with CollectorClient(p.at("queries")) as store:
            steps = until(lambda: _finished(store, 1_024))
            audit = until(lambda: _audited(store, len(switched)))
    assert (played.finished, dict(played.errors)) == (512, {})
    assert Counter((s["trajectory_id"], s["step_index"]) for s in steps) == {
        (spec.trajectory_id, step): 1 for spec in specs for step in (0, 1)
    }
    assert len(switched) > 3
    assert switched == [presets[n % 3] for n in range(len(switched))]
    assert {row["why"] for row in audit} == {"again"}


def _audited(store: CollectorClient, count: int) -> list[dict]:
    rows = store.query("switches").to_dicts()
    told = [row for row in rows if row["who"] == "test"]
    return told if len(told) >= count else []
