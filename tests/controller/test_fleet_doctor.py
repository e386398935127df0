"""What doctor says of a fleet: what is wrong, and the fix."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
from app_server import TOKEN
from fleet_launcher import fleet_stack

from heddle.app import fleet_doctor
from heddle.app.settings import Settings


def told(url, tmp_path, **fleet):
    settings = Settings(data=tmp_path, controller=url, fleet=fleet)
    return list(fleet_doctor.problems(settings)), list(fleet_doctor.notes(settings))


async def test_a_healthy_fleet_has_no_problem_and_a_note_for_what_an_engine_lacks(tmp_path):
    async with fleet_stack((2,)) as f, aiohttp.ClientSession() as http:
        await begun(http, f.url)
        problems, notes = await asyncio.to_thread(told, f.url, tmp_path)
    assert problems == []
    assert any(note.startswith("w0, w1: it sends no spans of its own") for note in notes)
    assert any("stops engines and starts them anew: the memory of its node" in n for n in notes)


async def test_an_engine_that_is_gone_and_weights_that_differ_are_named(tmp_path):
    async with fleet_stack((4,)) as f, aiohttp.ClientSession() as http:
        await begun(http, f.url)
        await f.launcher.end("w1")
        await f.up.fleet.suspect(f.up.fleet.workers["w1"])
        await f.up.fleet.workers["w2"].wire.load_weights("other", "other")
        problems, _ = await asyncio.to_thread(told, f.url, tmp_path)
    (gone,) = [problem for problem in problems if problem.startswith("worker w1 at http://")]
    assert "does not answer" in gone
    assert (
        "engines do not agree on the weights (default: w0, w3; other: w2); restart those that "
        "differ"
    ) in problems


def test_a_ray_address_where_nobody_listens_and_memory_that_is_not_there_are_said(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nobody = f"http://127.0.0.1:{port}"
    (ray,), _ = told(nobody, tmp_path, launcher="ray", ray_address=f"127.0.0.1:{port}")
    (memory,), _ = told(nobody, tmp_path, host_memory_gb=1e6)
    assert ray.startswith(f"no Ray cluster answers at 127.0.0.1:{port}")
    assert "ray start --head" in ray
    assert memory.startswith("host_memory_gb is 1e+06 and this machine has")


async def begun(http, url):
    asked = {"run": "r", "rollout": "o"}
    head = {"Authorization": f"Bearer {TOKEN}"}
    async with http.post(f"{url}/heddle/v1/rollouts", json=asked, headers=head) as reply:
        assert reply.status == 200
