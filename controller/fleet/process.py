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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

STOP_S: Final = 5.0
TAIL_LINES: Final = 5
_PR_SET_PDEATHSIG: Final = 1
# Loaded before any fork: a dlopen between fork and exec may deadlock.
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """For `preexec_fn`: the child ends with the process that started it."""
    if hasattr(_LIBC, "prctl"):
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port(host: str) -> int:
    """One that nobody listens on there."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


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

    async def stop(self, within_s: float = STOP_S) -> None:
        """Ask the whole group to end, then make it."""
        self._signal(signal.SIGTERM)
        deadline = asyncio.get_running_loop().time() + within_s
        while self.exit_code is None and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        self._signal(signal.SIGKILL)
        await asyncio.to_thread(self._process.wait)

    def _signal(self, number: int) -> None:
        # The group's id is the leader's; once the leader is reaped and no child is left it is gone.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
