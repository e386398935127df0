"""Do moves work over both interfaces and in mid-generation, and is what they brought learned?"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json

import aiohttp
import pytest

from heddle.controller.clock import Clock
from heddle.controller.core.types import Move
from heddle.controller.emulator.http import EngineApp
from heddle.controller.emulator.request import EngineConfig
from heddle.controller.pins import Pin

WHO = {"X-Heddle-Run": "r", "X-Heddle-Trajectory-Id": "t"}
TOOL = {"role": "tool", "tool_call_id": "c", "content": "42"}


@contextlib.asynccontextmanager
async def emulated(stack, serve_app, auth, speed=20.0):
    """A controller before two emulated engines of another speed."""
    async with contextlib.AsyncExitStack() as exits:
        s = await exits.enter_async_context(stack(engines=0))
        http = await exits.enter_async_context(aiohttp.ClientSession(s.url))
        for number in range(2):
            config = EngineConfig(
                model="Qwen3-14B", system="h100_sxm", degree=1, worker_id=f"w{number}"
            )
            engine = EngineApp(config, Clock(speed=speed))
            url = await exits.enter_async_context(serve_app(engine))
            await posted(http, "/heddle/v1/workers", auth, url=url, degree=1)
        yield s, http


async def posted(http, path, auth, **said):
    async with http.post(path, json=said, headers=auth) as reply:
        assert reply.status == 200, await reply.text()
        return await reply.json()


async def moved(http):
    async with http.get("/heddle/v1/moves") as reply:
        return await reply.json()


async def still(loop, trajectory="r/t"):
    while loop.trajectories[trajectory].moving:
        await asyncio.sleep(0.002)


def body(tokens, ids=(5, 6, 7), **more):
    sampling = {"max_new_tokens": tokens, "ignore_eos": True}
    return {"input_ids": list(ids), "sampling_params": sampling, **more}


async def generate(http, said, who=WHO):
    async with http.post("/generate", json=said, headers=who) as reply:
        assert reply.status == 200, await reply.text()
        return await reply.json(), reply.headers["X-Heddle-Worker"]


async def chat(http, messages, **more):
    said = {"model": "m", "messages": messages, "tools": [{"type": "function"}], **more}
    async with http.post("/v1/chat/completions", json=said, headers=WHO) as reply:
        assert reply.status == 200, await reply.text()
        answer = await reply.json()
        return answer["choices"][0]["message"], reply.headers["X-Heddle-Worker"]


async def test_a_chat_with_tool_messages_is_carried_with_its_answer(stack, auth):
    async with stack(engines=2) as s, aiohttp.ClientSession(s.url) as http:
        await posted(http, "/heddle/v1/switches", auth, migration="rank", who="test")
        messages = [{"role": "user", "content": "how much?"}]
        answer, first = await chat(http, messages, max_tokens=9, stop=["x"])
        begun = await posted(http, "/heddle/v1/moves", auth, run="r", trajectory="t", target="w1")
        await still(s.loop)
        _, then = await chat(http, [*messages, answer, TOOL])
        told = await moved(http)
        (warm, step), span = s.engines[1].bodies, s.spans.of("heddle.move")[0]
    assert (first, then, begun["state"]) == ("w0", "w1", "moving")
    assert warm["messages"] == [*messages, answer]
    assert (warm["max_tokens"], warm["priority"], warm["tools"]) == (1, -1, [{"type": "function"}])
    assert "stop" not in warm
    assert step["messages"][-1] == TOOL
    # The stub finds 3 of the 12 tokens that were carried: this template breaks prefixes.
    assert span["attributes"]["heddle.move.hit_tokens"] == 3
    assert span["attributes"]["heddle.move.useless"] is True
    assert told["moves"][0]["useless"] is True
    (benefit,) = told["benefit"]
    assert (benefit["interface"], benefit["moves"], benefit["useless"]) == ("chat", 1, 1)


async def test_after_a_few_useless_moves_the_policys_moves_are_not_made(stack, auth):
    async with stack(engines=2) as s, aiohttp.ClientSession(s.url) as http:
        await posted(http, "/heddle/v1/switches", auth, migration="rank", who="test")
        messages = [{"role": "user", "content": "how much?"}]
        await chat(http, messages)
        for _ in range(6):
            live = s.loop.trajectories["r/t"]
            target = f"w{1 - int(live.worker[1])}"
            wanted = Move(trajectory="r/t", source=live.worker, target=target, because="test")
            s.loop.mover.asked(live, wanted)
            await still(s.loop)
            if live.stays:
                break
            await chat(http, [*messages, TOOL])
        told, fact = await moved(http), live.fact()
    assert len(told["moves"]) == 4
    assert fact.movable is False


async def test_chats_are_only_kept_where_moves_are_on(stack, auth):
    async with stack(engines=2) as s, aiohttp.ClientSession(s.url) as http:
        await chat(http, [{"role": "user", "content": "how much?"}])
        said = {"run": "r", "trajectory": "t", "target": "w1"}
        async with http.post("/heddle/v1/moves", json=said, headers=auth) as reply:
            refused = reply.status, await reply.json()
        kept = s.loop.trajectories["r/t"].chat
    assert kept is None
    assert refused[0] == 409
    assert "not kept" in refused[1]["error"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_running_step_goes_on_elsewhere_as_if_nothing_had_happened(
    stack, serve_app, auth, stream
):
    async with emulated(stack, serve_app, auth) as (s, http):
        # What the emulated engine says depends on the first 64 ids and the session.
        same = body(3000, ids=range(80), session_id="same")
        whole, home = await generate(http, same, {"X-Heddle-Trajectory-Id": "reference"})
        asking = asyncio.create_task(_answer(http, {**same, "stream": stream}))
        while not (live := s.loop.trajectories.get("r/t")) or not live.running:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
        source = live.worker
        target = {"w0": "w1", "w1": "w0"}[source]
        said = {"run": "r", "trajectory": "t", "target": target, "mid_generation": True}
        begun = await posted(http, "/heddle/v1/moves", auth, **said, who="test", why="drain")
        answer = await asking
        (span,), steps = s.spans.of("heddle.move"), s.spans.of("chat")
    assert home == "w0"
    assert begun["method"] == "resume"
    assert answer["output_ids"] == whole["output_ids"]
    assert answer["meta_info"]["completion_tokens"] == 3000
    assert answer["meta_info"]["prompt_tokens"] == 80
    mine = [x for x in steps if x["attributes"]["gen_ai.conversation.id"] == "t"]
    assert [(x["attributes"]["heddle.worker.id"], x["error"]) for x in mine] == [
        (source, "move"), (target, None)
    ]  # fmt: skip
    told = span["attributes"]
    assert told["heddle.move.method"] == "resume"
    assert told["heddle.because"] == "test asked for it: drain"
    assert told["heddle.hidden_s"] == 0
    assert told["heddle.exposed_s"] == pytest.approx((span["end_ns"] - span["start_ns"]) / 1e9)


async def _answer(http, said):
    if not said["stream"]:
        return (await generate(http, said))[0]
    async with http.post("/generate", json=said, headers=WHO) as reply:
        events = (await reply.text()).split("\n\n")
    told = [json.loads(e[5:]) for e in events if e.startswith("data:") and not e.endswith("[DONE]")]
    assert events[-2] == "data: [DONE]"
    assert all(
        a["output_ids"] == b["output_ids"][: len(a["output_ids"])]
        for a, b in itertools.pairwise(told)
    )
    assert [t["meta_info"]["finish_reason"] for t in told[:-1]] == [None] * (len(told) - 1)
    return told[-1]


async def test_streams_on_the_target_tell_by_how_much_a_move_slowed_them(stack, serve_app, auth):
    async with emulated(stack, serve_app, auth, speed=5.0) as (s, http):
        await generate(http, body(4, ids=range(20_000)))
        other = {"X-Heddle-Run": "r", "X-Heddle-Trajectory-Id": "other"}
        s.loop.table.expect(Pin("r", "other", "w1"))
        said = body(1500, ids=(9, 9), stream=True)
        reading = asyncio.create_task(_read(http, said, other))
        while s.app.up.fleet.workers["w1"].events < 10:
            await asyncio.sleep(0.005)
        await posted(http, "/heddle/v1/moves", auth, run="r", trajectory="t", target="w1")
        await still(s.loop)
        await asyncio.sleep(0.2)
        await generate(http, body(4, ids=(*range(20_000), 1)))
        await reading
        told = await moved(http)
    assert 0.0 <= told["moves"][0]["slow_down"] < 1.0
    assert told["moves"][0]["useless"] is False


async def _read(http, said, who):
    async with http.post("/generate", json=said, headers=who) as reply:
        await reply.read()


@pytest.mark.parametrize(
    ("said", "status", "sentence"),
    [
        ({"trajectory": "nobody", "target": "w1"}, 404, "is not here"),
        ({"trajectory": "t", "target": "w9"}, 404, "w9 is not here"),
        ({"trajectory": "t", "target": "w0"}, 409, "is on w0"),
        ({"trajectory": "t", "target": "w1", "mid_generation": True}, 409, "no running step"),
    ],
)
async def test_a_move_that_cannot_be_made_is_a_sentence(stack, auth, said, status, sentence):
    async with stack(engines=2) as s, aiohttp.ClientSession(s.url) as http:
        await generate(http, body(4))
        said = {"run": "r", **said}
        async with http.post("/heddle/v1/moves", json=said, headers=auth) as reply:
            told = reply.status, await reply.json()
    assert told[0] == status
    assert sentence in told[1]["error"]
