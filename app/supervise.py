"""How are the processes of a stack started, watched, and never left behind?

Each child leads a process group of its own and logs to a file. Stopping takes KILL_S and no more: a
request to all, then SIGKILL. The other half is in orphans.py: a process of ours that loses its
parent ends by itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import psutil

from heddle.app.errors import ChildDied, NotHealthy
from heddle.app.orphans import ORPHANS_END

ASK_S: Final = 1.8
"""The collector is asked when the controller has ended, and after this long in any case."""
KILL_S: Final = 3.0
"""Who has not ended so long after the first request is killed; Ctrl-C may take 5 s in all."""
TAIL_LINES: Final = 12
FIXED: Final = {ORPHANS_END: "1", "PYTHONUNBUFFERED": "1"}
"""Environment of every child."""


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def free_range(first: int, count: int, host: str = "127.0.0.1") -> int:
    """The first port of `count` free ones in a row, at `first` or above."""
    while first + count < 65_536:
        taken = [port for port in range(first, first + count) if not is_free(port, host)]
        if not taken:
            return first
        first = taken[-1] + 1
    return free_port(host)


@dataclass(slots=True)
class Child:
    """One process of the stack."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])

    def listens(self, port: int) -> bool:
        """Whether it is this child, and not another process, that listens there."""
        try:
            held = psutil.Process(self.process.pid).net_connections(kind="tcp")
        except psutil.NoSuchProcess:
            return False
        except psutil.Error:  # a machine that does not let us look
            return True
        return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in held)

    def signal_group(self, number: int) -> None:
        """Send a signal to the child and to those of its children that stayed in its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


@dataclass(slots=True)
class Supervisor:
    """Starts children; used as a context, stops them however the block ends."""

    logs: Path
    children: dict[str, Child] = field(default_factory=dict[str, Child])
    _handlers: dict[int, Any] = field(default_factory=dict[int, Any])

    def __enter__(self) -> Supervisor:
        # A shell's background job inherits an ignored SIGINT; asyncio.run only cancels its main
        # task on Ctrl-C when the handler is Python's own.
        self._handlers[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, _as_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        # A second Ctrl-C would leave children behind, and stopping is bounded.
        for number in self._handlers:
            signal.signal(number, signal.SIG_IGN)
        self.stop()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def start(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Child:
        """Run `heddle ARGUMENTS` as a child called `name`, with those variables beside ours."""
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "heddle.app.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **FIXED, **(environment or {})},
            )
        self.children[name] = Child(name, process, log)
        return self.children[name]

    def check(self) -> None:
        """Raise ChildDied when a child has ended."""
        for child in self.children.values():
            code = child.process.poll()
            if code is not None:
                raise ChildDied(child.name, code, child.log, child.tail())

    def wait(self, name: str, url: str, answers: Callable[[], bool], timeout_s: float) -> None:
        """Until the child answers; ChildDied or NotHealthy when it does not."""
        deadline = time.monotonic() + timeout_s
        while not answers():
            self.check()
            if time.monotonic() > deadline:
                raise NotHealthy(name, url, timeout_s, self.children[name].log)
            time.sleep(0.05)

    def stay(self) -> None:
        """Until Ctrl-C; ChildDied when a part of the stack ends before."""
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                self.check()
                time.sleep(0.3)

    def stop(self) -> None:
        """Ask all to end, the collector last so that it takes the others' last spans; then kill."""
        began = time.monotonic()
        last = [child for name, child in self.children.items() if name == "collector"]
        first = [child for child in self.children.values() if child not in last]
        _ask(first)
        # Only the controller has spans to send; a dashboard that lingers keeps nobody waiting.
        _await([child for child in first if child.name != "dashboard"], began + ASK_S)
        _ask(last)
        _await(list(self.children.values()), began + KILL_S)
        for child in self.children.values():
            child.signal_group(signal.SIGKILL)
            child.process.wait()
        self.children.clear()


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


def _ask(children: Sequence[Child]) -> None:
    for child in children:
        child.signal_group(signal.SIGTERM)


def _await(children: Sequence[Child], deadline: float) -> None:
    while time.monotonic() < deadline and any(c.process.poll() is None for c in children):
        time.sleep(0.03)
