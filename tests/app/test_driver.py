"""Claims about the agent loops: contexts grow as a trainer's do, and nothing waits for ever."""

from __future__ import annotations

import asyncio

import numpy as np
import orjson
import pytest
from aiohttp import web

from heddle.app import driver
from heddle.app.driver import Context, drive, token_ids
from heddle.collector.tracing import Emitter
from heddle.controller.clock import Clock
from heddle.controller.emulator.workload import StepSpec, TrajectorySpec


class Recorder(Emitter):
    """Stands where the emitter stands, and keeps what it is given."""

    def __init__(self):  # no thread, no endpoint
        self.spans, self.started = [], []

    def emit(self, name, **span):  # pyright: ignore[reportIncompatibleMethodOverride]
        self.spans.append((name, span))

    def start(self, op, **span):  # pyright: ignore[reportIncompatibleMethodOverride]
        self.started.append(op)


def spec(*steps, trajectory="t", sample=0):
    made = tuple(StepSpec(*step) for step in steps)
    return TrajectorySpec(trajectory, "g", sample, "math", made)


async def serve(handler):
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/generate", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def drive_against(handler, specs, **more):
    runner, url = await serve(handler)
    recorder = Recorder()
    try:
        result = await drive(
            specs,
            controller_url=url,
            emitter=recorder,
            run="r",
            rollout="one",
            clock=Clock(0, 1000.0),
            **more,
        )
    finally:
        await runner.cleanup()
    return result, recorder


async def body_of(request):
    return orjson.loads(await request.read())


def test_a_longer_draw_of_ids_begins_with_the_shorter_one():
    short, long = token_ids(10, 0, "g"), token_ids(300, 0, "g")

    assert np.array_equal(long[:10], short)
    assert not np.array_equal(token_ids(10, 1, "g"), short)
    assert long.min() >= driver.CLEAR_OF
    assert long.max() < driver.VOCABULARY == 32_000


@pytest.mark.parametrize("vocabulary", [2, 100, 1_500, 150_000])
async def test_no_id_that_an_engine_is_sent_is_outside_the_vocabulary_asked_for(vocabulary):
    sent = []

    async def generate(request):
        sent.extend((await body_of(request))["input_ids"])
        return web.json_response({"output_ids": [1]})

    one = spec((400, 1, None, 0), (300, 1, None, 0), (20, 1, None, 0, False, True))
    await drive_against(generate, [one], vocabulary=vocabulary)

    assert min(sent) > 0
    assert max(sent) < vocabulary
    assert max(sent) >= vocabulary // 2


async def test_how_late_a_tool_wait_came_back_is_counted_in_fleet_seconds(monkeypatch):
    now = iter([0, 5_000_000_000, 9_000_000_000, 9_100_000_000])

    class Late(Clock):
        def now_ns(self):
            return next(now)

        async def sleep(self, fleet_s):
            pass

    fleet = driver._Fleet(None, "", None, Late(), (), "a", 9, driver.DriveResult(), print)
    await driver._tool(fleet, 2.0)
    await driver._tool(fleet, 3.0)  # back early: nothing is taken off

    assert fleet.result.late_s == pytest.approx(3.0)


def test_samples_of_a_group_share_their_prompt_and_nothing_after_it():
    contexts = []
    for sample in range(2):
        one = spec((50, 5, None, 0), (7, 5, None, 0), trajectory=f"t{sample}", sample=sample)
        context = Context(one, 0, "rollout")
        context.observe(0, one.steps[0])
        context.append([1] * 5)
        context.observe(1, one.steps[1])
        contexts.append(context.ids)

    assert np.array_equal(contexts[0][:55], contexts[1][:55])
    assert not np.array_equal(contexts[0][55:], contexts[1][55:])


def test_a_reset_keeps_the_prompt_and_a_negative_observation_drops_the_end():
    one = spec((50, 5, None, 0), (20, 5, None, 0, False, True), (-8, 5, None, 0))
    context = Context(one, 0)
    context.observe(0, one.steps[0])
    prompt = context.ids.copy()
    context.append([1] * 5)

    context.observe(1, one.steps[1])
    reset = context.ids.copy()
    context.append([2] * 5)
    context.observe(2, one.steps[2])

    assert len(reset) == 70
    assert np.array_equal(reset[:50], prompt)
    assert np.array_equal(context.ids, reset[:67])


async def test_the_next_context_is_the_last_one_with_its_output_and_the_observation():
    seen = []

    async def generate(request):
        body = await body_of(request)
        seen.append((dict(request.headers), body))
        tokens = body["sampling_params"]["max_new_tokens"]
        return web.json_response({"output_ids": list(range(7, 7 + tokens))})

    one = spec((30, 4, "bash", 0.1), (6, 2, None, 0.0))
    result, recorder = await drive_against(generate, [one])

    (first_headers, first), (last_headers, second) = seen
    assert second["input_ids"][:34] == [*first["input_ids"], 7, 8, 9, 10]
    assert len(second["input_ids"]) == 40
    assert first["sampling_params"]["ignore_eos"] is True
    assert first_headers["X-Heddle-Step"] == "0"
    assert "X-Heddle-Final" not in first_headers
    assert last_headers["X-Heddle-Final"] == "1"
    assert (result.finished, result.steps, result.tool_calls, result.output_tokens) == (1, 2, 1, 6)
    assert recorder.started == ["invoke_agent", "execute_tool"]
    assert [name for name, _ in recorder.spans] == ["execute_tool bash", "invoke_agent agent"]


async def test_a_busy_controller_is_asked_again_after_the_time_it_names():
    calls = []

    async def generate(request):
        calls.append(1)
        if len(calls) < 3:
            return web.json_response({}, status=503, headers={"Retry-After": "0.05"})
        return web.json_response({"output_ids": [1]})

    result, _ = await drive_against(generate, [spec((3, 1, None, 0))])

    assert (len(calls), result.finished, dict(result.errors)) == (3, 1, {})


async def test_failures_are_counted_by_name_and_the_others_go_on():
    async def generate(request):
        if request.headers["X-Heddle-Trajectory-Id"] == "bad":
            return web.json_response({"error": {"message": "no such model"}}, status=400)
        if request.headers["X-Heddle-Trajectory-Id"] == "odd":
            return web.json_response({"text": "hello"})
        return web.json_response({"output_ids": [1]})

    specs = [spec((3, 1, None, 0), trajectory=name) for name in ("bad", "odd", "good")]
    result, recorder = await drive_against(generate, specs)

    assert result.finished == 1
    assert dict(result.errors) == {
        "HTTP 400: no such model": 1,
        "an answer without output_ids": 1,
    }
    assert sorted(span["error"] or "" for _, span in recorder.spans) == [
        "",
        "StepFailed",
        "StepFailed",
    ]


async def test_an_engine_that_never_answers_fails_the_step_in_bounded_time():
    async def generate(request):
        await asyncio.sleep(60)

    one = spec((3, 1, None, 0))
    result, _ = await drive_against(generate, [one], step_timeout_s=0.2)

    assert dict(result.errors) == {"no answer in time": 1}


async def test_a_controller_that_is_gone_is_given_up_on(monkeypatch):
    monkeypatch.setattr(driver, "PATIENCE_S", 0.3)
    recorder = Recorder()

    result = await drive(
        [spec((3, 1, None, 0))],
        controller_url="http://127.0.0.1:9",
        emitter=recorder,
        run="r",
        rollout="one",
        clock=Clock(),
    )

    assert dict(result.errors) == {"ClientConnectorError": 1}


@pytest.mark.parametrize("value", ["0.5", None, "Wed, 21 Oct 2026 07:28:00 GMT", "9999"])
def test_retry_after_is_at_most_ten_seconds_whatever_the_header_says(value):
    assert 0.05 <= driver._retry_after(value) <= 10
