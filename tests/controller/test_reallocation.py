"""A layout that changes under live trajectories: who is moved, what is told, what is undone."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace

import aiohttp
import pytest
from app_server import TOKEN
from fleet_launcher import fleet_stack

from heddle.controller.blocks import Blocks
from heddle.controller.dataplane.usage import Usage
from heddle.controller.emulator.http import EngineApp
from heddle.controller.live import Step

AUTH = {"Authorization": f"Bearer {TOKEN}"}


async def post(http, url, route, status=200, **body):
    async with http.post(f"{url}/heddle/v1{route}", json=body, headers=AUTH) as reply:
        said = await reply.json()
        assert reply.status == status, said
        return said


async def fleet_of(http, url):
    async with http.get(f"{url}/heddle/v1/fleet") as reply:
        return await reply.json()


async def step(http, url, trajectory, ids, tokens=40, final=False):
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True},
    }
    headers = {"X-Heddle-Trajectory-Id": trajectory, "X-Heddle-Run": "r"}
    headers |= {"X-Heddle-Final": "1"} if final else {}
    async with http.post(f"{url}/generate", json=body, headers=headers) as reply:
        said = await reply.json()
        assert reply.status == 200, said
        return [*ids, *said["output_ids"]], reply.headers["X-Heddle-Worker"]


async def begin(http, url, rollout="o", expected=0):
    return await post(http, url, "/rollouts", run="r", rollout=rollout, expected=expected)


async def test_live_trajectories_go_on_on_another_layout_and_none_is_lost_or_doubled():
    async with fleet_stack((4, 4)) as f, aiohttp.ClientSession() as http:
        assert (await begin(http, f.url))["layout"] == [1] * 8
        done: list[str] = []

        async def live(number):
            ids = list(range(number * 50, number * 50 + 50))
            for turn in range(5):
                ids, _ = await step(http, f.url, f"t{number}", ids, final=turn == 4)
                await asyncio.sleep(0.02)
            done.append(f"t{number}")

        players = [asyncio.create_task(live(n)) for n in range(12)]
        await asyncio.sleep(0.05)
        seen: list[int] = []
        change = asyncio.create_task(
            post(http, f.url, "/fleet/apply", layout=[4, 2, 2], who="x", why="test", wait=True)
        )
        while not change.done():
            seen.append(f.up.reallocator.serving_gpus)
            await asyncio.sleep(0.005)
        await asyncio.gather(*players)
        told = change.result()
        steps = f.spans.of("chat")
    assert sorted(done) == sorted(f"t{n}" for n in range(12))
    finished = [
        (s["attributes"]["gen_ai.conversation.id"], s["attributes"]["heddle.step.index"])
        for s in steps
        if not s.get("error")
    ]
    assert sorted(finished) == sorted((f"t{n}", i) for n in range(12) for i in range(5))
    assert (told["state"], told["after"], told["waves"]) == ("done", [4, 2, 2], 2)
    assert min(seen) >= told["floor_gpus"] == 4


async def test_every_phase_is_a_span_and_the_leases_follow_the_gpus():
    async with fleet_stack((4,), launch_s=5.0) as f, aiohttp.ClientSession() as http:
        await begin(http, f.url)
        await post(http, f.url, "/fleet/apply", layout=[4], who="x", why="why not", wait=True)
        await post(http, f.url, "/rollouts/o/end", run="r")
        (story,) = f.spans.of("heddle.reallocate")
        phases = f.spans.of("heddle.regroup")
        drains, leases = f.spans.of("heddle.drain"), f.spans.of("heddle.worker")
        known = await fleet_of(http, f.url)
    said = story["attributes"]
    assert (said["heddle.layout.before"], said["heddle.layout"]) == ("1,1,1,1", "4")
    assert said["heddle.because"] == "why not"
    assert said["heddle.wake_s"] >= 5.0
    assert len(drains) == 4
    names = [(p["attributes"]["heddle.phase"], p["attributes"]["heddle.worker.id"]) for p in phases]
    assert sorted(names[:4]) == [("stop", f"w{i}") for i in range(4)]
    assert sorted(names[4:8]) == [("freed", f"w{i}") for i in range(4)]
    assert names[8:] == [(n, "w4") for n in ("launch", "weights", "flush", "rejoin")]
    assert all(p["parent_span_id"] == story["span_id"] for p in [*phases, *drains])
    one = [p for p in phases if p["attributes"]["heddle.worker.id"] == "w4"]
    assert all(a["end_ns"] == b["start_ns"] for a, b in itertools.pairwise(one))
    lease = {s["attributes"]["heddle.worker.id"]: s for s in leases}
    assert lease["w4"]["start_ns"] == one[0]["start_ns"]
    assert max(lease[f"w{i}"]["end_ns"] for i in range(4)) <= lease["w4"]["start_ns"]
    (again,) = known["reallocations"][:1]
    assert [p["name"] for p in again["phases"] if p["worker"] == "w4"] == [n for n, _ in names[8:]]


async def test_gpus_stand_still_from_the_last_token_to_the_flush_as_the_engines_tell_it(
    monkeypatch,
):
    asked: list[tuple[str, str]] = []
    answers = EngineApp.__call__

    async def noting(self, scope, receive, send):
        asked.append((self.config.worker_id, scope.get("path", "")))
        await answers(self, scope, receive, send)

    monkeypatch.setattr(EngineApp, "__call__", noting)
    async with fleet_stack((2,)) as f, aiohttp.ClientSession() as http:
        await begin(http, f.url)
        body = {
            "input_ids": [1, 2],
            "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True},
        }
        last = asyncio.create_task(http.post(f.url + "/generate", json=body))
        while not any(w.running for w in f.up.fleet.workers.values()):
            await asyncio.sleep(0.002)
        change = asyncio.create_task(
            post(http, f.url, "/fleet/apply", layout=[2], who="x", wait=True, floor=0.0)
        )
        async with await last as reply:
            meta = (await reply.json())["meta_info"]
        told = await change
        await step(http, f.url, "t", [1, 2, 3])
        drains = [p for p in told["phases"] if p["name"] == "drain"]
    # One of the two was idle all the while; the other from its last token on.
    began_ns = min(p["end_ns"] for p in drains)
    assert any(p["start_ns"] == began_ns for p in drains)
    finished_ns = round(meta["request_finished_ts"] * 1e9)
    assert max(p["end_ns"] for p in drains) == pytest.approx(max(finished_ns, began_ns), abs=1e6)
    # Nothing but polls stands between the flush and the first step.
    of_new = [path for worker, path in asked if worker == "w2" and path != "/v1/loads"]
    assert of_new[of_new.index("/generate") - 1] == "/flush_cache"


@pytest.mark.parametrize(
    ("finished_s", "through_s"), [(None, 7.0), (8.5, 8.5), (3.0, 7.0), (99.0, 10.0)]
)
def test_an_engines_clock_is_believed_where_it_can_be_right(finished_s, through_s):
    # Released at 5 s, two seconds of work, its answer was here at 10 s.
    step = SimpleNamespace(released_ns=5 * 10**9)
    usage = Usage(queue_s=0.5, prefill_s=0.5, decode_s=1.0, finished_s=finished_s)
    assert Step.through_ns(step, 10 * 10**9, usage) == through_s * 1e9
    assert Step.through_ns(step, 10 * 10**9, Usage()) == 10 * 10**9
    assert Step.through_ns(step, 10 * 10**9, None) == 10 * 10**9


async def test_engines_that_do_not_come_up_are_undone_and_the_old_layout_serves_again():
    async with fleet_stack((2, 2)) as f, aiohttp.ClientSession() as http:
        await begin(http, f.url)
        f.launcher.refuses.add(2)
        await post(http, f.url, "/workers/w1/drain", why="a fan is loud")
        for nothing in ([], [0], [2, -2]):
            said = await post(http, f.url, "/fleet/apply", status=400, layout=nothing)
            assert "at least one engine" in said["error"]
        told = await post(http, f.url, "/fleet/apply", layout=[2, 2], who="x", wait=True)
        _, worker = await step(http, f.url, "t", [1, 2, 3])
        known = await fleet_of(http, f.url)
    assert (told["state"], told["after"]) == ("rolled back", [1, 1, 1, 1])
    assert "exited with 1" in told["error"]
    assert worker in {"w0", "w2", "w3"}
    # What somebody drained by hand stays drained.
    assert {w["worker_id"]: w["draining"] for w in known["workers"] if not w["takes"]} == {
        "w1": "a fan is loud"
    }
    assert {p["name"] for p in told["phases"]} >= {"stop", "launch", "back"}


async def test_a_worker_that_never_empties_takes_its_steps_back():
    async with fleet_stack((2,)) as f, aiohttp.ClientSession() as http:
        await begin(http, f.url)
        f.up.reallocator.drain_s = 1.0
        endless = asyncio.create_task(step(http, f.url, "t", [1, 2], tokens=20_000))
        await asyncio.sleep(0.05)
        told = await post(http, f.url, "/fleet/apply", layout=[2], who="x", wait=True, floor=0.0)
        takes = [w.takes for w in f.up.fleet.workers.values()]
        endless.cancel()
    assert told["state"] == "rolled back"
    assert "still running after 1 s: w" in told["error"]
    assert takes == [True, True]


async def test_while_nobody_takes_steps_they_are_held_and_not_refused():
    async with fleet_stack((2,), launch_s=10.0) as f, aiohttp.ClientSession() as http:
        await begin(http, f.url)
        change = asyncio.create_task(
            post(http, f.url, "/fleet/apply", layout=[2], who="x", wait=True)
        )
        while f.up.reallocator.serving_gpus:
            await asyncio.sleep(0.002)
        _, worker = await step(http, f.url, "t", [1, 2, 3])
        await change
    assert worker == "w2"


async def test_a_drained_worker_loses_its_trajectories_in_their_tools_and_comes_back():
    async with fleet_stack((2,)) as f, aiohttp.ClientSession() as http:
        await begin(http, f.url)
        ids, home = await step(http, f.url, "t", list(range(30)))
        await post(http, f.url, f"/workers/{home}/drain", why="a fan is loud")
        while f.up.loop.trajectories["r/t"].worker == home:
            await asyncio.sleep(0.005)
        _, then = await step(http, f.url, "t", [*ids, 1, 2], final=True)
        listed = {w["worker_id"]: w for w in (await fleet_of(http, f.url))["workers"]}
        back = await post(http, f.url, f"/workers/{home}/resume")
        moves = f.spans.of("heddle.move")
        no_such = await post(http, f.url, "/workers/w9/drain", status=400)
    assert then != home
    assert (listed[home]["state"], listed[home]["draining"]) == ("draining", "a fan is loud")
    assert back["draining"] == ""
    assert moves[0]["attributes"]["heddle.move.hit_tokens"] >= 64
    assert no_such["error"] == "no worker 'w9'; there are: w0, w1"


async def test_engines_sleep_where_memory_allows_and_the_way_back_is_a_waking():
    async with fleet_stack((2,), host_bytes=(10**12,)) as f, aiohttp.ClientSession() as http:
        await begin(http, f.url)
        there = await post(http, f.url, "/fleet/apply", layout=[2], who="x", wait=True)
        slept = (await fleet_of(http, f.url))["asleep"]
        preview = await post(http, f.url, "/fleet/plan", layout=[1, 1])
        back = await post(http, f.url, "/fleet/apply", layout=[1, 1], who="x", wait=True)
        log = list(f.launcher.log)
        _, worker = await step(http, f.url, "t", [1, 2, 3])
    assert {p["name"] for p in there["phases"]} >= {"sleep", "launch"}
    assert len(slept) == 2
    (wave,) = preview["waves"]
    assert {p["method"] for group in wave for p in group["starts"]} == {"wake"}
    assert {p["name"] for p in back["phases"]} >= {"sleep", "wake"}
    assert [what for what, _ in log].count("end") == 0
    assert worker in {"w3", "w4"}


async def test_engines_are_stopped_with_the_reason_where_their_weights_do_not_fit():
    async with fleet_stack((2,), host_bytes=(40 * 10**9,)) as f, aiohttp.ClientSession() as http:
        await begin(http, f.url)
        before = await fleet_of(http, f.url)
        told = await post(http, f.url, "/fleet/apply", layout=[2], who="x", wait=True)
        after = await fleet_of(http, f.url)
    # One of the two fits, the other is told why it does not.
    assert sorted(p["name"] for p in told["phases"] if p["name"] in ("sleep", "stop")) == [
        "sleep",
        "stop",
    ]
    assert [w["sleep"] for w in before["workers"]] == ["", ""]
    assert "2 sleeping engines need 59 GB of host memory" in after["workers"][0]["sleep"]


async def test_a_trainer_that_owns_the_weights_keeps_the_layout():
    async with fleet_stack((2,)) as f, aiohttp.ClientSession() as http:
        await begin(http, f.url)
        said = await post(http, f.url, "/fleet/weights", owner="trainer")
        refused = await post(http, f.url, "/fleet/apply", status=409, layout=[2], who="x")
        preview = await post(http, f.url, "/fleet/plan", layout=[2])
        await post(http, f.url, "/rollouts/o/end", run="r")
        await post(http, f.url, "/switches", allocation="fixed-2", who="x")
        kept = await begin(http, f.url, "o2")
    assert "the trainer owns the weight-update group" in said["unavailable"]
    assert refused["error"] == said["unavailable"] == preview["unavailable"]
    assert (preview["available"], kept["layout"]) == (False, [1, 1])
    assert said["unavailable"] in kept["because"]


async def test_new_engines_serve_the_weights_of_the_versioned_path_before_any_step():
    async with fleet_stack((2,)) as f, aiohttp.ClientSession() as http:
        await begin(http, f.url)
        nothing = await post(http, f.url, "/fleet/weights", status=400, owner="disk")
        await post(http, f.url, "/fleet/weights", owner="disk", path="step-7", version="7")
        told = await post(http, f.url, "/fleet/apply", layout=[2], who="x", wait=True)
        engine = f.up.fleet.engine(f.up.fleet.workers["w2"].url)
        version = await engine.weight_version()
        weights_s = f.up.reallocator.costs.measured()[2, "weights"]
    assert "needs the path" in nothing["error"]
    assert (told["state"], version) == ("done", "7")
    assert weights_s[0] > 0
    assert weights_s[1] == 1


async def test_weights_that_differ_are_no_layout():
    async with fleet_stack((2,)) as f, aiohttp.ClientSession() as http:
        await begin(http, f.url)
        for worker in f.up.fleet.workers.values():
            await worker.wire.load_weights("by-hand", "by-hand")
        told = await post(http, f.url, "/fleet/apply", layout=[2], who="x", wait=True)
    assert told["state"] == "rolled back"
    assert "serves weights 'default', the fleet 'by-hand'" in told["error"]


async def test_a_fleet_without_engines_can_be_laid_out_before_its_first_rollout():
    async with fleet_stack((4,)) as f, aiohttp.ClientSession() as http:
        preview = await post(http, f.url, "/fleet/plan", expected=8, run="r")
        told = await post(http, f.url, "/fleet/apply", layout=[2, 2], who="x", wait=True)
        assert f.degrees() == [2, 2]
        await post(http, f.url, "/switches", allocation="fixed-2", who="x")
        begun = await begin(http, f.url)
    assert (preview["before"], preview["change"]) == ([], True)
    assert (told["state"], told["after"]) == ("done", [2, 2])
    assert (begun["layout"], begun["reallocated"]) == ([2, 2], False)


async def test_a_preview_changes_nothing_and_a_second_change_waits_its_turn():
    async with fleet_stack((8,), launch_s=5.0) as f, aiohttp.ClientSession() as http:
        await begin(http, f.url)
        preview = await post(http, f.url, "/fleet/plan", layout=[4, 4], expected=64)
        assert f.degrees() == [1] * 8
        first = await post(http, f.url, "/fleet/apply", layout=[4, 4], who="x")
        second = await post(http, f.url, "/fleet/apply", status=409, layout=[8], who="x")
        while f.up.reallocator.stories[-1].state == "running":
            await asyncio.sleep(0.01)
        too_large = await post(http, f.url, "/fleet/plan", status=400, layout=[8, 8])
    assert (preview["before"], preview["layout"]) == ([1] * 8, [4, 4])
    assert [len(g["drains"]) for g in preview["waves"][0]] == [4, 4]
    assert preview["cost_s"] > 30
    assert preview["gain_s"] is not None
    assert first["state"] == "running"
    assert "another reallocation is under way" in second["error"]
    assert too_large["error"].startswith("2x8 does not fit nodes of 8 GPUs")


@pytest.mark.parametrize(("host_gb", "fits"), [(33, 1), (66, 2), (32, 0)])
def test_one_copy_of_the_weights_a_sleeper_must_fit_beside_a_tenth_of_the_memory(host_gb, fits):
    blocks = Blocks({}, weight_bytes=29_500_000_000, host_bytes=[host_gb * 10**9])
    assert blocks.no_room(0, fits) == ""
    assert "host memory" in blocks.no_room(0, fits + 1)
