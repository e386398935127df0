"""The data plane over real sockets: what passes, what is injected, what happens when things die."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiohttp
import orjson
import pytest

from heddle.controller.errors import EngineError


def step(trajectory, n=4, ids=None, **more) -> Any:
    headers = {"X-Heddle-Run": "r", "X-Heddle-Trajectory-Id": trajectory, **more.pop("headers", {})}
    body = {"input_ids": ids or [1, 2, 3], "sampling_params": {"max_new_tokens": n}} | more
    return {"json": body, "headers": headers}


@contextlib.asynccontextmanager
async def up(stack, **how):
    async with stack(**how) as s, aiohttp.ClientSession() as http:
        yield s, http


async def post(http, url, **how):
    async with http.post(url, **how) as reply:
        return reply.status, await reply.read(), reply.headers


async def until(true):
    for _ in range(400):
        if true():
            return
        await asyncio.sleep(0.01)
    pytest.fail("what was waited for did not happen")


async def test_a_step_gets_rid_and_session_and_keeps_every_other_field(stack):
    async with up(stack) as (s, http):
        status, _, out = await post(
            http, f"{s.url}/generate", **step("t1", odd={"keep": [1, None]})
        )
        sent = next(e for e in s.engines if e.bodies).bodies[0]
    assert status == 200
    assert sent["odd"] == {"keep": [1, None]}
    assert sent["input_ids"] == [1, 2, 3]
    assert sent["session_id"] == "t1"
    assert sent["rid"].endswith("-00000-00")
    assert "_" not in sent["rid"]
    assert "priority" not in sent
    assert (out["X-Heddle-Worker"], out["X-Heddle-Step"]) == ("w0", "0")
    assert out["X-Heddle-Trajectory-Id"] == "t1"
    assert float(out["X-Heddle-Queue-Ms"]) >= 0


async def test_steps_of_a_trajectory_stay_on_its_worker_and_are_counted(stack):
    async with up(stack, engines=3) as (s, http):
        seen = []
        for trajectory in ("a", "b", "c", "a", "b", "c", "a"):
            _, _, out = await post(http, f"{s.url}/generate", **step(trajectory))
            seen.append((trajectory, out["X-Heddle-Worker"], out["X-Heddle-Step"]))
    assert [(t, w) for t, w, _ in seen[:3]] == [("a", "w0"), ("b", "w1"), ("c", "w2")]
    assert seen[3:] == [("a", "w0", "1"), ("b", "w1", "1"), ("c", "w2", "1"), ("a", "w0", "2")]


async def test_the_step_span_has_segments_that_fit_and_the_tokens(stack):
    async with up(stack) as (s, http):
        for _ in range(2):
            await post(http, f"{s.url}/generate", **step("t", 6))
            await asyncio.sleep(0.02)
        steps, tools = s.spans.of("chat"), s.spans.of("execute_tool")
    first = steps[0]["attributes"]
    parts = [first[f"heddle.{k}_s"] for k in ("held", "queue", "prefill", "decode")]
    assert sum(parts) <= (steps[0]["end_ns"] - steps[0]["start_ns"]) / 1e9 + 1e-9
    assert parts[1:] == [pytest.approx(0.0005), pytest.approx(0.001), pytest.approx(0.0015)]
    assert first["gen_ai.usage.output_tokens"] == 6
    assert first["gen_ai.usage.cache_read.input_tokens"] == 1
    assert first["heddle.retractions"] == 2
    assert [x["attributes"]["heddle.step.index"] for x in steps] == [0, 1]
    assert [t["attributes"]["heddle.tool.inferred"] for t in tools] == [True]
    assert tools[0]["start_ns"] == steps[0]["end_ns"]
    assert tools[0]["end_ns"] == steps[1]["start_ns"]


async def test_a_step_that_lasts_is_announced_with_the_tool_before_it_and_a_short_one_is_not(stack):
    async with up(stack) as (s, http):
        await post(http, f"{s.url}/generate", **step("t"))
        await asyncio.sleep(0.02)
        gate = asyncio.Event()
        for engine in s.engines:
            engine.gate = gate
        asked = asyncio.ensure_future(post(http, f"{s.url}/generate", **step("t")))
        await until(lambda: s.spans.starts)
        told = [x["attributes"]["heddle.step.index"] for x in s.spans.of("execute_tool")]
        gate.set()
        await asked
        steps, starts = s.spans.of("chat"), s.spans.starts
        tools = s.spans.of("execute_tool")
    assert told == [0]
    assert len(tools) == 1
    assert [(x["span_id"], x["at_ns"]) for x in starts] == [
        (steps[1]["span_id"], steps[1]["start_ns"])
    ]


async def test_a_traceparent_is_continued_and_the_engine_gets_the_steps_span(stack):
    trace, parent = "ab" * 16, "cd" * 8
    async with up(stack, engines=1) as (s, http):
        headers = {"traceparent": f"00-{trace}-{parent}-01"}
        await post(http, f"{s.url}/generate", **step("t", headers=headers))
        span, sent = s.spans.of("chat")[0], s.engines[0].headers[0]["traceparent"]
    assert (span["trace_id"], span["parent_span_id"]) == (trace, parent)
    assert sent == f"00-{trace}-{span['span_id']}-01"


async def test_a_stream_passes_byte_for_byte(stack):
    chunks = [b'data: {"text":"a", "meta_info":{}}\n', b'\ndata: {"text":"ab","output_ids":[5,6],']
    chunks += [b'"meta_info":{"prompt_tokens":3,"completion_tokens":2}}\n\n', b"data: [DONE]\n\n"]
    async with up(stack, engines=1) as (s, http):
        s.engines[0].stream_bytes = chunks
        _, body, out = await post(http, f"{s.url}/generate", **step("t", stream=True))
        await until(lambda: s.spans.of("chat"))
        tokens = s.spans.of("chat")[0]["attributes"]["gen_ai.usage.output_tokens"]
    assert body == b"".join(chunks)
    assert out["Content-Type"] == "text/event-stream"
    assert tokens == 2


async def test_a_chat_stream_loses_only_the_usage_event_nobody_asked_for(stack):
    said = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}\n\n'
    done = b"data: [DONE]\n\n"
    chat = {"messages": [], "stream": True}
    async with up(stack, engines=1) as (s, http):
        s.engines[0].stream_bytes = [said + usage[:20], usage[20:] + done]
        url = f"{s.url}/v1/chat/completions"
        _, plain, _ = await post(http, url, json=chat)
        asking = {**chat, "stream_options": {"include_usage": True}}
        _, asked, _ = await post(http, url, json=asking)
        await until(lambda: len(s.spans.of("chat")) == 2)
        counted = [x["attributes"]["gen_ai.usage.output_tokens"] for x in s.spans.of("chat")]
    assert plain == said + done
    assert asked == said + usage + done
    assert counted == [3, 3]


async def test_a_chat_streams_times_are_those_of_its_first_and_last_output(stack):
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    said = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}\n\n'
    async with up(stack, engines=1) as (s, http):
        s.engines[0].delay_s = 0.02
        s.engines[0].stream_bytes = [role, said, said, said, usage, b"data: [DONE]\n\n"]
        chat = {"messages": [], "stream": True}
        await post(http, f"{s.url}/v1/chat/completions", json=chat)
        await until(lambda: s.spans.of("chat"))
        span = s.spans.of("chat")[0]
    known, whole_s = span["attributes"], (span["end_ns"] - span["start_ns"]) / 1e9
    first_s = known["gen_ai.response.time_to_first_chunk"]
    assert first_s >= 0.03  # the role's chunk came 10 ms before the first output
    assert known["heddle.held_s"] + known["heddle.prefill_s"] == pytest.approx(first_s)
    assert known["heddle.decode_s"] >= 0.04
    assert known["heddle.prefill_s"] + known["heddle.decode_s"] <= whole_s


async def test_chat_asks_for_meta_info_and_strips_it_again(stack):
    async with up(stack, engines=1) as (s, http):
        url = f"{s.url}/v1/chat/completions"
        _, plain, _ = await post(http, url, json={"messages": [], "user": "u1"})
        _, asked, _ = await post(http, url, json={"messages": [], "return_meta_info": True})
        first = s.spans.of("chat")[0]["attributes"]
    assert s.engines[0].bodies[0]["return_meta_info"] is True
    assert b"meta_info" not in plain
    assert b"meta_info" in asked
    assert first["gen_ai.conversation.id"] == "u1"
    assert first["heddle.queue_s"] == pytest.approx(0.0005)


async def test_a_text_completion_is_a_step_of_its_trajectory(stack):
    async with up(stack, engines=1) as (s, http):
        asked = {"prompt": "a b", "max_tokens": 5, "user": "u1", "logprobs": 1}
        status, said, out = await post(http, f"{s.url}/t/named/v1/completions", json=asked)
        (sent,) = s.engines[0].bodies
        (span,) = s.spans.of("chat")
    assert (status, orjson.loads(said)["usage"]["completion_tokens"]) == (200, 5)
    assert out["X-Heddle-Trajectory-Id"] == "named"
    assert {name: sent[name] for name in asked} == asked
    assert sent["rid"].endswith("-00000-00")
    assert span["attributes"]["gen_ai.usage.output_tokens"] == 5


async def test_models_are_those_of_an_engine_that_lives(stack):
    async with up(stack) as (s, http):
        async with http.get(f"{s.url}/v1/models") as reply:
            assert await reply.json() == {"data": [{"id": "stub"}]}
        for engine in list(s.loop.fleet.workers):
            s.loop.fleet.workers.pop(engine)
        async with http.get(f"{s.url}/v1/models") as reply:
            assert reply.status == 503
            assert "register an engine" in (await reply.json())["error"]


async def test_a_client_that_leaves_stops_its_step_on_the_engine(stack):
    async with up(stack, engines=1) as (s, http):
        s.engines[0].gate = asyncio.Event()
        task = asyncio.create_task(post(http, f"{s.url}/generate", **step("t")))
        await until(lambda: s.engines[0].bodies)
        task.cancel()
        await until(lambda: s.engines[0].aborted)
        s.engines[0].gate.set()
        assert s.engines[0].aborted[0]["rid"] == s.engines[0].bodies[0]["rid"]
        assert s.spans.of("chat")[0]["error"] == "client_left"
        assert s.loop.fleet.workers["w0"].running == 0


async def test_a_held_step_whose_client_left_never_reaches_an_engine(stack):
    async with up(stack, engines=1, preset="heddle") as (s, http):
        s.engines[0].gate = asyncio.Event()
        s.loop.fleet.workers["w0"].latency = _room_for_one(s)
        first = asyncio.create_task(post(http, f"{s.url}/generate", **step("a")))
        await until(lambda: s.engines[0].bodies)
        second = asyncio.create_task(post(http, f"{s.url}/generate", **step("b")))
        await until(lambda: "r/b" in s.loop.trajectories)
        second.cancel()
        await until(lambda: not s.loop.trajectories["r/b"].waiting)
        s.engines[0].gate.set()
        assert (await first)[0] == 200
        await asyncio.sleep(0.05)
        assert len(s.engines[0].bodies) == 1


def _room_for_one(s):
    from dataclasses import replace

    return replace(s.loop.fleet.workers["w0"].latency, kv_tokens=10)


async def test_what_is_held_goes_once_a_trajectory_finishes(stack):
    async with up(stack, engines=1, preset="heddle") as (s, http):
        s.loop.fleet.workers["w0"].latency = _room_for_one(s)
        await post(http, f"{s.url}/generate", **step("a"))
        second = asyncio.create_task(post(http, f"{s.url}/generate", **step("b")))
        await until(lambda: "r/b" in s.loop.trajectories)
        await asyncio.sleep(0.03)
        assert not second.done()
        assert (await post(http, f"{s.url}/generate", **step("a")))[0] == 200
        final = step("a", headers={"X-Heddle-Final": "1"})
        await post(http, f"{s.url}/generate", **final)
        status, _, out = await second
        held_s = s.spans.of("chat")[-1]["attributes"]["heddle.held_s"]
    assert status == 200
    assert float(out["X-Heddle-Queue-Ms"]) >= 30
    assert held_s >= 0.03


async def test_an_engine_that_dies_before_answering_costs_another_attempt(stack, serve_app):
    async with up(stack, engines=2) as (s, http):
        dead = s.loop.fleet.workers["w0"]
        dead.engine.url = "http://127.0.0.1:9"
        status, _, out = await post(http, f"{s.url}/generate", **step("t"))
        spans = s.spans.of("chat")
    assert (status, out["X-Heddle-Worker"]) == (200, "w1")
    assert [x["error"] for x in spans] == ["engine_lost", None]
    assert spans[0]["span_id"] != spans[1]["span_id"]
    assert s.engines[1].bodies[0]["rid"].endswith("-00000-01")


def _event(ids, prompt, done=False) -> bytes:
    meta = {"prompt_tokens": prompt, "completion_tokens": len(ids), "finish_reason": None}
    if done:
        meta["finish_reason"] = {"type": "length"}
    said = {"text": "".join(map(chr, ids)), "output_ids": ids, "meta_info": meta}
    return b"data: " + orjson.dumps(said) + b"\n\n"


async def test_a_stream_whose_engine_dies_goes_on_elsewhere_from_what_was_received(stack):
    async with up(stack, engines=2) as (s, http):
        first, second = s.engines
        broken = _event([65, 66, 67], 3)
        first.stream_bytes = [_event([65, 66], 3), broken[:20], broken]
        first.dies_after = 2
        second.stream_bytes = [
            _event([67], 5),
            _event([67, 68], 5, done=True) + b"data: [DONE]\n\n",
        ]
        s.loop.fleet.workers["w0"].engine.capabilities = _silent
        sampling = {"max_new_tokens": 4, "temperature": 0}
        request = step("t", ids=[1, 2, 3], stream=True, sampling_params=sampling)
        _, body, _ = await post(http, f"{s.url}/generate", **request)
        await until(lambda: len(s.spans.of("chat")) == 2)
        spans, sent = s.spans.of("chat"), second.bodies[0]
    events = [orjson.loads(e[5:]) for e in body.split(b"\n\n") if e and b"DONE" not in e]
    assert sent["input_ids"] == [1, 2, 3, 65, 66]
    assert sent["sampling_params"] == {"max_new_tokens": 2, "temperature": 0}
    assert [e["output_ids"] for e in events] == [[65, 66], [65, 66, 67], [65, 66, 67, 68]]
    assert [e["text"] for e in events] == ["AB", "ABC", "ABCD"]
    assert {e["meta_info"]["prompt_tokens"] for e in events} == {3}
    assert body.endswith(b"data: [DONE]\n\n")
    assert [x["error"] for x in spans] == ["engine_lost", None]
    assert spans[1]["attributes"]["gen_ai.usage.output_tokens"] == 4


async def test_a_chat_stream_that_breaks_ends_with_a_sentence(stack):
    said = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    async with up(stack, engines=2) as (s, http):
        s.engines[0].stream_bytes, s.engines[0].dies_after = [said, said], 1
        chat = {"messages": [], "stream": True}
        status, body, _ = await post(http, f"{s.url}/v1/chat/completions", json=chat)
        await until(lambda: s.spans.of("chat"))
    assert status == 200
    assert body.startswith(said)
    assert b"died in the middle of its answer" in body
    assert s.spans.of("chat")[0]["error"] == "engine_died"


async def _silent():
    raise EngineError("silent")


async def test_no_engine_left_is_a_sentence_and_503(stack):
    async with up(stack, engines=1) as (s, http):
        s.loop.fleet.workers["w0"].engine.url = "http://127.0.0.1:9"
        first = await post(http, f"{s.url}/generate", **step("t"))
        second = await post(http, f"{s.url}/generate", **step("t"))
    assert first[0] == second[0] == 503
    assert b"no worker takes steps" in second[1]


async def test_an_engines_refusal_passes_through_and_is_no_step(stack):
    async with up(stack, engines=1) as (s, http):
        s.engines[0].refuse = 400
        status, body, _ = await post(http, f"{s.url}/generate", **step("t"))
        span, known = s.spans.of("chat")[0], s.loop.trajectories["r/t"]
    assert (status, body) == (400, b'{"error":"no"}')
    assert span["error"] == "http_400"
    assert (known.steps, known.context_tokens) == (0, 0)


@pytest.mark.parametrize("raw", [b"{", b"[1]", b"", b'{"input_ids":[1,2}'])
async def test_a_body_that_is_no_json_object_is_400_with_a_sentence(stack, raw):
    async with up(stack, engines=1) as (s, http):
        status, body, _ = await post(http, f"{s.url}/generate", data=raw)
    assert status == 400
    assert b'{"error":"the body' in body


async def test_abort_by_trajectory_reaches_the_engine_under_our_rid(stack):
    async with up(stack, engines=1) as (s, http):
        s.engines[0].gate = asyncio.Event()
        task = asyncio.create_task(post(http, f"{s.url}/generate", **step("t", rid="mine")))
        await until(lambda: s.engines[0].bodies)
        await post(http, f"{s.url}/abort_request", json={"rid": "mine"})
        await post(http, f"{s.url}/abort_request", json={"trajectory_id": "t"})
        s.engines[0].gate.set()
        await task
    assert [a["rid"] for a in s.engines[0].aborted] == [s.engines[0].bodies[0]["rid"]] * 2


async def test_longest_first_releases_the_planted_long_one_before_earlier_short_ones(stack):
    async with up(stack, engines=1, preset="heddle") as (s, http):
        s.loop.fleet.workers["w0"].latency = _room_for_one(s)
        for tokens, group in ((10, "short"), (10, "short"), (9000, "long"), (9000, "long")):
            s.loop.beliefs.of("r").observe(group, tokens)
        await post(http, f"{s.url}/generate", **step("a"))
        tasks = {}
        for name, group in (("s1", "short"), ("s2", "short"), ("l1", "long")):
            body = step(name, headers={"X-Heddle-Group-Id": group, "X-Heddle-Final": "1"})
            tasks[name] = asyncio.create_task(post(http, f"{s.url}/generate", **body))
            await until(lambda name=name: f"r/{name}" in s.loop.trajectories)
        s.loop.finish("r", "a")
        await asyncio.gather(*tasks.values())
        order = [b["session_id"] for b in s.engines[0].bodies]
    assert order == ["a", "l1", "s1", "s2"]
    assert s.engines[0].bodies[1]["priority"] > s.engines[0].bodies[2]["priority"]
