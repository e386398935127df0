"""Training and evaluation over HTTP: followed, one at a time, cancelled, in another process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import aiohttp
import pytest
from predictor_weights import saved

from heddle.controller import jobs
from heddle.controller.wire import RolloutBegin
from heddle.models.registry import Registry

ROW = {
    "against": "group history", "k": -1, "n": 40, "metric": "spearman", "baseline": 0.6,
    "candidate": 0.7, "difference": 0.1, "low": 0.02, "high": None,
}  # fmt: skip
ASKED = {"kind": "evaluate", "version": "length-y", "who": "ann"}
TELLS = """import json, sys
asked = json.load(sys.stdin)
def tell(**said): print(json.dumps(said), flush=True)
"""


@pytest.fixture
def child(monkeypatch):
    """`child(script)`: what a job runs instead of training; it has `asked` and `tell(**said)`."""

    def say(script):
        monkeypatch.setattr(jobs, "COMMAND", (sys.executable, "-c", TELLS + script))

    return say


@pytest.fixture
def ask(stack, auth, tmp_path):
    """`async with ask() as (s, call):` a controller with data folder and collector's address."""
    import contextlib

    @contextlib.asynccontextmanager
    async def up(**config):
        there = {"data_dir": tmp_path, "collector_queries": "http://127.0.0.1:9"}
        async with stack(**{**there, **config}) as s, aiohttp.ClientSession(s.url) as http:

            async def call(method, path="", headers=auth, **how):
                where = f"/heddle/v1/predictor{path}"
                async with http.request(method, where, headers=headers, **how) as reply:
                    return reply.status, await reply.json()

            yield s, call

    return up


async def ended(call, job_id, state="running"):
    while True:
        _, job = await call("GET", f"/jobs/{job_id}")
        if job["state"] != state:
            return job
        await asyncio.sleep(0.01)


async def test_a_job_tells_its_progress_then_the_gates_table(child, ask):
    child(
        "tell(progress=0.4, sentence='fitting network 2 of 5')\n"
        "import time; time.sleep(0.3)\n"
        f"row = json.loads('''{json.dumps(ROW)}''')\n"
        "tell(result=dict(version='length-x', accepted=False, sentence='refused: so', table=[row]))"
    )
    async with ask() as (_, call):
        status, begun = await call("POST", "/jobs", json={"kind": "train", "run": "r", "seed": 3})
        assert status == 200
        while (now := (await call("GET", f"/jobs/{begun['id']}"))[1])["progress"] == 0.0:
            await asyncio.sleep(0.01)
        assert (now["state"], now["sentence"]) == ("running", "fitting network 2 of 5")
        done = await ended(call, begun["id"])
        assert (await call("GET", "/jobs"))[1] == [done]
    assert (done["state"], done["progress"], done["accepted"]) == ("done", 1.0, False)
    assert done["table"] == [ROW]
    assert done["sentence"] == "refused: so"
    assert done["asked"]["seed"] == 3
    assert done["ended_ns"] > done["started_ns"]


async def test_the_child_is_told_where_to_read_and_write_but_not_on_its_command_line(child, ask):
    child("tell(error=json.dumps(asked) + ' '.join(sys.argv))")
    async with ask(query_token="very-secret") as (_, call):
        _, begun = await call("POST", "/jobs", json=ASKED)
        done = await ended(call, begun["id"])
    told = json.loads(done["sentence"].removesuffix("-c"))
    assert done["state"] == "failed"
    assert told["collector_token"] == "very-secret"
    assert {name: told[name] for name in ASKED} == ASKED
    assert told["registry"].endswith("predictors")


async def test_one_at_a_time_and_a_cancelled_one_is_gone_with_its_process(child, ask):
    child("import os, time; tell(progress=0.1, sentence=str(os.getpid())); time.sleep(60)")
    async with ask() as (s, call):
        _, first = await call("POST", "/jobs", json={"kind": "train"})
        status, said = await call("POST", "/jobs", json={"kind": "train"})
        assert status == 409
        assert first["id"] in said["error"]
        while not (now := (await call("GET", f"/jobs/{first['id']}"))[1])["progress"]:
            await asyncio.sleep(0.01)
        _, cancelled = await call("POST", f"/jobs/{first['id']}/cancel", json={})
        assert cancelled["state"] == "cancelled"
        with pytest.raises(ProcessLookupError):
            os.kill(int(now["sentence"]), 0)
        again = await call("POST", f"/jobs/{first['id']}/cancel", json={})
        assert again == (200, cancelled)
        status, second = await call("POST", "/jobs", json={"kind": "train"})
        assert status == 200
        assert s.app.up.jobs.running.id == second["id"]


async def test_a_child_that_dies_fails_its_job_with_its_last_words(child, ask):
    child("tell(progress=0.2, sentence='x'); raise SystemExit('no room on the disk')")
    async with ask() as (_, call):
        _, begun = await call("POST", "/jobs", json={"kind": "train"})
        done = await ended(call, begun["id"])
    assert done["state"] == "failed"
    assert done["sentence"].endswith("ended with 1 and no result: no room on the disk")


@pytest.mark.parametrize("accepted", [True, False])
async def test_it_promotes_only_what_the_gate_accepts(child, ask, tmp_path, accepted):
    version = saved(tmp_path, 0.25, accepted=accepted)
    child(f"tell(result=dict(version={version!r}, accepted={accepted}, sentence='s', table=[]))")
    async with ask() as (_, call):
        _, begun = await call("POST", "/jobs", json={"kind": "train", "promote": True, "who": "me"})
        done = await ended(call, begun["id"])
        _, state = await call("GET")
    assert done["promoted"] is accepted
    assert state["version"] == (version if accepted else "group-history")
    deeds = Registry(tmp_path / "predictors").audit()
    assert [d["who"] for d in deeds if d["deed"] == "promote"] == ["me"] * accepted


async def test_a_job_needs_the_token_a_data_folder_and_a_kind(child, ask, tmp_path):
    child("tell(error='never started')")
    async with ask() as (_, call):
        assert (await call("POST", "/jobs", headers={}, json={"kind": "train"}))[0] == 401
        assert (await call("POST", "/jobs", json={"kind": "guess"}))[0] == 400
        assert (await call("GET", "/jobs/job-7"))[0] == 404
        assert (await call("POST", "/jobs/job-7/cancel", json={}))[0] == 404
    async with ask(data_dir=None) as (_, call):
        status, said = await call("POST", "/jobs", json={"kind": "train"})
    assert status == 400
    assert "--data" in said["error"]


async def test_the_card_the_table_and_the_audit_of_a_version_are_there(ask, tmp_path):
    version = saved(tmp_path, 0.25, accepted=False)
    async with ask() as (_, call):
        said = {"version": version, "who": "ann", "why": "try it", "force": True}
        await call("POST", "/promote", json=said)
        _, card = await call("GET", f"/{version}")
        _, audit = await call("GET", "/audit")
        _, state = await call("GET")
        assert (await call("GET", "/length-none"))[0] == 404
    assert (card["serving"], card["accepted"], card["table"]) == (True, False, [])
    assert card["card"].startswith(f"# {version}")
    assert [v["version"] for v in state["versions"]] == [version]
    newest = audit[0]
    assert (newest["deed"], newest["who"], newest["why"]) == ("promote-forced", "ann", "try it")


async def test_a_real_child_without_a_collector_says_so(ask):
    async with ask() as (_, call):
        _, begun = await call("POST", "/jobs", json={"kind": "evaluate"})
        done = await ended(call, begun["id"])
    assert done["state"] == "failed"
    assert "no collector" in done["sentence"]


def test_a_controller_with_jobs_never_imports_torch():
    look = "import sys, heddle.controller.service as s; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], check=False).returncode == 0


async def test_retraining_waits_for_its_rollouts_and_promotes_only_through_the_gate(
    child, ask, tmp_path, monkeypatch
):
    version = saved(tmp_path, 0.25, accepted=True)
    child(f"tell(result=dict(version={version!r}, accepted=True, sentence='s', table=[]))")
    async with ask(retrain_every=2) as (s, call):
        monkeypatch.setattr(s.app.up.retraining, "_settle_s", 0.0)
        for rollout in ("a", "b"):
            assert s.app.up.jobs.newest() == []
            await rolled(s, rollout)
        while not s.app.up.jobs.newest():
            await asyncio.sleep(0.01)
        done = await ended(call, s.app.up.jobs.newest()[0].id)
        assert (done["asked"]["who"], done["promoted"]) == ("automatic", True)
        await rolled(s, "c")
        await asyncio.sleep(0.05)
        assert len(s.app.up.jobs.newest()) == 1


async def test_by_default_nothing_trains_by_itself(child, ask):
    child("tell(error='never started')")
    async with ask() as (s, _):
        for rollout in ("a", "b", "c"):
            await rolled(s, rollout)
        await asyncio.sleep(0.05)
        assert s.app.up.jobs.newest() == []


async def rolled(s, rollout):
    """A rollout without trajectories, begun and ended."""
    asked = RolloutBegin(run="r", rollout=rollout)
    await s.app.up.rollouts.begin(asked)
    s.app.up.rollouts.end("r", rollout)
