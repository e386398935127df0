"""How does a block of GPUs become an engine subprocess on this machine?

One process a worker from a command template. Ports count up from the first by GPU, or are any free
ones when it is 0. One that ends by itself is started again at its address, later each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.controller.core.regroup import Place, nodes_of
from heddle.controller.errors import LaunchFailed
from heddle.controller.fleet.launcher import BACK_OFF_S, STEADY_S, Keeping, Kept, Started
from heddle.controller.fleet.process import EngineProcess, answers, begun, free_port
from heddle.controller.fleet.template import Template

HEALTH_EVERY_S: Final = 0.05
WATCH_EVERY_S: Final = 0.2
HOST: Final = "127.0.0.1"


@dataclass(slots=True)
class _Kept(Kept):
    """One process."""

    started: Started
    place: Place
    process: EngineProcess


class LocalLauncher(Keeping[_Kept]):
    """Subprocesses of this one; their GPUs are numbered through."""

    kind = "local"
    why_not = ""

    def __init__(
        self,
        template: Template,
        log_dir: Path,
        *,
        gpus: int,
        first_port: int = 30000,
        ready_s: float = 60.0,
    ) -> None:
        super().__init__()
        self.nodes = nodes_of(gpus)
        self._template = template
        self._log_dir = log_dir
        self._first_port = first_port
        self._ready_s = ready_s

    async def open(self) -> None:
        """This machine is here."""

    async def start(self, worker_id: str, place: Place) -> Started:
        """A process of its own, once it is healthy."""
        port = self._port(worker_id, place)
        started = Started(worker_id=worker_id, url=f"http://{HOST}:{port}", degree=place.degree)
        process = await self._process(worker_id, place, port)
        return await self._hold(worker_id, _Kept(started, place, process))

    def _port(self, worker_id: str, place: Place) -> int:
        if not self._first_port:
            return free_port(HOST)
        port = self._first_port + sum(self.nodes[: place.node]) + place.first
        if port in {int(k.started.url.rpartition(":")[2]) for k in self._kept.values()}:
            return free_port(HOST)  # an engine that sleeps on the same GPUs keeps it
        if not _is_free(port):
            message = f"port {port} for worker {worker_id} is in use; choose another --first-port"
            raise LaunchFailed(message)
        return port

    async def _process(self, worker_id: str, place: Place, port: int) -> EngineProcess:
        before = sum(self.nodes[: place.node])
        here = Place(0, before + place.first, place.degree)
        command = self._template.filled(worker_id, here, HOST, port)
        environment = self._template.environment(here, gpus=True)
        self._log_dir.mkdir(parents=True, exist_ok=True)
        try:
            return await begun(command, self._log_dir / f"{worker_id}.log", environment)
        except OSError as error:
            message = f"cannot start {command[0]!r} for worker {worker_id}: {error}"
            raise LaunchFailed(message) from error

    async def _let_go(self, kept: _Kept) -> None:
        await kept.process.stop()

    async def _begin(self, kept: _Kept) -> Started:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._ready_s
        while not await answers(kept.started.url):
            problem = ""
            if kept.process.exit_code is not None:
                problem = f"exited with {kept.process.exit_code}"
            elif loop.time() > deadline:
                problem = f"was not healthy within {self._ready_s:g} s"
            if problem:
                message = (
                    f"the engine of worker {kept.started.worker_id} {problem}; "
                    f"it last said: {kept.process.tail()}"
                )
                raise LaunchFailed(message)
            await asyncio.sleep(HEALTH_EVERY_S)
        kept.health.state = "serving"
        return kept.started

    async def _keep(self, kept: _Kept) -> None:
        loop = asyncio.get_running_loop()
        failed, since_s = 0, loop.time()
        while True:
            if kept.process.exit_code is None:
                await asyncio.sleep(WATCH_EVERY_S)
                continue
            kept.health.said = kept.process.tail()
            kept.health.state = "waiting"
            await self.ended(kept.started.worker_id)
            failed = 0 if loop.time() - since_s > STEADY_S else failed
            await asyncio.sleep(BACK_OFF_S[min(failed, len(BACK_OFF_S) - 1)])
            failed += 1
            kept.health.restarts += 1
            with contextlib.suppress(LaunchFailed):
                port = int(kept.started.url.rpartition(":")[2])
                kept.process = await self._process(kept.started.worker_id, kept.place, port)
                started = await self._begin(kept)
                since_s = loop.time()
                await self.returned(started)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a port of an engine that just ended (TIME_WAIT) counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
