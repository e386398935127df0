"""verl's router decides by the controller, and never stops training when there is none."""

from __future__ import annotations

import asyncio
import pickle
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from heddle.controller.dataplane import asgi
from heddle.controller.verl_plugin import router as module
from heddle.controller.verl_plugin.book import Book, group_of
from heddle.controller.verl_plugin.handle import StepHandle, said_of
from heddle.controller.verl_plugin.router import Router

TOKEN = "secret-of-the-test"
"""As the stack of conftest.py has it."""


class Remote:
    """A method of an actor."""

    def __init__(self, call):
        self._call = call

    def remote(self, *args, **kwargs):
        return asyncio.ensure_future(self._call(*args, **kwargs))


@dataclass
class Server:
    """A server actor; the output is what the test says."""

    output: object = None
    seen: list = field(default_factory=list)

    @property
    def generate(self):
        return Remote(self._generate)

    async def _generate(self, **asked):
        self.seen.append(asked)
        if isinstance(self.output, Exception):
            raise self.output
        return self.output or done()


def done(ids=(4, 5), stop="stop", **extra):
    return SimpleNamespace(token_ids=list(ids), stop_reason=stop, extra_fields=extra)


def address(engine_url):
    return engine_url.partition("://")[2]


class Plugged:
    """A router in this process, called as verl's client calls its actor."""

    def __init__(self, url, servers, token_file, **said):
        settings = {"url": url, "run": "r", "token_file": token_file, **said}
        self.servers = servers
        self.told = []
        self.router = Router(servers, {"heddle": settings}, me=lambda: self)

    @property
    def settle(self):
        return self

    def remote(self, rid, said):
        self.told.append(asyncio.ensure_future(self.router.settle(rid, said)))

    async def step(self, request_id, ids):
        server_id, server = await self.router.acquire_server(request_id, prompt_ids=ids)
        try:
            return server_id, await server.generate.remote(prompt_ids=ids, sampling_params={})
        finally:
            await self.router.release_server(server_id, request_id)
            await asyncio.gather(*self.told)

    async def close(self):
        if self.router._beat is not None:
            self.router._beat.cancel()
        await self.router._calls.close()


@pytest.fixture
async def plugged(tmp_path):
    made = []

    def make(url, servers, **said):
        (tmp_path / "token").write_text(TOKEN)
        made.append(Plugged(url, servers, str(tmp_path / "token"), **said))
        return made[-1]

    yield make
    for one in made:
        await one.close()


def servers_of(s):
    return {address(w.url): Server() for w in s.loop.fleet.workers.values()}


async def test_steps_go_where_the_controller_says_under_the_id_it_chose(stack, plugged):
    async with stack(engines=2) as s:
        plug = plugged(s.url, servers_of(s))
        first, _ = await plug.step("t", [1, 2, 3])
        second, _ = await plug.step("t", [1, 2, 3, 4, 5, 6])
        other, _ = await plug.step("u", [1, 2, 3])
        spans = s.spans.of("chat")
        trajectory = s.loop.trajectories["r/t"]
        rids = [asked["request_id"] for asked in plug.servers[first].seen]
    assert first == second
    assert other != first
    assert [x["attributes"]["heddle.step.index"] for x in spans] == [0, 1, 0]
    assert [x["attributes"]["heddle.sample.index"] for x in spans] == [0, 0, 1]
    assert len({x["attributes"]["heddle.group.id"] for x in spans}) == 1
    assert rids == [f"{trajectory.digest}-{n:05d}-00" for n in range(2)]
    assert trajectory.ids == b"1,2,3,4,5,6,4,5"


async def test_an_aborted_step_keeps_its_number_and_its_tokens(stack, plugged):
    async with stack(engines=1) as s:
        plug = plugged(s.url, servers_of(s))
        server = next(iter(plug.servers.values()))
        server.output = done((3,), global_steps=1)
        await plug.step("before", [1])
        server.output = done((7, 8, 9), "abort", global_steps=1)
        await plug.step("t", [1])
        server.output = done((4,), "stop", global_steps=2)
        await plug.step("t", [1, 7, 8, 9])
        spans = s.spans.of("chat")[1:]
        syncs = s.spans.of("heddle.weight_sync")
    assert [x["error"] for x in spans] == ["aborted_by_trainer", None]
    assert [x["attributes"]["heddle.step.index"] for x in spans] == [0, 0]
    assert [x["attributes"]["gen_ai.usage.output_tokens"] for x in spans] == [3, 1]
    assert not any(engine.aborted for engine in s.engines)
    # Nobody announced the new weights: seen by their version, with the abort before them.
    assert [x["attributes"]["heddle.aborted"] for x in syncs] == [1]


async def test_a_rollout_ends_with_its_trajectories_when_nothing_comes_for_a_while(stack, plugged):
    async with stack(engines=1) as s:
        plug = plugged(s.url, servers_of(s), quiet_s=0.4)
        await plug.step("t", [1])
        last = time.monotonic()
        while not s.spans.of("heddle.rollout"):
            await asyncio.sleep(0.05)
        waited_s = time.monotonic() - last
        rollout, trajectory = s.spans.of("heddle.rollout")[0], s.spans.of("invoke_agent")[0]
    assert waited_s > 0.3
    assert trajectory["attributes"]["heddle.outcome"] == "finished"
    # The quiet time is not the rollout's.
    late_s = (rollout["end_ns"] - s.spans.of("chat")[0]["end_ns"]) / 1e9
    assert late_s < waited_s - 0.3


async def test_the_trainers_own_begin_and_end_make_the_window(stack, plugged):
    async with stack(engines=1) as s:
        plug = plugged(s.url, servers_of(s))
        await plug.router.begin_rollout(expected=5, kind="validate", step=12)
        await plug.step("t", [1])
        await plug.router.clear_sticky_cache()
        said = s.spans.of("heddle.rollout")[0]["attributes"]
        assert not s.loop.trajectories
    assert (said["heddle.rollout.kind"], said["heddle.trainer.step"]) == ("validate", 12)


async def test_without_a_controller_steps_go_where_verls_own_balancer_sends_them(plugged):
    servers = {"a:1": Server(), "b:1": Server()}
    plug = plugged("http://127.0.0.1:9", servers)
    went = [(await plug.step(f"t{n}", [n]))[0] for n in (0, 1)]
    again = (await plug.step("t1", [1, 2]))[0]
    status = await plug.router.get_status()
    assert sorted(servers) == ["a:1", "b:1"]
    assert went[1] == again
    assert status["heddle"]["steps_without"] == 3
    assert status["total_inflight"] == 0


@pytest.mark.parametrize("body", ["5", "[]", "{}", "null", '{"granted": 1}', "no JSON"])
async def test_a_stranger_at_the_controllers_address_stops_no_step(plugged, serve_app, body):
    async def stranger(scope, receive, send):
        await asgi.answer(send, 200, body.encode(), "application/json")

    async with serve_app(stranger) as url:
        trainer = plugged(url, {"a:1": Server()}, deadline_s=0)
        assert (await trainer.step("t", [1]))[0] == "a:1"
        assert trainer.router.alone == 1


async def test_without_a_token_file_steps_go_on_and_it_is_said(plugged, tmp_path, caplog):
    router = Router({"a:1": Server()}, {"heddle": {"token_file": str(tmp_path / "none/token")}})
    assert (await router.get_status())["servers"] == {"a:1": 0}
    (said,) = caplog.records
    assert "none/token" in said.getMessage()


async def test_a_first_caller_that_is_cancelled_leaves_the_others_their_rollout(stack, plugged):
    async with stack(engines=1) as s:
        trainer = plugged(s.url, servers_of(s))
        first = asyncio.create_task(trainer.step("a", [1]))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait_for(trainer.step("b", [2]), 20)
        assert trainer.router.alone == 0


async def test_a_worker_that_is_not_the_trainers_gets_nothing_from_it(stack, plugged):
    async with stack(engines=1) as s:
        plug = plugged(s.url, {"elsewhere:1": Server()})
        server, _ = await plug.step("t", [1])
        errors = [x["error"] for x in s.spans.of("chat")]
    assert server == "elsewhere:1"
    assert errors == ["not_of_this_trainer"]


async def test_a_step_that_raised_is_told_by_its_error(stack, plugged):
    async with stack(engines=1) as s:
        plug = plugged(s.url, servers_of(s))
        next(iter(plug.servers.values())).output = ValueError("prompt too long")
        with pytest.raises(ValueError, match="too long"):
            await plug.step("t", [1])
        errors = [x["error"] for x in s.spans.of("chat")]
        assert not s.loop.fleet.workers["w0"].running
    assert errors == ["ValueError"]


async def test_a_step_nobody_settled_ends_at_its_release(stack, plugged, monkeypatch):
    monkeypatch.setattr(module, "GRACE_S", 0.05)
    async with stack(engines=1) as s:
        plug = plugged(s.url, servers_of(s))
        server, _ = await plug.router.acquire_server("t", prompt_ids=[1])
        await plug.router.release_server(server, "t")
        assert [x["error"] for x in s.spans.of("chat")] == ["failed"]


async def test_no_servers_is_the_sentence_that_verls_async_client_waits_on(plugged):
    plug = plugged("http://127.0.0.1:9", {})
    with pytest.raises(RuntimeError, match="No available servers in load balancer"):
        await plug.router.acquire_server("t", prompt_ids=[1])


async def test_servers_come_and_go(stack, plugged):
    async with stack(engines=1) as s:
        plug = plugged(s.url, {})
        await plug.router.add_servers(servers_of(s))
        await plug.step("t", [1])
        await plug.router.remove_servers(await plug.router.get_all_servers())
        assert not s.loop.fleet.workers
        assert await plug.router.get_all_servers() == []


def test_a_handle_travels_between_processes():
    handle = StepHandle("server", "router", "r-0", {"priority": 3})
    assert pickle.loads(pickle.dumps(handle)) == handle


def test_the_engines_own_figures_are_told_where_there_are_any():
    meta = {"completion_tokens": 2, "queue_time": 0.5}
    assert said_of(done(heddle=meta), 9)["meta_info"] == meta
    assert said_of(done(global_steps=3), 9)["policy_version"] == "3"
    assert "policy_version" not in said_of(done(), 9)


def test_samples_of_one_prompt_are_one_group_and_counted_anew_in_each_rollout():
    book = Book()
    first = [book.arrive(f"t{n}", "r1", [1, 2, 3], 0.0) for n in range(3)]
    other = book.arrive("x", "r1", [1, 2, 4], 0.0)
    book.begin()
    later = book.arrive("y", "r2", [1, 2, 3], 0.0)
    assert [t.sample for t in first] == [0, 1, 2]
    assert {t.group for t in [*first, later]} == {group_of([1, 2, 3])} != {other.group}
    assert (other.sample, later.sample) == (0, 0)
