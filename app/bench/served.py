"""How does a bench have pages to look at: a collector, a controller and a dashboard of its own?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from heddle.app.supervise import free_port
from heddle.collector.client import CollectorClient

LOOPBACK: Final = "http://127.0.0.1"
SILENT_S: Final = "1e9"
"""Made-up spans carry old times; a rollout among them must not pass for abandoned."""


@dataclass(frozen=True, slots=True)
class Served:
    """The processes whose cost is told, and the addresses."""

    collector: psutil.Process
    pages: psutil.Process
    otlp: str
    dashboard: str

    def cpu_s(self) -> float:
        """CPU-seconds that pages and collector have used so far."""
        return used_s(self.collector) + used_s(self.pages)


def used_s(process: psutil.Process) -> float:
    """CPU-seconds of one process so far."""
    times: Any = process.cpu_times()
    return times.user + times.system


@contextmanager
def served(data: Path) -> Generator[Served]:
    """All three up on the store in *data* until the block ends; no engine has joined."""
    http, query, grpc, control, pages = (free_port() for _ in range(5))
    asks = f"{LOOPBACK}:{query}"
    here = ["--data", str(data)]
    collect = ["collect", *here, "--seal-after-s", "1e9", "--http-port", str(http)]
    collect += ["--query-port", str(query), "--grpc-port", str(grpc)]
    steer = ["control", *here, "--port", str(control), "--collector", f"{LOOPBACK}:{http}"]
    dash = ["dash", *here, "--port", str(pages), "--collector", asks]
    with _started(collect) as collector:
        with CollectorClient(asks, timeout_s=120) as client:
            client.wait_healthy(120)
            client.query("runs")
        with (
            _started([*steer, "--collector-queries", asks]),
            _started([*dash, "--controller", f"{LOOPBACK}:{control}"]) as dashboard,
        ):
            yield Served(collector, dashboard, f"{LOOPBACK}:{http}", f"{LOOPBACK}:{pages}")


@contextmanager
def _started(words: list[str]) -> Generator[psutil.Process]:
    env = {**os.environ, "HEDDLE_COLLECT__SILENT_S": SILENT_S}
    quiet = subprocess.DEVNULL
    command = [sys.executable, "-m", "heddle.app.cli", *words]
    with subprocess.Popen(command, env=env, stdout=quiet, stderr=quiet) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
