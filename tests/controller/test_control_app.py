"""The control plane over real sockets: switches, guard, rollouts, restart, launching, moves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from heddle.controller import wire
from heddle.controller.client import ControllerClient, ControllerRefused
from heddle.controller.core.policies import PRESETS
from heddle.controller.core.regroup import Place
from heddle.controller.core.types import Move
from heddle.controller.errors import LaunchFailed
from heddle.controller.fleet.local import LocalLauncher
from heddle.controller.fleet.template import Template

ENGINE = (
    "import sys, http.server as h\n"
    "class E(h.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        self.send_response(200); self.end_headers(); self.wfile.write(b'{\"tp_size\": 1}')\n"
    "    def log_message(self, *a): pass\n"
    "h.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), E).serve_forever()\n"
)
TEMPLATE = (sys.executable, "-c", ENGINE, "{port}", "{degree}", "{worker_id}")


@contextlib.asynccontextmanager
async def up(stack, **how):
    async with stack(**how) as s, aiohttp.ClientSession(s.url) as http:
        yield s, http


async def ask(http, method, path, **how):
    async with http.request(method, f"/heddle/v1{path}", **how) as reply:
        return reply.status, await reply.json()


def step(trajectory, ids=(1, 2, 3), n=2, **headers) -> Any:
    named = {"X-Heddle-Run": "r", "X-Heddle-Trajectory-Id": trajectory, **headers}
    body = {"input_ids": list(ids), "sampling_params": {"max_new_tokens": n}}
    return {"json": body, "headers": named}


async def test_a_switch_is_in_force_for_the_next_decision_and_audited(stack, auth):
    async with up(stack) as (s, http):
        await http.post("/generate", **step("a"))
        said = {"order": "longest-first", "who": "ann", "why": "tail"}
        status, state = await ask(http, "POST", "/switches", json=said, headers=auth)
        async with http.post("/generate", **step("b")) as reply:
            decision = reply.headers["X-Heddle-Decision"]
        _, audit = await ask(http, "GET", "/switches/audit")
        spans = s.spans.of("heddle.switch")
    assert (status, state["preset"]) == (200, None)
    assert decision.startswith("longest-first,sticky")
    assert [(e["choice"], e["before"], e["after"], e["who"]) for e in audit] == [
        ("order", "fcfs", "longest-first", "ann")
    ]
    assert spans[0]["attributes"]["heddle.switch.why"] == "tail"


async def test_switches_of_one_run_leave_the_others_alone(stack, auth):
    async with up(stack) as (_, http):
        said = {"run": "r2", "preset": "heddle", "who": "x"}
        await ask(http, "POST", "/switches", json=said, headers=auth)
        mine = (await ask(http, "GET", "/switches?run=r2"))[1]
        others = (await ask(http, "GET", "/switches?run=r"))[1]
    assert (mine["preset"], others["preset"]) == ("heddle", "verl")


async def test_runs_are_those_with_trajectories_a_rollout_or_switches_of_their_own(stack, auth):
    async with up(stack) as (s, http):
        said = {"run": "switched", "preset": "heddle", "who": "x"}
        await ask(http, "POST", "/switches", json=said, headers=auth)
        begun = {"run": "begun", "rollout": "o1", "expected": 1}
        await ask(http, "POST", "/rollouts", json=begun, headers=auth)
        await http.post("/generate", **step("a"))
        s.engines[0].gate = s.engines[1].gate = asyncio.Event()
        running = asyncio.create_task(http.post("/generate", **step("b")))
        while not any(t.running for t in s.loop.trajectories.values()):
            await asyncio.sleep(0.005)
        told = (await ask(http, "GET", "/runs"))[1]
        s.engines[0].gate.set()
        await running
        with ControllerClient(s.url) as client:
            runs = await asyncio.to_thread(client.runs)
    names = ("run", "preset", "rollout", "trajectories", "held", "running")
    assert [tuple(run[name] for name in names) for run in told] == [
        ("begun", "verl", "o1", 0, 0, 0),
        ("r", "verl", None, 2, 0, 1),
        ("switched", "heddle", None, 0, 0, 0),
    ]
    assert [run.run for run in runs] == ["begun", "r", "switched"]


async def test_an_unknown_policy_is_400_names_the_known_and_changes_nothing(stack, auth):
    async with up(stack) as (_, http):
        said = {"admission": "hold-count", "order": "sjf", "who": "x"}
        status, body = await ask(http, "POST", "/switches", json=said, headers=auth)
        state = (await ask(http, "GET", "/switches"))[1]
        audit = (await ask(http, "GET", "/switches/audit"))[1]
    assert status == 400
    assert body["error"].startswith("no order policy called 'sjf'; choose one of fcfs, ")
    assert "longest-first" in body["error"]
    assert state["switches"]["admission"] == "none"
    assert audit == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic secret-of-the-test"}, 401),
        ({"Content-Type": "text/plain"}, 415),
        ({"Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
    ],
)
async def test_changes_need_token_json_and_a_known_page(stack, auth, headers, status):
    given = headers if status == 401 else {**auth, **headers}
    async with up(stack) as (_, http):
        known = {"Content-Type": "application/json", **given}
        body = b'{"preset":"heddle","who":"x"}'
        found, said = await ask(http, "POST", "/switches", data=body, headers=known)
        state = (await ask(http, "GET", "/switches"))[1]
    assert found == status
    assert said["error"]
    assert state["preset"] == "verl"


async def test_a_foreign_page_cannot_generate_either(stack):
    async with up(stack) as (s, http):
        async with http.post("/generate", data=b"{}", headers={"Origin": "http://x"}) as reply:
            assert reply.status == 403
        assert not any(e.bodies for e in s.engines)


async def test_a_restarted_controller_keeps_switches_audit_workers_and_pins(
    stack, auth, tmp_path, stub_engine, serve_app
):
    async with serve_app(stub_engine()) as one, serve_app(stub_engine()) as two:
        async with up(stack, engines=0, data_dir=tmp_path) as (_, http):
            for url in (one, two):
                await ask(http, "POST", "/workers", json={"url": url}, headers=auth)
            await ask(
                http, "POST", "/switches", json={"preset": "heddle", "who": "x"}, headers=auth
            )
            await http.post("/generate", **step("a"))
            async with http.post("/generate", **step("b")) as reply:
                before = reply.headers["X-Heddle-Worker"]
        async with up(stack, engines=0, data_dir=tmp_path) as (_, http):
            state = (await ask(http, "GET", "/switches"))[1]
            audit = (await ask(http, "GET", "/switches/audit"))[1]
            workers = (await ask(http, "GET", "/workers"))[1]
            async with http.post("/generate", **step("b")) as reply:
                after = reply.headers["X-Heddle-Worker"]
    assert state["preset"] == "heddle"
    stock, ours = asdict(PRESETS["verl"]), asdict(PRESETS["heddle"])
    assert {row["choice"] for row in audit} == {c for c in ours if ours[c] != stock[c]}
    assert [w["url"] for w in workers] == [one, two]
    assert before == after == "w1"


async def test_a_rollout_has_marker_plan_leases_and_span_with_its_window(stack, auth):
    async with up(stack) as (s, http):
        begin = {"run": "r", "rollout": "ro", "expected": 4}
        _, reply = await ask(http, "POST", "/rollouts", json=begin, headers=auth)
        again = (await ask(http, "POST", "/rollouts", json=begin, headers=auth))[1]
        await http.post("/generate", **step("t"))
        ended = (await ask(http, "POST", "/rollouts/ro/end", json={"run": "r"}, headers=auth))[1]
        rollout, starts = s.spans.of("heddle.rollout")[0], s.spans.starts
        leases, stepped = s.spans.of("heddle.worker"), s.spans.of("chat")[0]
        plan = s.spans.of("heddle.plan")[0]
    assert reply["layout"] == [1, 1]
    assert reply["workers"] == ["w0", "w1"]
    assert "not started here" in reply["because"]
    assert again == reply
    window_s = (rollout["end_ns"] - rollout["start_ns"]) / 1e9
    assert ended["makespan_s"] == pytest.approx(window_s)
    assert [m["op"] for m in starts] == ["heddle.rollout", "heddle.worker", "heddle.worker"]
    assert {x["start_ns"] for x in leases} == {rollout["start_ns"]}
    assert rollout["attributes"]["heddle.gpus"] == 2
    assert stepped["attributes"]["heddle.rollout.id"] == "ro"
    assert plan["attributes"]["heddle.solve_s"] >= 0


async def test_a_move_warms_the_target_with_prompt_and_output_and_shows_what_it_hit(stack):
    async with up(stack) as (s, http):
        await http.post("/generate", **step("t", ids=(7, 8, 9), n=2))
        trajectory = s.loop.trajectories["r/t"]
        move = Move(trajectory="r/t", source="w0", target="w1", because="test")
        s.loop.mover.carry(trajectory, move)
        while trajectory.moving:
            await asyncio.sleep(0.005)
        async with http.post("/generate", **step("t", ids=(7, 8, 9, 0, 1, 5))) as reply:
            arrived_on = reply.headers["X-Heddle-Worker"]
        warm, span = s.engines[1].bodies[0], s.spans.of("heddle.move")[0]
    assert arrived_on == "w1"
    assert warm["input_ids"] == [7, 8, 9, 0, 1]
    assert warm["sampling_params"] == {"max_new_tokens": 0}
    assert warm["log_metrics"] is False
    said = span["attributes"]
    assert (said["heddle.move.source"], said["heddle.move.target"]) == ("w0", "w1")
    assert said["heddle.move.hit_tokens"] == 3
    assert said["heddle.exposed_s"] == 0
    assert said["heddle.hidden_s"] == pytest.approx((span["end_ns"] - span["start_ns"]) / 1e9)


async def test_the_launcher_starts_the_layout_keeps_it_and_changes_it(stack, auth, tmp_path):
    how = {"launch_template": TEMPLATE, "gpus": 2, "first_port": 0, "data_dir": tmp_path}
    async with up(stack, engines=0, **how) as (s, http):
        refused = await http.post("/generate", **step("t"))
        one = {"run": "r", "rollout": "1", "expected": 2}
        _, first = await ask(http, "POST", "/rollouts", json=one, headers=auth)
        urls = [w.url for w in s.app.up.fleet.alive]
        await ask(http, "POST", "/rollouts/1/end", json={"run": "r"}, headers=auth)
        _, kept = await ask(http, "POST", "/rollouts", json={**one, "rollout": "2"}, headers=auth)
        assert [w.url for w in s.app.up.fleet.alive] == urls
        said = {"allocation": "fixed-2", "who": "x"}
        await ask(http, "POST", "/switches", json=said, headers=auth)
        _, moved = await ask(http, "POST", "/rollouts", json={**one, "rollout": "3"}, headers=auth)
        span = s.spans.of("heddle.reallocate")[0]["attributes"]
    assert refused.status == 503
    assert (first["layout"], first["reallocated"]) == ([1, 1], False)
    assert (kept["layout"], kept["reallocated"]) == ([1, 1], False)
    assert (moved["layout"], moved["reallocated"]) == ([2], True)
    assert (span["heddle.layout.before"], span["heddle.layout"]) == ("1,1", "2")


async def test_an_engine_that_exits_says_so_with_the_end_of_its_log(tmp_path):
    command = (sys.executable, "-c", "print('no such model'); raise SystemExit(3)", "{port}")
    launcher = LocalLauncher(Template(command=command), tmp_path, gpus=1, first_port=0)
    with pytest.raises(LaunchFailed, match="w0 exited with 3; it last said: no such model"):
        await launcher.start("w0", Place(0, 0, 1))


async def test_a_port_in_use_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        template = Template(command=TEMPLATE)
        launcher = LocalLauncher(template, tmp_path, gpus=1, first_port=port)
        with pytest.raises(LaunchFailed, match=f"port {port} for worker w0 is in use"):
            await launcher.start("w0", Place(0, 0, 1))


async def test_the_client_speaks_the_whole_control_plane(stack, auth, tmp_path):
    async with up(stack, data_dir=tmp_path) as (s, _):
        token = auth["Authorization"].removeprefix("Bearer ")

        def talk():
            with ControllerClient(s.url, token=token) as client:
                assert client.healthy()
                begun = client.begin_rollout(wire.RolloutBegin(run="r", rollout="o"))
                client.switch(preset="heddle", who="me", why="because")
                with pytest.raises(ControllerRefused, match=r"choose one of heddle, .*verl"):
                    client.switch(preset="nope", who="me")
                names = [w.worker_id for w in client.workers()]
                assert client.plan().plans == [begun]
                assert not client.finish_trajectory("r", "unknown")
                assert client.predictor().version == "group-history"
                client.remove_worker("w1")
                left, makespan_s = len(client.workers()), client.end_rollout("r", "o").makespan_s
            told = pytest.raises(ControllerRefused, match="data folder: --data DIR, or --token")
            with ControllerClient(s.url, token="another's") as stranger, told:
                stranger.switch(preset="heddle", who="me")
            return names, left, makespan_s

        names, left, makespan_s = await asyncio.to_thread(talk)
    assert (names, left) == (["w0", "w1"], 1)
    assert makespan_s > 0


async def test_a_trajectory_of_any_name_is_finished_over_the_client(stack, auth):
    names = ("swe/django/0", "a?b#c%2Fd", "ends in /finish", "späße")
    async with up(stack) as (s, http):
        token = auth["Authorization"].removeprefix("Bearer ")

        def talk():
            with ControllerClient(s.url, token=token) as client:
                return [client.finish_trajectory("r", name, reward=1.0) for name in names]

        for name in names:
            await http.post("/generate", **step(f"UTF-8''{quote(name, safe='')}"))
        known = await asyncio.to_thread(talk)
        spans = s.spans.of("invoke_agent")
    assert known == [True] * len(names)
    assert [span["attributes"]["gen_ai.conversation.id"] for span in spans] == list(names)


async def test_a_reward_reaches_the_trajectorys_span_even_after_its_last_step(stack):
    async with up(stack) as (s, http):
        for index in range(2):
            await http.post("/generate", **step("t", **{"X-Heddle-Final": str(index)}))
        said = {"run": "r", "reward": 0.5, "outcome": "solved"}
        _, known = await ask(http, "POST", "/trajectories/t/finish", json=said)
        _, unknown = await ask(http, "POST", "/trajectories/u/finish", json=said)
        steps, (bare, told) = s.spans.of("chat"), s.spans.of("invoke_agent")
    assert (known, unknown) == ({"known": True}, {"known": False})
    assert "heddle.reward" not in bare["attributes"]
    assert told["attributes"]["heddle.reward"] == 0.5
    assert told["attributes"]["heddle.outcome"] == "solved"
    assert told["span_id"] == bare["span_id"] == steps[0]["parent_span_id"]
    assert told["start_ns"] == steps[0]["start_ns"]
    # The store keeps the one that ends later; a client's own would end later still.
    assert steps[1]["end_ns"] < bare["end_ns"] < told["end_ns"] < steps[1]["end_ns"] + 1000
