"""How is a Ray cluster of this machine alone started, so that a busy one brings it up too?

`ray start` as a child that ends with the controller. Its agents get ports of our choice: for
ports of their own choice the raylet waits 15 s and then ends itself (ray issue 65983), while their
imports take 20 s beside other work. No dashboard, monitor or log monitor: three Python processes
less.
"""

from __future__ import annotations

import asyncio
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
AGENTS: Final = (
    "--metrics-export-port",
    "--dashboard-agent-grpc-port",
    "--dashboard-agent-listen-port",
    "--runtime-env-agent-port",
)


class RayNode:
    """One cluster of one node; `address` is where drivers of this machine reach it."""

    def __init__(self, gpus: int, log: Path) -> None:
        own_token()
        port, *agents = (free_port("") for _ in range(1 + len(AGENTS)))
        self.address = f"{HOST}:{port}"
        log.parent.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
        words += ["--port", str(port), "--num-gpus", str(gpus), "--disable-usage-stats"]
        words += ["--include-dashboard", "false", "--include-log-monitor", "false", "--no-monitor"]
        words += ["--object-store-memory", str(STORE_BYTES)]
        for name, agent in zip(AGENTS, agents, strict=True):
            words += [name, str(agent)]
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
