"""Announced syncs hold, wait, abort and resume; unannounced ones are seen and never fought."""

from __future__ import annotations

import asyncio

import aiohttp
import orjson

from heddle.controller.dataplane import asgi


def step(trajectory, n=6, **more):
    headers = {"X-Heddle-Run": "r", "X-Heddle-Trajectory-Id": trajectory}
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": n}, **more}
    return {"json": body, "headers": headers}


async def ask(http, path, headers=None, **said):
    async with http.post(f"/heddle/v1/weight_sync/{path}", json=said, headers=headers) as reply:
        return await reply.json()


async def generated(http, trajectory):
    async with http.post("/generate", **step(trajectory)) as reply:
        return reply.status, await reply.json()


async def until(true):
    for _ in range(800):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError


def answer(body, ids, reason="length", version="v1"):
    meta = {
        "prompt_tokens": len(body["input_ids"]), "completion_tokens": len(ids),
        "finish_reason": {"type": reason}, "weight_version": version,
    }  # fmt: skip
    return {"text": "".join(map(chr, ids)), "output_ids": ids, "meta_info": meta}


class Scripted:
    """Gives the prepared answers of /generate, then waits for `gate` before each."""

    def __init__(self, stub, *answers):
        self.answers = list(answers)
        self.gate = asyncio.Event()
        self.bodies = stub.bodies
        self.told: list[tuple[str, dict]] = []
        """What else it was asked."""

    async def step(self, scope, path, raw, send):
        if path != "/generate":
            self.told.append((path, orjson.loads(raw)))
            await asgi.answer(send, 200, b"{}", "application/json")
            return
        body = orjson.loads(raw)
        self.bodies.append(body)
        await self.gate.wait()
        ids, reason, version = self.answers.pop(0)
        said = orjson.dumps(answer(body, ids, reason, version))
        await asgi.answer(send, 200, said, "application/json")


def scripted(s, *answers):
    made = Scripted(s.engines[0], *answers)
    s.engines[0]._step = made.step
    return made


async def test_wait_holds_new_steps_until_the_end_and_says_whom_it_waited_for(stack, auth):
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        engine = scripted(s, ([65], "length", "v1"), ([66], "length", "v2"))
        running = asyncio.create_task(generated(http, "a"))
        await until(lambda: engine.bodies)
        sync = asyncio.create_task(ask(http, "begin", auth, run="r", id="s1"))
        await until(lambda: s.app.up.syncs.state().active)
        later = asyncio.create_task(generated(http, "b"))
        engine.gate.set()
        begun = await sync
        await asyncio.sleep(0.05)
        assert len(engine.bodies) == 1
        assert (await running)[1]["output_ids"] == [65]
        ended = await ask(http, "end", auth, version="v2")
        assert (await later)[1]["output_ids"] == [66]
        again = await ask(http, "end", auth)
        spans = s.spans.of("heddle.weight_sync")
    assert (begun["active"], begun["waited_for"], begun["still_running"]) == (True, ["a"], 0)
    assert (ended["active"], again["id"]) == (False, "s1")
    assert len(spans) == 1
    assert spans[0]["attributes"]["heddle.waited_for"] == ["a"]
    assert spans[0]["attributes"]["heddle.policy_version"] == "v2"


async def test_a_begin_said_twice_is_one_sync_and_its_end_empties_the_caches(stack, auth):
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        engine = scripted(s)
        begun = [await ask(http, "begin", auth, run="r", id="s1") for _ in range(2)]
        before = list(engine.told)
        ended = [await ask(http, "end", auth) for _ in range(2)]
        spans = s.spans.of("heddle.weight_sync")
    assert [(x["id"], x["active"]) for x in (*begun, *ended)] == [
        ("s1", True), ("s1", True), ("s1", False), ("s1", False)
    ]  # fmt: skip
    assert before == []
    assert engine.told == [("/flush_cache", {})]
    assert len(spans) == 1


async def test_a_pause_freezes_what_runs_and_lets_it_go_on_where_it_was(stack, auth):
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        engine = scripted(s, ([65], "length", "v1"))
        running = asyncio.create_task(generated(http, "a"))
        await until(lambda: engine.bodies)
        begun = await ask(http, "begin", auth, run="r", policy="pause")
        frozen = list(engine.told)
        ended = await ask(http, "end", auth)
        engine.gate.set()
        status, said = await running
    assert (begun["active"], begun["aborted"], begun["still_running"]) == (True, 0, 1)
    assert frozen == [("/pause_generation", {"mode": "in_place"})]
    assert engine.told[1:] == [("/continue_generation", {})]
    assert (ended["resumed"], status, said["output_ids"]) == (0, 200, [65])


async def test_abort_resumes_partial_answers_within_the_budget(stack, auth):
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        engine = scripted(s, ([65, 66], "abort", "v1"), ([67, 68, 69, 70], "length", "v2"))
        running = asyncio.create_task(generated(http, "a"))
        await until(lambda: engine.bodies)
        sync = asyncio.create_task(ask(http, "begin", auth, run="r", policy="abort"))
        await until(lambda: s.app.up.syncs.state().active)
        engine.gate.set()
        begun = await sync
        ended = await ask(http, "end", auth)
        status, said = await running
        resumed = engine.bodies[1]
        errors = [x["error"] for x in s.spans.of("chat")]
    assert (begun["aborted"], ended["resumed"]) == (1, 1)
    assert (status, said["output_ids"], said["text"]) == (200, [65, 66, 67, 68, 69, 70], "ABCDEF")
    assert (said["meta_info"]["prompt_tokens"], said["meta_info"]["completion_tokens"]) == (3, 6)
    assert resumed["input_ids"] == [1, 2, 3, 65, 66]
    assert resumed["sampling_params"]["max_new_tokens"] == 4
    assert errors == ["weight_sync", None]


async def test_an_unannounced_sync_is_told_and_its_aborts_pass_unchanged(stack):
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        engine = scripted(s, ([65], "length", "v1"), ([66], "abort", "v1"), ([67], "length", "v2"))
        engine.gate.set()
        said = [(await generated(http, t))[1] for t in ("a", "b", "c")]
        spans = s.spans.of("heddle.weight_sync")
    assert [x["meta_info"]["finish_reason"]["type"] for x in said] == ["length", "abort", "length"]
    assert [x["output_ids"] for x in said] == [[65], [66], [67]]
    told = spans[0]["attributes"]
    assert len(spans) == 1
    assert told["heddle.unasked"] is True
    assert (told["heddle.aborted"], told["heddle.policy_version.before"]) == (1, "v1")
