"""What doctor says of a fleet: what is wrong, and the fix."""

from __future__ import annotations

import asyncio
import socket
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace

import aiohttp
import pytest
from app_server import TOKEN
from fleet_launcher import fleet_stack

from heddle.app import fleet_doctor
from heddle.app.settings import Settings
from heddle.controller.fleet.launcher import Health


def told(url, tmp_path, *, ports=None, **fleet):
    settings = Settings(data=tmp_path, controller=url, fleet=fleet, ports=ports or {})
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
    with socket.create_server(("127.0.0.1", 0)) as taken:
        engines = taken.getsockname()[1]
        _, (alone, ports) = told(nobody, tmp_path, gpus=1, ports={"engines": engines})
    assert alone == (
        f"no controller answers at {nobody}, so no worker was asked; heddle up starts one"
    )
    assert ports == (
        f"of the engines' ports {engines} to {engines} in use: {engines}; heddle up takes others, "
        "heddle control needs --first-port"
    )
    assert ray.startswith(f"no Ray cluster answers at 127.0.0.1:{port}")
    assert "ray start --head" in ray
    assert memory.startswith("host_memory_gb is 1e+06 and this machine has")


async def begun(http, url):
    asked = {"run": "r", "rollout": "o"}
    head = {"Authorization": f"Bearer {TOKEN}"}
    async with http.post(f"{url}/heddle/v1/rollouts", json=asked, headers=head) as reply:
        assert reply.status == 200


class Engine(BaseHTTPRequestHandler):
    """Answers like an engine of another version, whose clock is 90 s ahead."""

    def do_GET(self):
        self.send_response_only(200)
        self.send_header("Date", formatdate(time.time() + 90, usegmt=True))
        self.end_headers()
        self.wfile.write(b'{"version": "0.4.6", "weight_version": "default"}')

    def log_message(self, format, *_):
        pass


@pytest.fixture
def stranger():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    with server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


async def test_a_clock_that_is_off_another_version_and_restarts_are_named(tmp_path, stranger):
    async with fleet_stack((2,)) as f, aiohttp.ClientSession() as http:
        await begun(http, f.url)
        f.up.fleet.workers["w1"].engine.url = stranger
        health = Health("serving", restarts=3, said="CUDA error: out of memory")
        f.launcher.health = lambda: {"w0": health, "w1": Health("serving")}
        problems, _ = await asyncio.to_thread(told, f.url, tmp_path)
    clock, versions, again = sorted(problems, key=lambda p: p.split()[1])
    assert again.startswith(
        "the engine of worker w0 was started again 3 times; it last said: CUDA error: out of memory"
    )
    assert f"the clock of {stranger} is +" in clock
    assert "set both by NTP" in clock
    assert "engines do not agree on the version of SGLang (0.4.6: w1; " in versions
    assert "restart those that differ" in versions


def test_a_full_disk_and_a_missing_ray_are_said_with_the_fix(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet_doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=0.3e9))
    monkeypatch.setattr(fleet_doctor, "find_spec", lambda _: None)
    (disk, ray), _ = told("http://127.0.0.1:9", tmp_path, launcher="ray")
    assert disk.startswith(f"{tmp_path} has 0.3 GB left; free some, move it with --data")
    assert ray.endswith("Ray is missing; pip install 'heddle-rollout[ray]'")


async def test_what_a_trainer_keeps_from_working_is_a_note(tmp_path):
    async with fleet_stack((2,)) as f, aiohttp.ClientSession() as http:
        await begun(http, f.url)
        f.up.reallocator.weights.declare("trainer", "", "")
        problems, notes = await asyncio.to_thread(told, f.url, tmp_path)
    assert problems == []
    assert notes[0].startswith("the layout cannot change: the trainer owns the weight-update group")
