"""Does a switch reach requests that already wait inside an engine, and only where it may?"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import aiohttp

from heddle.controller import steering
from heddle.controller.clock import Clock
from heddle.controller.core import priority
from heddle.controller.emulator.http import EngineApp
from heddle.controller.emulator.request import EngineConfig

LOOKED_S = 0.7
"""Wall seconds in which whoever steers has looked at least once, whether asked or not."""
CONFIG = EngineConfig(model="Qwen3-14B", system="h100_sxm", degree=1, worker_id="w0", max_running=1)


@contextlib.asynccontextmanager
async def one_slot(stack, serve_app, auth, engine=None, **config):
    """A controller before one emulated engine that runs a request at a time, 50 times faster."""
    engine = engine or EngineApp(CONFIG, Clock(speed=50.0))
    async with serve_app(engine) as url, stack(engines=0, **config) as s:
        engine.runner.port = int(url.rpartition(":")[2])
        async with aiohttp.ClientSession(s.url) as http:
            said = {"url": url, "degree": 1}
            await http.post("/heddle/v1/workers", json=said, headers=auth)
            yield s, http, engine


async def ask(http, trajectory, tokens, prompt=(1, 2, 3), **more):
    """One step; returns whose it was, in the order of answers."""
    sampling = {"max_new_tokens": tokens, "ignore_eos": True}
    body = {"input_ids": list(prompt), "sampling_params": sampling, **more}
    headers = {"X-Heddle-Run": "r", "X-Heddle-Trajectory-Id": trajectory}
    async with http.post("/generate", json=body, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        await reply.json()
    return trajectory


async def queued(engine, count):
    while len(engine.runner.engine.scheduler.waiting) < count:
        await asyncio.sleep(0.005)


async def order_of_ends(http, auth, engine, *switches, own=None):
    """`old` has written 600 tokens, `young` 10; both wait behind a long step, old first."""
    await asyncio.gather(ask(http, "old", 600), ask(http, "young", 10))
    # Longer than it takes to queue the others on a slow machine; it is stopped, not waited for.
    blocker = asyncio.create_task(ask(http, "blocker", 60_000))
    while not engine.runner.engine.scheduler.running:
        await asyncio.sleep(0.005)
    ends = []
    waiting = []
    for number, name in enumerate(("old", "young"), 1):
        more = {"priority": own[name]} if own else {}
        task = asyncio.create_task(ask(http, name, 20, prompt=(4, 5, 6), **more))
        task.add_done_callback(lambda done: ends.append(done.result()))
        waiting.append(task)
        await queued(engine, number)
    for said in switches:
        async with http.post(
            "/heddle/v1/switches", json={**said, "who": "test"}, headers=auth
        ) as reply:
            assert reply.status == 200, await reply.text()
    await asyncio.sleep(LOOKED_S)
    async with http.post("/abort_request", json={"trajectory_id": "blocker"}) as reply:
        assert reply.status == 200
    await asyncio.gather(blocker, *waiting)
    async with http.get("/heddle/v1/workers") as reply:
        (worker,) = await reply.json()
    return ends, worker


LEAST = {"order": "least-attained"}


async def test_a_switch_reorders_requests_that_wait_in_the_engine(stack, serve_app, auth):
    async with one_slot(stack, serve_app, auth) as (s, http, engine):
        ends, worker = await order_of_ends(http, auth, engine, LEAST)
        step = s.spans.of("chat")[-1]
    assert ends == ["young", "old"]
    assert worker["priority_changes"] == engine.runner.applied == 3
    # The span says what the engine was told last: old, second band from the top.
    assert step["attributes"]["gen_ai.conversation.id"] == "old"
    assert step["attributes"]["heddle.priority"] == 6


async def test_without_a_switch_the_engine_goes_by_arrival(stack, serve_app, auth):
    async with one_slot(stack, serve_app, auth) as (_, http, engine):
        ends, worker = await order_of_ends(http, auth, engine)
    assert ends == ["old", "young"]
    assert worker["priority_changes"] == 0


async def test_back_to_fcfs_all_are_equal_again(stack, serve_app, auth, monkeypatch):
    monkeypatch.setattr(steering, "INTERVAL_S", 0.02)
    async with one_slot(stack, serve_app, auth) as (_, http, engine):
        back = {"order": "fcfs"}
        ends, worker = await order_of_ends(http, auth, engine, LEAST, back)
    assert ends == ["old", "young"]
    assert worker["priority_changes"] == 6


async def test_within_an_interval_a_request_changes_once(stack, serve_app, auth, monkeypatch):
    monkeypatch.setattr(steering, "INTERVAL_S", 3600.0)
    async with one_slot(stack, serve_app, auth) as (_, http, engine):
        back = {"order": "fcfs"}
        ends, worker = await order_of_ends(http, auth, engine, LEAST, back)
    assert ends == ["young", "old"]
    assert worker["priority_changes"] == 3


async def test_who_waits_too_long_rises_to_those_that_came_later(
    stack, serve_app, auth, monkeypatch
):
    monkeypatch.setattr(steering, "INTERVAL_S", 0.02)
    for module in (steering, priority):
        monkeypatch.setattr(module, "AGE_S", 0.01)
    async with one_slot(stack, serve_app, auth) as (_, http, engine):
        ends, _ = await order_of_ends(http, auth, engine, LEAST)
    # Both have risen as far as age lifts anybody, and the older goes first again.
    assert ends == ["old", "young"]
    assert engine.runner.engine.scheduler.preempted == 0


async def test_a_clients_own_priority_is_left_alone(stack, serve_app, auth):
    async with one_slot(stack, serve_app, auth) as (s, http, engine):
        own = {"old": 5, "young": 1}
        ends, worker = await order_of_ends(http, auth, engine, LEAST, own=own)
        said = [x["attributes"].get("heddle.priority") for x in s.spans.of("chat")[-2:]]
    assert ends == ["old", "young"]
    assert worker["priority_changes"] == 1  # the blocker's
    assert said == [5, 1]


async def test_an_engine_whose_plugin_was_never_tried_keeps_its_order(
    stack, serve_app, auth, monkeypatch
):
    monkeypatch.setattr("heddle.controller.fleet.sglang.VERIFIED", frozenset())
    async with one_slot(stack, serve_app, auth) as (_, http, engine):
        ends, worker = await order_of_ends(http, auth, engine, LEAST)
    assert ends == ["old", "young"]
    assert engine.runner.asked == 0
    assert any("never tried on SGLang" in sentence for sentence in worker["missing"])


async def test_a_plugin_that_stops_answering_is_counted_and_costs_no_step(
    stack, serve_app, auth, monkeypatch
):
    async with one_slot(stack, serve_app, auth) as (s, http, engine):
        can = s.app.up.fleet.can
        broken = {w: type(c)(**{**_fields(c), "plugin": 1}) for w, c in can.items()}
        monkeypatch.setattr(s.app.up.fleet, "can", broken)
        ends, worker = await order_of_ends(http, auth, engine, LEAST)
        failures = s.loop.steering.of["w0"].failures
    assert ends == ["old", "young"]
    assert worker["priority_changes"] == 0
    assert failures > 0


async def test_preemptions_are_counted_where_no_priority_changes(
    stack, serve_app, auth, monkeypatch
):
    monkeypatch.setattr(steering, "INTERVAL_S", 0.02)
    monkeypatch.setattr(steering, "COUNT_S", 0.02)
    preempting = EngineApp(replace(CONFIG, preemption_threshold=10), Clock(speed=50.0))
    async with one_slot(stack, serve_app, auth, preempting) as (_, http, engine):
        blocker = asyncio.create_task(ask(http, "blocker", 3000))
        while not engine.runner.engine.scheduler.running:
            await asyncio.sleep(0.005)
        await ask(http, "urgent", 5, priority=100)
        worker = {"preemptions": 0}
        while not worker["preemptions"]:
            async with http.get("/heddle/v1/workers") as reply:
                (worker,) = await reply.json()
        await blocker
    assert (worker["preemptions"], worker["priority_changes"]) == (1, 0)


def _fields(can):
    return {name: getattr(can, name) for name in can.__dataclass_fields__}
