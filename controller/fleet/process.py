"""How is one engine subprocess started so that it never outlives the controller?

Own process group (its children go with it) and PR_SET_PDEATHSIG on Linux (it dies with the
controller, even at kill -9). Its output goes to a file; errors quote the end of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Final

STOP_S: Final = 5.0
TAIL_LINES: Final = 5
_PR_SET_PDEATHSIG: Final = 1
# Loaded before any fork: a dlopen between fork and exec may deadlock.
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
# A child dies with the thread that started it: with this one, which ends with the interpreter.
_STARTER: Final = ThreadPoolExecutor(1, "heddle-start")
_LOOKERS: Final = ThreadPoolExecutor(64, "heddle-look")
# Engines are not behind the proxy of the environment.
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
HEALTH_S: Final = 2.0


def die_with_parent() -> None:
    """For `preexec_fn`: the child ends with the process that started it."""
    if hasattr(_LIBC, "prctl"):
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port(host: str) -> int:
    """One that nobody listens on there."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


async def answers(url: str) -> bool:
    """Whether an engine answers at that address that it serves. In a thread of its own: on a loop
    that carries 500 streams a look takes so many turns that it runs into its own timeout, and one
    that listens before it answers keeps its thread so long."""
    return await asyncio.get_running_loop().run_in_executor(_LOOKERS, _healthy, url)


def _healthy(url: str) -> bool:
    try:
        with _DIRECT.open(f"{url}/health", timeout=HEALTH_S) as reply:
            return reply.status == 200
    except (OSError, HTTPException):
        return False


async def begun(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> EngineProcess:
    """The command as a process; the loop does not wait until it runs (100 ms on a busy machine)."""
    making = _STARTER.submit(EngineProcess, command, log, environment)
    try:
        return await asyncio.wrap_future(making)
    except asyncio.CancelledError:
        making.add_done_callback(_killed)
        raise


def _killed(making: Future[EngineProcess]) -> None:
    """Nobody waits for it any more; one that was never begun is nothing to kill."""
    if not making.cancelled() and making.exception() is None:
        making.result().kill()


class EngineProcess:
    """One running command; `log` is where its output goes."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
                # PDEATHSIG must be set in the child; no lock is taken between fork and exec.
                preexec_fn=die_with_parent,
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def tail(self) -> str:
        """The last lines it wrote, in one line."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text("utf-8", "replace").strip().splitlines()
            return " | ".join(line.strip() for line in lines[-TAIL_LINES:]) or "it wrote nothing"
        return "its log is gone"

    def kill(self) -> None:
        """End the whole group at once."""
        self._signal(signal.SIGKILL)

    async def stop(self, within_s: float = STOP_S) -> None:
        """Ask the whole group to end, then make it."""
        self._signal(signal.SIGTERM)
        deadline = asyncio.get_running_loop().time() + within_s
        while self.exit_code is None and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        self.kill()
        await asyncio.to_thread(self._process.wait)

    def _signal(self, number: int) -> None:
        # The group's id is the leader's; once the leader is reaped and no child is left it is gone.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
