"""How is a Ray cluster of this machine alone started, so that a busy one brings it up too?

ray_head.py as a child that ends with the controller. Its agents get ports of our choice: for
ports of their own choice the raylet waits 15 s and then ends itself (ray issue 65983), while their
imports take 20 s beside other work.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import Final

from heddle.controller.errors import LaunchFailed
from heddle.controller.fleet.process import EngineProcess, free_port

HOST: Final = "127.0.0.1"
START_S: Final = 120.0
"""Ray itself gives its raylet 30 s; two busy cores import Python for as long before."""
LOOK_S: Final = 0.1
REACH_S: Final = 3.0
STORE_BYTES: Final = 100 << 20
"""Of Ray's object store, which nothing here uses."""
MODE: Final = "RAY_AUTH_MODE"
MANY_MACHINES: Final = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Off, as Ray has it where firewalls ask: servers listen on loopback, and drivers look there."""
SMALL: Final = {
    "include_dashboard": False, "include_log_monitor": False, "no_monitor": True,
    "object_store_memory": STORE_BYTES,
}  # fmt: skip
"""Without the Python processes that a fleet has no use for."""
AGENTS: Final = (
    "metrics_export_port",
    "metrics_agent_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)


class RayNode:
    """One cluster of one node; `address` is where drivers of this machine reach it."""

    def __init__(self, gpus: int, log: Path) -> None:
        own_token()
        os.environ.setdefault(MANY_MACHINES, "0")
        port, *agents = (free_port(HOST) for _ in range(1 + len(AGENTS)))
        self.address = f"{HOST}:{port}"
        log.parent.mkdir(parents=True, exist_ok=True)
        settings = {**SMALL, "node_ip_address": HOST, "gcs_server_port": port, "num_gpus": gpus}
        settings |= zip(AGENTS, agents, strict=True)
        words = [sys.executable, "-m", "heddle.controller.fleet.ray_head", json.dumps(settings)]
        self._process = EngineProcess(words, log)

    async def up(self) -> None:
        """Return once its first server answers; LaunchFailed with the end of its log."""
        deadline = asyncio.get_running_loop().time() + START_S
        while await asyncio.to_thread(unreachable, self.address):
            if self._process.exit_code is not None:
                message = f"Ray cannot be started here; it last said: {self._process.tail()}"
                raise LaunchFailed(message)
            if asyncio.get_running_loop().time() > deadline:
                said = self._process.tail()
                message = f"Ray did not start here within {START_S:g} s; it last said: {said}"
                raise LaunchFailed(message)
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        """End it with everything that it started, at once: asked, it would drain for 30 s."""
        await self._process.stop(within_s=0.0)


def own_token() -> None:
    """A cluster of ours is nobody else's, unless whoever set the mode wants it so. A driver that
    comes by an address sends no token before it is told to, and Ray reads this when imported."""
    if MODE not in os.environ:
        os.environ[MODE] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def unreachable(address: str) -> OSError | None:
    """Why nobody can listen at HOST:PORT, at once: Ray itself would wait for 90 s."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return None
    try:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()
    except OSError as error:
        return error
    return None
