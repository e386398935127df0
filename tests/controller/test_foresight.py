"""Trained predictions are made while the tool runs, told with what was hidden, and change live."""

from __future__ import annotations

import asyncio

import aiohttp
import numpy as np
import pytest
from predictor_weights import saved

from heddle.models.serve import Learned


async def promote(http, auth, version):
    async with http.post(
        "/heddle/v1/predictor/promote", json={"version": version}, headers=auth
    ) as r:
        assert r.status == 200


async def learned(http, auth):
    said = {"prediction": "learned", "who": "x"}
    async with http.post("/heddle/v1/switches", json=said, headers=auth) as r:
        assert r.status == 200


async def step(http, trajectory, tokens=4, group="g"):
    headers = {
        "X-Heddle-Run": "r",
        "X-Heddle-Trajectory-Id": trajectory,
        "X-Heddle-Group-Id": group,
    }
    body = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": tokens}}
    async with http.post("/generate", json=body, headers=headers) as reply:
        return reply.status


async def until(found):
    while not (answer := found()):
        await asyncio.sleep(0.005)
    return answer


def said(s, op, name):
    spans = [x["attributes"] for x in s.spans.of(op)]
    return [a for a in spans if a["gen_ai.conversation.id"] == name]


async def test_a_prediction_in_the_tool_interval_is_hidden_and_steers_the_next_step(
    stack, auth, tmp_path
):
    version = saved(tmp_path, np.log(2))
    async with stack(data_dir=tmp_path) as s, aiohttp.ClientSession(s.url) as http:
        await promote(http, auth, version)
        await learned(http, auth)
        await step(http, "t")
        told = await until(lambda: said(s, "heddle.predict", "t")[1:])
        await step(http, "t")
        chats = await until(lambda: said(s, "chat", "t")[1:])
    assert told[0]["heddle.predictor.version"] == version
    assert (told[0]["heddle.exposed_s"], told[0]["heddle.step.index"]) == (0.0, 0)
    assert told[0]["heddle.hidden_s"] > 0.0
    assert told[0]["heddle.predicted.steps"] >= 1.0
    assert chats[0]["heddle.predicted.p50"] == told[0]["heddle.predicted.p50"]
    admission = said(s, "heddle.predict", "t")[0]
    assert (admission["heddle.hidden_s"], admission["heddle.step.index"]) == (0.0, None)
    assert admission["heddle.exposed_s"] > 0.0


async def test_a_step_that_comes_first_is_answered_in_place_and_counts_as_exposed(
    stack, auth, tmp_path, monkeypatch
):
    version, answer = saved(tmp_path, 0.5), Learned.outlook_of
    async with stack(data_dir=tmp_path) as s, aiohttp.ClientSession(s.url) as http:
        await promote(http, auth, version)
        await learned(http, auth)
        await step(http, "t")
        await until(lambda: said(s, "heddle.predict", "t")[1:])
        foresight = s.loop.foresight

        async def never(batch):
            await asyncio.sleep(60)

        monkeypatch.setattr(foresight, "_answer", never)
        await step(http, "t")
        await step(http, "t")
        told = await until(lambda: said(s, "heddle.predict", "t")[2:])
        chats = await until(lambda: said(s, "chat", "t")[2:])
    assert told[0]["heddle.step.index"] is not None
    assert told[0]["heddle.exposed_s"] > 0.0
    assert chats[0]["heddle.predicted.p50"] == told[0]["heddle.predicted.p50"]
    assert Learned.outlook_of is answer


@pytest.mark.parametrize("policy", ["group-history", "learned"])
async def test_a_sibling_that_finishes_moves_what_its_group_is_believed_to_be(
    stack, auth, tmp_path, policy
):
    version = saved(tmp_path, 0.0)
    async with stack(data_dir=tmp_path) as s, aiohttp.ClientSession(s.url) as http:
        await promote(http, auth, version)
        change = {"prediction": policy, "who": "x"}
        await (await http.post("/heddle/v1/switches", json=change, headers=auth)).read()
        await step(http, "waits")
        await until(lambda: s.loop.trajectories["r/waits"].remaining)
        await asyncio.sleep(0.05)
        before = s.loop.trajectories["r/waits"].remaining.p50
        for name in ("a", "b", "c"):
            await step(http, name, tokens=9_000)
            assert s.loop.finish("r", name)
        # Who has begun hears of it after its own next step, whoever has not at once.
        await step(http, "waits")
        await asyncio.sleep(0.05)
        await step(http, "waits")
        chats = await until(lambda: said(s, "chat", "waits")[2:])
        assert chats[0]["heddle.predicted.p50"] > 1.5 * before
        other = s.loop.beliefs.of("r")
        assert (other.samples("g"), other.samples("h")) == (3, 0)


async def test_promotion_and_roll_back_under_load_drop_nothing(stack, auth, tmp_path):
    versions = [saved(tmp_path, shift) for shift in (0.2, 0.4)]
    async with stack(data_dir=tmp_path) as s, aiohttp.ClientSession(s.url) as http:
        await promote(http, auth, versions[0])
        await learned(http, auth)

        async def agent(name):
            return [await step(http, name, group=name[-1]) for _ in range(12)]

        agents = [asyncio.create_task(agent(f"t{i}")) for i in range(24)]
        for _ in range(6):
            await asyncio.sleep(0.03)
            await promote(http, auth, versions[1])
            rollback = await http.post("/heddle/v1/predictor/rollback", json={}, headers=auth)
            assert rollback.status == 200
        statuses = [status for told in await asyncio.gather(*agents) for status in told]
        assert statuses == [200] * (24 * 12)
        await until(lambda: len(s.spans.of("chat")) == 24 * 12)
        assert s.loop.foresight.failures == s.loop.failures == 0
    used = {a["attributes"]["heddle.predictor.version"] for a in s.spans.of("chat")}
    assert used == set(versions)
