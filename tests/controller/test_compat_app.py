"""The router's worker API, its security, and what a hostile or careless client can send."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

import aiohttp
import pytest

from heddle.controller.compat import merged

JSON = {"Content-Type": "application/json"}


def step(trajectory, **more):
    headers = {"X-Heddle-Run": "r", "X-Heddle-Trajectory-Id": trajectory}
    body = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2}, **more}
    return {"json": body, "headers": headers}


async def ask(http, method, path, **how):
    async with http.request(method, path, **how) as reply:
        raw = await reply.read()
        return reply.status, json.loads(raw) if raw[:1] in b"{[" and raw else raw.decode()


async def test_engines_register_as_at_sglangs_router_and_survive_a_restart(
    stack, tmp_path, stub_engine, serve_app
):
    how = {"engines": 0, "data_dir": tmp_path, "open_registration": True}
    async with serve_app(stub_engine(degree=2)) as one, serve_app(stub_engine()) as two:
        async with stack(**how) as s, aiohttp.ClientSession(s.url) as http:
            before = await ask(http, "GET", "/readiness")
            said = {"url": one, "worker_type": "regular", "priority": 3}
            added = await ask(http, "POST", "/workers", json=said)
            await ask(http, "POST", "/add_worker", params={"url": two})
            urls = await ask(http, "GET", "/list_workers")
            loads = await ask(http, "GET", "/get_loads")
        async with stack(**how) as s, aiohttp.ClientSession(s.url) as http:
            listed = (await ask(http, "GET", "/workers"))[1]
            mine = await ask(http, "GET", "/workers/w1")
            ready = await ask(http, "GET", "/readiness")
            health = await ask(http, "GET", "/health")
            assert (await http.post("/generate", **step("t"))).status == 200
            await ask(http, "DELETE", "/workers/w0")
            await ask(http, "POST", "/remove_worker", params={"url": two})
            left = await ask(http, "GET", "/list_workers")
    assert (before[0], ready[0], health) == (503, 200, (200, "OK"))
    assert added == (202, {
        "status": "accepted", "worker_id": "w0", "url": one, "location": "/workers/w0",
        "message": f"added {one}",
    })  # fmt: skip
    assert urls[1] == {"urls": [one, two]}
    assert [w["load"] for w in loads[1]["workers"]] == [0, 0]
    assert [(w["id"], w["url"], w["is_healthy"]) for w in listed["workers"]] == [
        ("w0", one, True), ("w1", two, True),
    ]  # fmt: skip
    assert listed["workers"][0]["metadata"]["tp_size"] == "2"
    assert mine == (200, listed["workers"][1])
    assert left[1] == {"urls": []}


@pytest.mark.parametrize("path", ["/workers", "/add_worker?url=http://x", "/flush_cache"])
async def test_without_open_registration_the_token_is_needed(stack, path):
    async with stack(engines=0) as s, aiohttp.ClientSession(s.url) as http:
        status, said = await ask(http, "POST", path, json={"url": "http://x"})
    assert status == 401
    assert "token" in said["error"]


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://h:port", "http://a b", "http://a..b", "http://", "file:///etc/x"]
)
async def test_an_address_that_is_none_is_400_with_a_sentence(stack, auth, url):
    async with stack(engines=0) as s, aiohttp.ClientSession(s.url) as http:
        one = await ask(http, "POST", "/workers", json={"url": url}, headers=auth)
        two = await ask(http, "POST", "/add_worker", params={"url": url}, headers=auth)
        assert not s.loop.fleet.workers
    assert one == two
    assert one[0] == 400
    assert "a worker's url" in one[1]["error"]


@pytest.mark.parametrize("header", ["X-Heddle-Trajectory-Id", "X-Session-Id"])
async def test_a_name_beyond_ascii_is_one_trajectory_in_every_form(stack, header):
    name, ids = "任务-é", {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2}}
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        for how in (
            {"headers": {header: name}, "json": ids},
            {"headers": {header: "UTF-8''" + quote(name)}, "json": ids},
            {"json": {**ids, "session_id": name}},
        ):
            async with http.post("/generate", **how) as reply:
                assert reply.headers["X-Heddle-Trajectory-Id"] == name
        async with http.post(f"/t/{quote(name)}/generate", json=ids) as reply:
            assert reply.headers["X-Heddle-Trajectory-Id"] == name
        assert list(s.loop.trajectories) == [f"default/{name}"]


async def test_flush_goes_to_every_engine_and_says_who_refused(stack, auth):
    async with stack(engines=2) as s, aiohttp.ClientSession(s.url) as http:
        s.engines[1].refuse = 400
        _, said = await ask(http, "POST", "/flush_cache", headers=auth)
    assert (said["status"], said["workers_flushed"], said["total_workers"]) == (
        "partial_success", 1, 2,
    )  # fmt: skip
    assert (said["flushed"], said["refused"]) == (["w0"], ["w1"])


def test_metrics_of_several_engines_are_one_page_with_each_family_once():
    page = '# HELP a is a\n# TYPE a gauge\na{x="1 2"} 3\na{} 4\n# TYPE b counter\nb 5\n'
    assert merged([("u0", page), ("u1", page)]).splitlines() == [
        "# HELP a is a", "# TYPE a gauge",
        'a{worker_addr="u0",x="1 2"} 3', 'a{worker_addr="u0"} 4',
        'a{worker_addr="u1",x="1 2"} 3', 'a{worker_addr="u1"} 4',
        "# TYPE b counter", 'b{worker_addr="u0"} 5', 'b{worker_addr="u1"} 5',
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["/generate", "/heddle/v1/switches", "/heddle/v1/acquire"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_of_200_mb_is_413_and_never_held_whole(stack, auth, path, chunked):
    sent = 0

    async def parts():
        nonlocal sent
        for _ in range(200):
            sent += 1
            yield b" " * (1 << 20)

    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        headers = (
            {**auth, **JSON} if chunked else {**auth, **JSON, "Content-Length": str(200 << 20)}
        )
        try:
            async with http.post(path, data=parts(), headers=headers) as reply:
                status = reply.status
        except aiohttp.ClientError:  # closed while we still sent: as good
            status = 413
        assert not s.engines[0].bodies
        assert (await ask(http, "GET", "/health"))[0] == 200
    assert status == 413


@pytest.mark.parametrize("priority", [2**63, -(2**63) - 1, 2**70, 1.5, "high"])
async def test_a_priority_outside_int64_is_400_and_reaches_no_engine(stack, priority):
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        status, said = await ask(http, "POST", "/generate", **step("t", priority=priority))
        assert not s.engines[0].bodies
        assert not s.loop.trajectories
    assert (status, said) == (400, {"error": "priority must be an integer of 64 bits"})


@pytest.mark.parametrize("rid", ["a_b_c", "t", "t-1"])
async def test_a_clients_rid_never_reaches_an_engine_and_aborts_only_its_own(stack, rid):
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        engine = s.engines[0]
        engine.gate = asyncio.Event()
        tasks = [
            asyncio.create_task(ask(http, "POST", "/generate", **step(name, rid=name)))
            for name in (rid, rid + "0")
        ]
        while len(engine.bodies) < 2:
            await asyncio.sleep(0.005)
        await ask(http, "POST", "/abort_request", json={"rid": rid})
        engine.gate.set()
        await asyncio.gather(*tasks)
        sent = {b["session_id"]: b["rid"] for b in engine.bodies}
        aborted = [a["rid"] for a in engine.aborted]
    assert aborted == [sent[rid]]
    assert not any("_" in x for x in sent.values())
    assert not any(a != b and b.startswith(a) for a in sent.values() for b in sent.values())


async def test_more_live_trajectories_than_the_limit_are_429_and_known_ones_go_on(
    stack, monkeypatch
):
    monkeypatch.setattr("heddle.controller.dataplane.proxy.MAX_LIVE", 1)
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        seen = [(await ask(http, "POST", "/generate", **step(t)))[0] for t in ("a", "b", "a")]
    assert seen == [200, 429, 200]


async def test_events_tell_of_switches_and_steps_of_the_asked_run(stack, auth):
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        async with http.get("/heddle/v1/events?run=r") as reply:
            assert reply.headers["Content-Type"].startswith("text/event-stream")
            assert await reply.content.readline() == b": heddle\n"
            other = {"X-Heddle-Run": "q", "X-Heddle-Trajectory-Id": "x"}
            await ask(http, "POST", "/generate", json={"input_ids": [1]}, headers=other)
            said = {"run": "r", "order": "longest-first", "who": "ann"}
            await ask(http, "POST", "/heddle/v1/switches", json=said, headers=auth)
            s.engines[0].delay_s = 0.2
            await ask(http, "POST", "/generate", **step("t"))
            s.engines[0].delay_s = 0.005
            told = []
            while len(told) < 3:
                line = await reply.content.readline()
                if line.startswith(b"data:"):
                    told.append(json.loads(line[5:]))
        while s.app.up.events._subscribers:
            await ask(http, "POST", "/generate", **step("t"))
            await asyncio.sleep(0.01)
    assert [(e["op"], e["what"]) for e in told] == [
        ("heddle.switch", "ended"), ("chat", "began"), ("chat", "ended"),
    ]  # fmt: skip
    assert told[0]["attributes"]["heddle.switch.who"] == "ann"


async def test_a_watcher_that_stops_reading_loses_events_and_costs_no_memory(stack):
    from heddle.controller.events import KEPT

    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        events = s.app.up.events
        stream = events.stream(None)
        await anext(stream)
        (subscriber,) = events._subscribers
        for i in range(KEPT + 50):
            said = {"gen_ai.operation.name": "chat", "heddle.run.id": "r"}
            told = {"trace_id": "", "span_id": "", "start_ns": 0, "end_ns": i}
            events.emit("chat", attributes=said, **told)
        assert subscriber.queue.qsize() == KEPT
        first, second = await anext(stream), await anext(stream)
        await stream.aclose()
        assert (await ask(http, "GET", "/health"))[0] == 200
        assert not events._subscribers
    assert first.startswith(b"event: chat")
    assert second == b'event: lost\ndata: {"events":50}\n\n'
