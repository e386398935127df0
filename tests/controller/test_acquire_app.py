"""The decision without the bytes: acquire, release, long polls, callers that stay away."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import aiohttp
import orjson
import pytest

from heddle.controller.dataplane import acquire as module
from heddle.controller.dataplane.usage import of_generate


async def call(http, path, **said):
    async with http.post(f"/heddle/v1/{path}", json=said) as reply:
        return reply.status, await reply.json()


async def acquire(http, trajectory, **said):
    return (await call(http, "acquire", run="r", trajectory=trajectory, **said))[1]


def room_for_one(s):
    worker = s.loop.fleet.workers["w0"]
    worker.latency = replace(worker.latency, kv_tokens=10)


async def test_an_acquired_step_is_counted_placed_and_told_when_released(stack):
    async with stack(engines=2) as s, aiohttp.ClientSession(s.url) as http:
        first = await acquire(http, "a", input_ids=[1, 2, 3], group="g")
        assert s.loop.fleet.workers["w0"].running == 1
        meta = {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1, "queue_time": 0.0}
        said = {"rid": first["rid"], "meta_info": meta, "output_ids": [4, 5]}
        released = await call(http, "release", **said)
        again = await call(http, "release", **said)
        second = await acquire(http, "a")
        trajectory = s.loop.trajectories["r/a"]
        span = s.spans.of("chat")[0]["attributes"]
        assert not any(e.bodies for e in s.engines)
    assert (first["granted"], first["worker"], first["step"]) == (True, "w0", 0)
    assert first["url"] == s.app.up.fleet.workers["w0"].url
    assert first["held_s"] >= 0
    assert (released[1], again[1]) == ({"known": True}, {"known": False})
    assert (second["step"], second["worker"]) == (1, "w0")
    assert orjson.loads(b"[%b]" % trajectory.ids) == [1, 2, 3, 4, 5]
    assert trajectory.prompt_tokens == 3
    assert (span["gen_ai.usage.input_tokens"], span["gen_ai.usage.output_tokens"]) == (3, 2)


async def test_a_held_step_answers_at_its_deadline_and_keeps_its_place(stack):
    async with stack(engines=1, preset="heddle") as s, aiohttp.ClientSession(s.url) as http:
        room_for_one(s)
        first = await acquire(http, "a")
        held = await acquire(http, "b", step=0, deadline_s=0.05)
        asked_again = asyncio.create_task(acquire(http, "b", step=0, deadline_s=20))
        await asyncio.sleep(0.05)
        assert len(s.loop.trajectories["r/b"].waiting) == 1
        await call(http, "release", rid=first["rid"], output_tokens=3, final=True)
        granted = await asked_again
    assert (held["granted"], held["worker"]) == (False, None)
    assert 0.05 <= held["held_s"] < granted["held_s"]
    assert granted["granted"]


async def test_asking_again_for_a_granted_step_gives_the_same_answer(stack):
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        first = await acquire(http, "a", step=0)
        second = await acquire(http, "a", step=0)
        assert s.loop.fleet.workers["w0"].running == 1
    assert first == second


async def test_a_caller_that_stays_away_loses_its_place(stack, monkeypatch):
    monkeypatch.setattr(module, "ALONE_S", 0.05)
    monkeypatch.setattr(module, "LEASE_S", 0.05)
    async with stack(engines=1, preset="heddle") as s, aiohttp.ClientSession(s.url) as http:
        room_for_one(s)
        await acquire(http, "a")
        await acquire(http, "b", deadline_s=0)
        while s.loop.fleet.workers["w0"].running or s.loop.trajectories["r/b"].waiting:
            await asyncio.sleep(0.01)
        errors = {x["error"] for x in s.spans.of("chat")}
    assert errors == {"client_left", "never_released"}


async def test_an_engine_reported_lost_gets_no_more_steps_and_the_step_goes_elsewhere(stack):
    async with stack(engines=2) as s, aiohttp.ClientSession(s.url) as http:
        first = await acquire(http, "a", step=0)
        s.loop.fleet.workers["w0"].engine.url = "http://127.0.0.1:9"
        await call(http, "release", rid=first["rid"], error="engine_lost")
        second = await acquire(http, "a", step=0)
    assert (first["worker"], second["worker"]) == ("w0", "w1")
    assert second["rid"] != first["rid"]


@pytest.mark.parametrize(
    ("path", "said", "sentence"),
    [
        ("acquire", {"run": "r"}, "trajectory: Field required"),
        ("acquire", {"trajectory": "t", "deadline_s": -1}, "deadline_s: Input should be"),
        ("acquire", {"trajectory": "t", "odd": 1}, "odd: Extra inputs"),
        ("release", {"rid": "x", "meta_info": [1]}, "meta_info: Input should be"),
        ("release", {"rid": "x", "output_tokens": 2**63}, "output_tokens: Input should be"),
    ],
)
async def test_what_cannot_be_asked_is_400_with_the_field(stack, path, said, sentence):
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        status, told = await call(http, path, **said)
    assert status == 400
    assert sentence in told["error"]


async def test_without_an_engine_acquire_is_503_and_leaves_nothing_behind(stack):
    async with stack(engines=0) as s, aiohttp.ClientSession(s.url) as http:
        status, told = await call(http, "acquire", trajectory="t")
        assert not s.loop.trajectories
    assert status == 503
    assert "no worker takes steps" in told["error"]


@pytest.mark.parametrize("meta", [{"prompt_tokens": -1}, {"completion_tokens": -5}])
async def test_a_refused_release_leaves_the_step_to_be_released_again(stack, meta):
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        rid = (await acquire(http, "a"))["rid"]
        refused = await call(http, "release", rid=rid, meta_info=meta)
        released = await call(http, "release", rid=rid, output_tokens=2)
        assert s.loop.fleet.workers["w0"].running == 0
    assert (refused[0], released) == (400, (200, {"known": True}))


async def test_what_nobody_told_of_a_released_step_is_not_told_as_zero(stack):
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        bare = await acquire(http, "a")
        await call(http, "release", rid=bare["rid"], input_tokens=9, output_tokens=3)
        timed = await acquire(http, "a")
        meta = {"prompt_tokens": 3, "completion_tokens": 2, "num_retractions": 0}
        meta |= {"queue_time": 0.0, "e2e_latency": 0.0, "cached_tokens": 0}
        await call(http, "release", rid=timed["rid"], meta_info=meta)
        silent, told = (span["attributes"] for span in s.spans.of("chat"))
    counted = ("heddle.retractions", "gen_ai.usage.cache_read.input_tokens")
    phases = ("heddle.queue_s", "heddle.prefill_s", "heddle.decode_s")
    assert [silent.get(name) for name in (*counted, *phases)] == [None] * 5
    assert [told.get(name) for name in (*counted, *phases)] == [0, 0, 0.0, 0.0, 0.0]
    assert silent["heddle.held_s"] >= 0
    assert silent["gen_ai.usage.output_tokens"] == 3


def test_a_batch_sums_what_its_parts_told_and_nothing_else():
    silent, some = (
        of_generate([{"meta_info": {}}] * 2),
        of_generate(
            [{"meta_info": {"cached_tokens": 4, "num_retractions": 0, "queue_time": 0.5}}, {}]
        ),
    )
    assert (silent.cached_tokens, silent.retractions, silent.queue_s) == (None, None, None)
    assert not silent.is_timed
    assert (some.cached_tokens, some.retractions, some.queue_s) == (4, 0, 0.5)
