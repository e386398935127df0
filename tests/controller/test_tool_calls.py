"""Is a tool that a client tells over HTTP the interval it was, once, under its own name?"""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest

from heddle.controller import tool_calls
from heddle.controller.client import ControllerClient
from heddle.controller.wire import ToolCall


@contextlib.asynccontextmanager
async def up(stack):
    async with stack(engines=1) as s, aiohttp.ClientSession(s.url) as http:
        yield s, http


async def step(http, trajectory="t"):
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}}
    headers = {"X-Heddle-Run": "r", "X-Heddle-Trajectory-Id": trajectory, "X-Heddle-Group-Id": "g"}
    async with http.post("/generate", json=body, headers=headers) as reply:
        assert reply.status == 200


async def tell(http, status, tool="bash", trajectory="t", **more):
    said = {"run": "r", "tool": tool, "status": status, **more}
    async with http.post(f"/heddle/v1/trajectories/{trajectory}/tool", json=said) as reply:
        return reply.status, await reply.json()


async def test_a_told_call_is_a_span_of_its_name_between_its_start_and_its_end(stack):
    async with up(stack) as (s, http):
        await step(http)
        assert await tell(http, "start") == (200, {"known": True})
        await asyncio.sleep(0.01)
        await tell(http, "end", error="timeout")
        await step(http)
        (begun,) = [x for x in s.spans.starts if x["op"] == "execute_tool"]
        told, inferred = s.spans.of("execute_tool")
        steps = s.spans.of("chat")
    said = told["attributes"]
    assert (told["name"], told["error"]) == ("execute_tool bash", "timeout")
    assert (said["gen_ai.tool.name"], said["heddle.step.index"]) == ("bash", 0)
    assert (said["gen_ai.conversation.id"], said["heddle.group.id"]) == ("t", "g")
    assert "heddle.tool.inferred" not in said
    # The store counts the inferred one no more, since the client tells its own.
    assert inferred["attributes"]["heddle.tool.inferred"] is True
    assert (begun["span_id"], begun["at_ns"]) == (told["span_id"], told["start_ns"])
    assert steps[0]["end_ns"] <= told["start_ns"] < told["end_ns"] <= steps[1]["start_ns"]
    assert told["end_ns"] - told["start_ns"] >= 10_000_000


async def test_telling_twice_is_one_call_and_the_next_steps_is_another(stack):
    async with up(stack) as (s, http):
        for _ in range(2):
            await step(http)
            for status in ("start", "start", "end", "end", "start"):
                await tell(http, status)
        spans = [x for x in s.spans.of("execute_tool") if "bash" in x["name"]]
    assert [x["attributes"]["heddle.step.index"] for x in spans] == [0, 1]
    assert len({x["span_id"] for x in spans}) == 2


async def test_calls_beside_each_other_are_told_apart_by_their_ids(stack):
    async with up(stack) as (s, http):
        await step(http)
        for status in ("start", "end"):
            for call in ("a", "b"):
                await tell(http, status, call=call)
        spans = s.spans.of("execute_tool")
    assert [x["attributes"]["gen_ai.tool.call.id"] for x in spans] == ["a", "b"]


async def test_an_end_alone_reaches_back_to_the_step_before_it(stack):
    async with up(stack) as (s, http):
        for _ in range(2):
            await step(http)
            await tell(http, "end")
        spans = [x for x in s.spans.of("execute_tool") if "bash" in x["name"]]
        ends = [x["end_ns"] for x in s.spans.of("chat")]
    assert [x["start_ns"] for x in spans] == ends


@pytest.mark.parametrize("said", [{"status": "over"}, {"status": "end", "tool": ""}])
async def test_what_is_no_call_is_400_and_whom_nobody_knows_is_not_known(stack, said):
    async with up(stack) as (s, http):
        assert (await tell(http, "end", trajectory="nobody")) == (200, {"known": False})
        await step(http)
        status, body = await tell(http, **said)
        assert s.spans.of("execute_tool") == []
    assert status == 400
    assert body["error"]


async def test_the_oldest_calls_are_forgotten_first(stack, monkeypatch):
    monkeypatch.setattr(tool_calls, "KEPT", 2)
    async with up(stack) as (s, http):
        for trajectory in ("a", "b", "c"):
            await step(http, trajectory)
            await tell(http, "start", trajectory=trajectory)
        assert [key for key, _ in s.app.up.tool_calls._calls] == ["r/b", "r/c"]


async def test_the_client_tells_tools_too(stack):
    async with up(stack) as (s, http):
        await step(http)
        asked = ToolCall(run="r", tool="look", status="end")
        with ControllerClient(s.url) as client:
            assert await asyncio.to_thread(client.tell_tool, "t", asked)
        (span,) = s.spans.of("execute_tool")
    assert span["name"] == "execute_tool look"
