"""One contract for whoever launches engines: given addresses, subprocesses here, Ray actors."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from heddle.controller.core.regroup import Place
from heddle.controller.errors import LaunchFailed
from heddle.controller.fleet.local import LocalLauncher
from heddle.controller.fleet.ray_pool import RayLauncher
from heddle.controller.fleet.static import StaticLauncher
from heddle.controller.fleet.template import Template

ENGINE = str(Path(__file__).parents[1] / "controller" / "tiny_engine.py")
COMMAND = (sys.executable, ENGINE, "--host", "{host}", "--port", "{port}", "--tp", "{degree}")
TEMPLATE = Template(
    command=(*COMMAND, "--name", "{worker_id}"),
    flags={2: ("--mem-fraction-static", "0.8")},
    env={0: {"EVERY": "1"}, 1: {"DEGREE": "1"}, 2: {"DEGREE": "2", "NO_GPU_FOR": "none"}},
)
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(400)]


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
async def launcher(request, tmp_path):
    if request.param == "ray":
        ray, _ = request.getfixturevalue("cluster")
        made = RayLauncher(TEMPLATE, tmp_path, gpus=12, address=ray.address)
    else:
        made = LocalLauncher(TEMPLATE, tmp_path, gpus=12, first_port=0)
    await made.open()
    yield made
    await made.stop()


def asked(url, path="/"):
    with urllib.request.urlopen(url + path, timeout=10) as reply:
        return json.loads(reply.read())


def told(launcher):
    """Queues of what the launcher says by itself."""
    ended, returned = asyncio.Queue(), asyncio.Queue()
    launcher.ended, launcher.returned = ended.put, returned.put
    return ended, returned


async def replaced(ended, returned):
    async with asyncio.timeout(120):
        return await ended.get(), await returned.get()


async def test_engines_are_started_by_template_with_the_flags_and_environment_of_their_degree(
    launcher,
):
    assert sum(launcher.nodes) == 12
    two, one = Place(0, 2, 2), Place(len(launcher.nodes) - 1, 0, 1)
    found = await asyncio.gather(launcher.start("a", two), launcher.start("b", one))
    said = [asked(started.url) for started in found]
    assert [started.degree for started in found] == [2, 1]
    assert said[0]["argv"][-4:] == ["--name", "a", "--mem-fraction-static", "0.8"]
    assert said[1]["argv"][-4:] == ["--tp", "1", "--name", "b"]
    assert [s["env"]["DEGREE"] for s in said] == ["2", "1"]
    assert [s["env"]["EVERY"] for s in said] == ["1", "1"]
    assert [len(s["env"]["CUDA_VISIBLE_DEVICES"].split(",")) for s in said] == [2, 1]
    await launcher.end("a")
    await launcher.end("a")
    assert not psutil.pid_exists(said[0]["pid"])
    assert asked(found[1].url)["pid"] == said[1]["pid"]
    assert [h.state for h in launcher.health().values()] == ["serving"]


async def test_an_engine_that_ends_by_itself_is_replaced_and_everybody_is_told(launcher):
    ended, returned = told(launcher)
    started = await launcher.start("a", Place(0, 0, 1))
    before = asked(started.url)
    psutil.Process(before["pid"]).kill()
    lost, back = await replaced(ended, returned)
    after = asked(back.url)
    assert (lost, back.worker_id, back.degree) == ("a", "a", 1)
    assert after["pid"] != before["pid"]
    assert after["argv"][4:] == before["argv"][4:]
    assert launcher.health()["a"].restarts == 1


async def test_an_engine_that_does_not_come_up_says_the_end_of_its_log_and_leaves_nothing(
    launcher, monkeypatch
):
    monkeypatch.setitem(TEMPLATE.env[2], "NO_GPU_FOR", "2")
    place = Place(0, 0, 2)
    with pytest.raises(LaunchFailed, match="worker a exited with 1; it last said: no such model"):
        await launcher.start("a", place)
    assert launcher.health() == {}
    monkeypatch.setitem(TEMPLATE.env[2], "NO_GPU_FOR", "none")
    assert (await launcher.start("a", place)).degree == 2


async def test_engines_that_are_given_are_taken_as_they_are():
    launcher = StaticLauncher()
    await launcher.open()
    with pytest.raises(LaunchFailed, match="worker a cannot be started: the engines are not start"):
        await launcher.start("a", Place(0, 0, 1))
    assert (launcher.nodes, launcher.health()) == ((), {})
    await launcher.stop()


@pytest.mark.ray
async def test_an_actor_and_a_node_that_are_killed_are_survived(cluster, tmp_path):
    ray, nodes = cluster
    launcher = RayLauncher(TEMPLATE, tmp_path, gpus=12, address=ray.address)
    ended, returned = told(launcher)
    await launcher.open()
    try:
        started = await launcher.start("a", Place(2, 0, 2))
        engine = psutil.Process(asked(started.url)["pid"])
        engine.parent().kill()
        lost, again = await replaced(ended, returned)
        # Where nobody takes up orphans, a dead one stays behind as a zombie.
        assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE
        on = next(n for n in nodes if n.node_id == launcher._cluster[2].id)
        ray.remove_node(on, allow_graceful=False)
        _, elsewhere = await replaced(ended, returned)
        assert (lost, again.degree) == ("a", 2)
        assert asked(elsewhere.url)["env"]["DEGREE"] == "2"
        assert launcher.health()["a"].restarts >= 2
        # The dead node's block, given up and asked for again: another node's GPUs will do.
        await launcher.end("a")
        assert asked((await launcher.start("b", Place(2, 0, 2))).url)["env"]["DEGREE"] == "2"
    finally:
        await launcher.stop()


async def test_a_cluster_that_is_not_there_is_said_at_once(tmp_path):
    launcher = RayLauncher(TEMPLATE, tmp_path, gpus=1, address="127.0.0.1:9")
    with pytest.raises(LaunchFailed, match=r"no Ray cluster answers at 127.0.0.1:9: .*ray start"):
        await launcher.open()
