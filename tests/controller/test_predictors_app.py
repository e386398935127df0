"""Promote and roll back over HTTP: what serves is on the steps, what is broken never serves."""

from __future__ import annotations

import asyncio

import aiohttp
import numpy as np
import pytest
from predictor_weights import saved

from heddle.models.registry import WEIGHTS, Registry


async def ask(http, method, path, **how):
    async with http.request(method, f"/heddle/v1{path}", **how) as reply:
        return reply.status, await reply.json()


async def predicted(s, http, name):
    headers = {"X-Heddle-Run": "r", "X-Heddle-Trajectory-Id": name}
    body = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2}}
    async with http.post("/generate", json=body, headers=headers):
        pass
    while not (found := [x for x in s.spans.of("chat") if _of(x) == name]):
        await asyncio.sleep(0.005)
    said = found[0]["attributes"]
    return said["heddle.predictor.version"], said["heddle.predicted.p50"]


def _of(span):
    return span["attributes"]["gen_ai.conversation.id"]


async def test_a_promoted_predictor_answers_and_rollback_walks_back(stack, auth, tmp_path):
    double, half = saved(tmp_path, np.log(2)), saved(tmp_path, -np.log(2))
    async with stack(data_dir=tmp_path) as s, aiohttp.ClientSession(s.url) as http:
        said = {"prediction": "learned", "who": "x"}
        await ask(http, "POST", "/switches", json=said, headers=auth)
        seen = [await predicted(s, http, "history")]
        for version in (double, half):
            said = {"version": version, "who": "ann", "why": "better"}
            _, state = await ask(http, "POST", "/predictor/promote", json=said, headers=auth)
            assert state["version"] == version
            seen.append(await predicted(s, http, version))
        _, back = await ask(http, "POST", "/predictor/rollback", json={}, headers=auth)
        seen.append(await predicted(s, http, "back"))
        assert s.app.up.journal.fact("predictor") == back["version"] == double
    assert [version for version, _ in seen] == ["group-history", double, half, double]
    base = seen[0][1]
    assert [p50 / base for _, p50 in seen] == pytest.approx([1, 2, 0.5, 2], rel=1e-6)
    assert set(back["known"]) == {"group-history", double, half}
    assert Registry(tmp_path / "predictors").audit()[-2]["who"] == "ann"


async def test_a_broken_one_and_one_the_gate_refused_do_not_serve(stack, auth, tmp_path):
    worse, broken = saved(tmp_path, 0.5, accepted=False), saved(tmp_path, 0.25)
    path = tmp_path / "predictors" / "versions" / broken / WEIGHTS
    path.write_bytes(path.read_bytes()[:-9])
    async with stack(data_dir=tmp_path) as s, aiohttp.ClientSession(s.url) as http:

        async def promote(version, **more):
            said = {"version": version, **more}
            return await ask(http, "POST", "/predictor/promote", json=said, headers=auth)

        for version, sentence in ((broken, "missing or changed"), (worse, "may not serve")):
            status, said = await promote(version)
            assert status == 400
            assert sentence in said["error"]
        assert (await ask(http, "GET", "/predictor"))[1]["version"] == "group-history"
        assert (await promote(worse, force=True))[1]["version"] == worse
        assert (await promote("group-history"))[1]["version"] == "group-history"
        status, said = await ask(http, "POST", "/predictor/rollback", json={}, headers=auth)
    assert status == 400
    assert "nothing was promoted" in said["error"]


async def test_what_was_promoted_serves_after_a_restart(stack, auth, tmp_path):
    version = saved(tmp_path, 1.0)
    for attempt in range(2):
        async with stack(data_dir=tmp_path) as s, aiohttp.ClientSession(s.url) as http:
            if attempt == 0:
                said = {"version": version}
                await ask(http, "POST", "/predictor/promote", json=said, headers=auth)
            assert (await ask(http, "GET", "/predictor"))[1]["version"] == version


async def test_without_a_data_folder_only_history_serves(stack, auth):
    async with stack() as s, aiohttp.ClientSession(s.url) as http:
        said = {"version": "length-x"}
        status, told = await ask(http, "POST", "/predictor/promote", json=said, headers=auth)
    assert status == 400
    assert "no data folder" in told["error"]


async def test_one_that_breaks_while_it_serves_is_named_and_spares_the_steps(stack, auth, tmp_path):
    version = saved(tmp_path, 1.0)
    weights = tmp_path / "predictors" / "versions" / version / WEIGHTS
    async with stack(data_dir=tmp_path) as s, aiohttp.ClientSession(s.url) as http:
        await ask(http, "POST", "/switches", json={"prediction": "learned"}, headers=auth)
        await ask(http, "POST", "/predictor/promote", json={"version": version}, headers=auth)
        weights.write_bytes(b"")
        (tmp_path / "predictors" / "audit.jsonl").write_bytes(b"torn")
        said = [(await ask(http, "GET", "/predictor"))[1] for _ in range(2)]
        assert (await predicted(s, http, "after"))[0] == "group-history"
        status, audit = await ask(http, "GET", "/predictor/audit")
    assert said[0] == said[1]
    assert said[0]["version"] == "group-history"
    assert version in said[0]["refused"][0]
    assert (status, {deed["deed"] for deed in audit}) == (200, {"refused"})


async def test_a_registry_that_cannot_be_written_is_a_sentence_and_changes_nothing(
    stack, auth, tmp_path, monkeypatch
):
    version = saved(tmp_path, 1.0)

    def full(*_said: object) -> None:
        raise OSError("no space left")

    async with stack(data_dir=tmp_path) as s, aiohttp.ClientSession(s.url) as http:
        monkeypatch.setattr(Registry, "_note", full)
        said = {"version": version}
        status, told = await ask(http, "POST", "/predictor/promote", json=said, headers=auth)
        assert (await ask(http, "GET", "/predictor"))[1]["version"] == "group-history"
    assert (status, "cannot be written (no space left)" in told["error"]) == (500, True)
