"""How does a test start collector, controller and engines as processes, and surely stop them?"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from heddle.app.supervise import free_range
from heddle.controller.client import ControllerClient

COMMAND = [sys.executable, "-m", "heddle.app.cli"]
START_S = 90.0
TOKEN = "token-of-the-processes"
SPEED = 50.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(true: Callable[[], Any], within_s: float = 60.0) -> Any:
    """What it answers once that is true."""
    deadline = time.monotonic() + within_s
    while not (found := true()):
        if time.monotonic() > deadline:
            pytest.fail("what was waited for did not happen")
        time.sleep(0.05)
    return found


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).is_success
    except httpx.HTTPError:
        return False


@contextmanager
def running(
    words: list[str], health: str, log: Path, **env: str
) -> Generator[subprocess.Popen[bytes]]:
    """`heddle WORDS` in a process group of its own, for as long as the block lasts."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*COMMAND, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True, env={**os.environ, **env},
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_S
        while not answers(health):
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{words[0]} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(number)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    continue


@dataclass
class Processes:
    """Starts parts of a stack in a folder of its own; all end with the block."""

    data: Path
    exits: ExitStack
    origin_ns: int = field(default_factory=time.time_ns)
    ports: dict[str, int] = field(default_factory=dict)

    @property
    def clock(self) -> list[str]:
        return ["--clock-origin-ns", str(self.origin_ns), "--clock-speed", str(SPEED)]

    def at(self, name: str, path: str = "") -> str:
        port = self.ports.setdefault(name, free_port())
        return f"http://127.0.0.1:{port}{path}"

    def collector(self) -> subprocess.Popen[bytes]:
        health = self.at("queries", "/healthz")
        otlp = self.at("otlp")
        grpc = free_port()
        words = ["collect", "--data", str(self.data / "store"), "--grpc-port", str(grpc)]
        words += ["--http-port", otlp.rpartition(":")[2], "--query-port", health[17:].split("/")[0]]
        return self.exits.enter_context(running(words, health, self.data / "collector.log"))

    def engine(self, name: str) -> subprocess.Popen[bytes]:
        health = self.at(name, "/health")
        words = ["engine", "--port", str(self.ports[name]), "--worker-id", name, *self.clock]
        return self.exits.enter_context(running(words, health, self.data / f"{name}.log"))

    def controller(self, *more: str, **env: str) -> subprocess.Popen[bytes]:
        (self.data / "secret").write_text(TOKEN)
        health = self.at("controller", "/heddle/v1/healthz")
        words = ["control", "--port", str(self.ports["controller"]), "--data", str(self.data)]
        words += ["--token-file", str(self.data / "secret"), *self.clock, *more]
        words += ["--collector", self.at("otlp"), "--collector-queries", self.at("queries")]
        log = self.data / "controller.log"
        return self.exits.enter_context(running(words, health, log, **env))

    def launching(self, gpus: int) -> list[str]:
        """Flags of a controller that starts emulated engines itself."""
        places = ["--port", "{port}", "--degree", "{degree}", "--worker-id", "{worker_id}"]
        template = shlex.join([*COMMAND, "engine", *places, *self.clock])
        first = str(free_range(32_000 + os.getpid() % 8_000, gpus))
        return ["--launch-template", template, "--gpus", str(gpus), "--first-port", first]

    def client(self) -> ControllerClient:
        url = self.at("controller")
        return self.exits.enter_context(ControllerClient(url, token=TOKEN, timeout_s=90.0))


@contextmanager
def processes(data: Path) -> Generator[Processes]:
    with ExitStack() as exits:
        yield Processes(data, exits)
