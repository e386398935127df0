"""How does a layout become engine subprocesses on this machine?

One process a worker from a command template; a layout that is already there is kept, another one
replaces all of it. Ports count up from the first, or are any free ones when it is 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import aiohttp

from heddle.controller.core.types import Layout
from heddle.controller.errors import LaunchFailed
from heddle.controller.fleet.launcher import Started
from heddle.controller.fleet.process import EngineProcess

HEALTH_EVERY_S: Final = 0.05
HOST: Final = "127.0.0.1"


class LocalLauncher:
    """Subprocesses from a template with {port}, {degree} and {worker_id}."""

    can_reallocate = True

    def __init__(
        self,
        template: Sequence[str],
        log_dir: Path,
        *,
        first_port: int = 30000,
        ready_s: float = 60.0,
    ) -> None:
        self._template = list(template)
        self._log_dir = log_dir
        self._first_port = first_port
        self._ready_s = ready_s
        self._running: list[tuple[Started, EngineProcess]] = []

    async def place(self, layout: Layout) -> list[Started]:
        """Keep what is there if it is that layout and lives; else stop all and start anew."""
        alive = all(process.exit_code is None for _, process in self._running)
        if alive and [s.degree for s, _ in self._running] == list(layout.degrees):
            return [started for started, _ in self._running]
        await self.stop()
        try:
            for index, degree in enumerate(layout.degrees):
                self._start(index, degree)
            await asyncio.gather(*(self._ready(s, p) for s, p in self._running))
        except BaseException:
            await self.stop()
            raise
        return [started for started, _ in self._running]

    async def stop(self) -> None:
        """End every process started here."""
        running, self._running = self._running, []
        await asyncio.gather(*(process.stop() for _, process in running))

    def _start(self, index: int, degree: int) -> None:
        port = self._first_port + index if self._first_port else _free_port()
        worker = f"w{index}"
        if not _is_free(port):
            message = f"port {port} for worker {worker} is in use; choose another --first-port"
            raise LaunchFailed(message)
        values = {"{port}": str(port), "{degree}": str(degree), "{worker_id}": worker}
        command = [_filled(part, values) for part in self._template]
        self._log_dir.mkdir(parents=True, exist_ok=True)
        try:
            process = EngineProcess(command, self._log_dir / f"{worker}.log")
        except OSError as error:
            message = f"cannot start {command[0]!r} for worker {worker}: {error}"
            raise LaunchFailed(message) from error
        started = Started(worker_id=worker, url=f"http://{HOST}:{port}", degree=degree)
        self._running.append((started, process))

    async def _ready(self, started: Started, process: EngineProcess) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._ready_s
        timeout = aiohttp.ClientTimeout(total=2.0)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while not await _healthy(session, started.url):
                if process.exit_code is not None:
                    message = (
                        f"the engine of worker {started.worker_id} exited with "
                        f"{process.exit_code}; it last said: {process.tail()}"
                    )
                    raise LaunchFailed(message)
                if loop.time() > deadline:
                    message = (
                        f"the engine of worker {started.worker_id} was not healthy within "
                        f"{self._ready_s:g} s; it last said: {process.tail()}"
                    )
                    raise LaunchFailed(message)
                await asyncio.sleep(HEALTH_EVERY_S)


def _filled(part: str, values: dict[str, str]) -> str:
    for placeholder, value in values.items():
        part = part.replace(placeholder, value)
    return part


async def _healthy(session: aiohttp.ClientSession, url: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, ConnectionError):
        async with session.get(f"{url}/health") as response:
            return response.status == 200
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a port of an engine that just ended (TIME_WAIT) counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
