"""What do agents see of engines that stand still, are full or are of a kind that cannot be steered?

And of clients that ask twice, or stop reading.
"""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from heddle.controller import wire
from heddle.controller.dataplane import carrier
from heddle.controller.fleet import workers
from heddle.controller.fleet.sglang import capabilities_of


def body(tokens=4, ids=(5, 6, 7), **more):
    return {"input_ids": list(ids), "sampling_params": {"max_new_tokens": tokens}, **more}


async def generate(http, trajectory, **more):
    headers = {"X-Heddle-Run": "r", "X-Heddle-Trajectory-Id": trajectory}
    async with http.post("/generate", json=body(**more), headers=headers) as reply:
        return reply.status, await reply.json(), reply.headers.get("X-Heddle-Worker")


async def until(true):
    while not true():
        await asyncio.sleep(0.005)


async def test_steps_of_an_engine_that_stands_still_go_on_elsewhere(stack, monkeypatch):
    monkeypatch.setattr(workers, "WORKS_S", 0.1)
    async with stack(engines=2, wedged_s=0.3) as s, aiohttp.ClientSession(s.url) as http:
        stuck, works = s.engines
        stuck.gate = asyncio.Event()  # it answers /server_info and gets on with nothing
        asking = [asyncio.create_task(generate(http, f"t{i}")) for i in range(8)]
        answers = await asyncio.gather(*asking)
        states = {w.id: (w.alive, w.wedged) for w in s.app.up.fleet.workers.values()}
        await until(lambda: len(stuck.aborted) == 4)
        down = [x for x in s.spans.of("chat") if x["error"] == "engine_lost"]
        later = await generate(http, "later")
        stuck.gate.set()
        await until(lambda: s.app.up.fleet.workers["w0"].alive)
    assert {(status, worker) for status, _, worker in (*answers, later)} == {(200, "w1")}
    assert states == {"w0": (False, True), "w1": (True, False)}
    assert len(down) == 4
    assert len({b["rid"] for b in works.bodies}) == len(works.bodies) == 9


async def test_while_no_engine_gets_on_nobody_is_given_up(stack):
    async with stack(engines=2, wedged_s=0.2) as s, aiohttp.ClientSession(s.url) as http:
        for engine in s.engines:
            engine.gate = asyncio.Event()
        asking = [asyncio.create_task(generate(http, f"t{i}")) for i in range(4)]
        await until(lambda: sum(len(e.bodies) for e in s.engines) == 4)
        await asyncio.sleep(0.6)
        alive = [w.alive for w in s.app.up.fleet.workers.values()]
        for engine in s.engines:
            engine.gate.set()
        answers = await asyncio.gather(*asking)
    assert alive == [True, True]
    assert [status for status, _, _ in answers] == [200] * 4


async def test_a_full_queue_is_waited_for_and_a_first_step_may_go_elsewhere(stack, monkeypatch):
    monkeypatch.setattr(carrier, "FULL_LEAST_S", 0.01)
    async with stack(engines=2) as s, aiohttp.ClientSession(s.url) as http:
        full, free = s.engines
        full.refuse = 503
        asking = [asyncio.create_task(generate(http, f"t{i}")) for i in range(6)]
        await until(lambda: len(full.bodies) > 6)
        full.refuse = 0
        answers = await asyncio.gather(*asking)
        errors = [x["error"] for x in s.spans.of("chat")]
    assert [status for status, _, _ in answers] == [200] * 6
    assert free.bodies
    assert errors.count(None) == 6
    assert errors.count("engine_full") >= 4


async def test_an_engine_that_stays_full_is_a_sentence(stack, monkeypatch):
    monkeypatch.setattr(carrier, "FULL_LEAST_S", 0.01)
    monkeypatch.setattr(carrier, "FULL_S", 0.05)
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        s.engines[0].refuse = 503
        status, said, _ = await generate(http, "t")
        running = s.app.up.fleet.workers["w0"].running
    assert (status, running) == (503, 0)
    assert "queue of the engine" in said["error"]


@pytest.mark.parametrize("held", [False, True])
async def test_asking_again_under_a_rid_takes_the_earlier_requests_place(stack, held):
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        engine = s.engines[0]
        if held:
            await s.app.up.syncs.begin(wire.WeightSyncBegin(run="r", id="1", policy="wait"))
        else:
            engine.gate = asyncio.Event()
        first = asyncio.create_task(generate(http, "t", rid="mine"))
        await until(lambda: "r/t" in s.loop.trajectories and s.loop.trajectories["r/t"].running)
        second = asyncio.create_task(generate(http, "t", rid="mine"))
        refused = await first
        if held:
            await s.app.up.syncs.end(wire.WeightSyncEnd())
        else:
            await until(lambda: engine.aborted)
            engine.gate.set()
        answered = await second
        live = s.loop.trajectories["r/t"]
    assert refused[0] == 409
    assert "sent again" in refused[1]["error"]
    assert answered[0] == 200
    assert (live.steps, live.output_tokens, len(live.running)) == (1, 4, 0)


async def test_an_answer_that_was_lost_and_asked_for_again_is_one_step(stack):
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        headers = {"X-Heddle-Run": "r", "X-Heddle-Trajectory-Id": "t", "X-Heddle-Step": "0"}
        for _ in range(2):
            async with http.post("/generate", json=body(), headers=headers) as reply:
                assert reply.status == 200
        live = s.loop.trajectories["r/t"]
    assert (live.steps, live.output_tokens) == (1, 4)


async def test_an_abort_of_all_resurrects_nothing(stack):
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        engine = s.engines[0]
        engine.gate = asyncio.Event()
        asking = [asyncio.create_task(generate(http, f"t{i}")) for i in range(5)]
        await until(lambda: len(engine.bodies) == 5)
        async with http.post("/abort_request", json={"abort_all": True}) as reply:
            told = await reply.json()
        engine.gate.set()
        await asyncio.gather(*asking)
        await asyncio.sleep(0.1)
        sent = len(engine.bodies)
    assert told["running"] == 5
    assert engine.aborted == [{"abort_all": True}]
    assert sent == 5


async def test_a_client_that_stops_reading_holds_back_its_own_stream_alone(stack):
    chunk = b"data: " + b"x" * 60_000 + b"\n\n"
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        s.engines[0].stream_bytes = [chunk] * 400
        host, port = s.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        said = json.dumps(body(stream=True)).encode()
        head = f"POST /generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(said)}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + said)
        await reader.readexactly(12)
        worker = s.app.up.fleet.workers["w0"]
        seen = -1
        while seen != worker.events:
            seen = worker.events
            await asyncio.sleep(0.3)
        status, _, _ = await generate(http, "other")
        writer.close()
        await until(lambda: worker.running == 0)
    assert status == 200
    # 24 MB were to come; what came fills the sockets' buffers and no more.
    assert worker.events < 2000


@pytest.mark.parametrize(
    ("info", "named"),
    [
        ({"disaggregation_mode": "prefill"}, "PD-disaggregated"),
        ({"disaggregation_mode": "decode"}, "PD-disaggregated"),
        ({"dp_size": 4}, "--dp-size 4"),
        ({"enable_dp_attention": True}, "--enable-dp-attention"),
    ],
)
async def test_engines_that_cannot_be_steered_are_refused_by_name(stack, auth, info, named):
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        engine, known = s.engines[0], s.engines[0]._info
        engine._info = lambda: {**known(), **info}
        said = {"url": s.app.up.fleet.workers["w0"].url}
        async with http.post("/heddle/v1/workers", json=said, headers=auth) as reply:
            told = reply.status, (await reply.json())["error"]
    assert told[0] == 409
    assert named in told[1]


def test_a_speculative_engine_is_taken_and_says_what_differs():
    can = capabilities_of({"speculative_algorithm": "EAGLE3", "disaggregation_mode": "null"})
    assert can.refused == ""
    assert any("EAGLE3" in sentence and "warm-up" in sentence for sentence in can.missing)


def test_pipeline_stages_keep_the_plugin_out():
    said = {"version": "0.5.23", "pp_size": 2, "internal_states": [{"heddle_priority_port": 1}]}
    can = capabilities_of(said)
    assert can.plugin == 0
    assert any("pipeline" in sentence for sentence in can.missing)
