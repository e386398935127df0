"""A Ray cluster of this machine: what is asked of Ray, and what is said when it does not come."""

from __future__ import annotations

import asyncio
import json
import os
import socket

import psutil
import pytest

from heddle.controller.errors import LaunchFailed
from heddle.controller.fleet.ray_node import AGENTS, HOST, RayNode, own_token, unreachable

NODE = """
import json, os, socket, sys, time
from pathlib import Path

class Node:
    def __init__(self, params, head, shutdown_at_exit, spawn_reaper):
        told = {"params": params, "pid": os.getpid(), "head": head, "reaper": spawn_reaper}
        told["token"] = os.environ.get("RAY_AUTH_TOKEN", "")
        told["stats"] = os.environ["RAY_USAGE_STATS_ENABLED"]
        said = Path(__file__).with_name("said.json")
        said.with_suffix(".new").write_text(json.dumps(told))
        self.start_api_server(include_dashboard=False, raise_on_failure=False)
        if params["num_gpus"] == 13:
            sys.exit("no room for a store")
        said.with_suffix(".new").replace(said)
        self.listener = socket.create_server(("127.0.0.1", params["gcs_server_port"]))

    def start_api_server(self, **_):
        sys.exit("a dashboard is started")

    def dead_processes(self):
        return [("raylet", None)] if Path(__file__).with_name("dead").exists() else []
"""


@pytest.fixture
def ray(tmp_path, monkeypatch):
    """A package of Ray's name whose node says what was asked of it."""
    private = tmp_path / "path" / "ray" / "_private"
    private.mkdir(parents=True)
    (private.parent / "__init__.py").touch()
    (private / "__init__.py").touch()
    (private / "node.py").write_text(NODE)
    (private / "parameter.py").write_text("RayParams = dict\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    monkeypatch.setattr(os, "environ", {**kept, "PYTHONPATH": str(tmp_path / "path")})
    return private


async def test_a_head_without_dashboard_listens_on_loopback_with_a_token_and_ends_with_us(
    ray, tmp_path
):
    node = RayNode(3, tmp_path / "logs" / "ray.log")
    await node.up()
    said = json.loads((ray / "said.json").read_text())
    params = said["params"]
    assert node.address == f"{HOST}:{params['gcs_server_port']}"
    assert (params["node_ip_address"], params["num_gpus"]) == ("127.0.0.1", 3)
    assert not params["include_dashboard"]
    assert not params["include_log_monitor"]
    # The raylet waits for ports that agents choose themselves, and then ends.
    assert len({params[name] for name in (*AGENTS, "gcs_server_port")}) == len(AGENTS) + 1
    assert (said["head"], said["reaper"], said["stats"]) == (True, True, "0")
    assert said["token"] == os.environ["RAY_AUTH_TOKEN"]
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    await node.stop()
    assert not psutil.pid_exists(said["pid"])
    assert isinstance(unreachable(node.address), ConnectionRefusedError)


async def test_a_head_that_does_not_come_up_says_the_end_of_its_log(ray, tmp_path):
    with pytest.raises(LaunchFailed, match=r"started here; it last said: .*no room for a store$"):
        await RayNode(13, tmp_path / "ray.log").up()


async def test_a_head_of_which_a_process_ended_ends_and_names_it(ray, tmp_path):
    node = RayNode(1, tmp_path / "ray.log")
    await node.up()
    (ray / "dead").touch()
    child = psutil.Process(json.loads((ray / "said.json").read_text())["pid"])
    while child.status() != psutil.STATUS_ZOMBIE:
        await asyncio.sleep(0.02)
    assert "ended by itself: raylet" in (tmp_path / "ray.log").read_text()
    await node.stop()


@pytest.mark.parametrize(("set_already", "made"), [({}, True), ({"RAY_AUTH_MODE": "none"}, False)])
def test_a_token_is_made_unless_somebody_chose_the_mode(monkeypatch, set_already, made):
    monkeypatch.setattr(os, "environ", dict(set_already))
    own_token()
    first = os.environ.get("RAY_AUTH_TOKEN", "")
    own_token()
    assert (len(first) == 64) is made
    assert os.environ.get("RAY_AUTH_TOKEN", "") == first


def test_an_address_without_a_port_is_rays_own_matter_and_others_are_tried_at_once():
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        assert unreachable(f"{HOST}:{port}") is None
    assert isinstance(unreachable(f"{HOST}:{port}"), OSError)
    assert unreachable("auto") is None
