"""How is an engine, or Heddle in front of one, started for a test and surely stopped again?"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parent.parent.parent
HERE = Path(__file__).parent
SGLANG = Path(os.environ.get("HEDDLE_SGLANG_VENV", ROOT / ".venv-sglang")).resolve()
HEDDLE = Path(sys.executable).parent / "heddle"
# 16-18 s on two quiet cores, 72 s seen with two engines on busy ones.
HEALTH_S = 300.0
STOP_S = 20.0
# What README asks of a fleet. Priorities order the queue and pick whom to retract; the cache report
# is what a streamed chat has of cached tokens.
FLAGS = (
    "--enable-priority-scheduling",
    "--default-priority-value=0",
    "--retraction-policy=priority",
    "--enable-cache-report",
)
ORDER_ONLY = ("--disable-priority-preemption",)
"""A priority takes no running request's place."""
# Pages of 16 tokens in files that engines of one degree share.
STORAGE = (
    "--page-size=16",
    "--enable-hierarchical-cache",
    "--hicache-ratio=2",
    "--hicache-io-backend=direct",
    "--hicache-mem-layout=layer_first",
    "--hicache-storage-backend=file",
    "--hicache-write-policy=write_through",
    "--hicache-storage-prefetch-policy=wait_complete",
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when GET *url* is 200; fail with the end of the log when the process cannot."""
    deadline = time.monotonic() + HEALTH_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(url, timeout=5.0).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.25)
    pytest.fail(f"{url} never answered 200; its log ends:\n{log.read_text()[-3000:]}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and whatever it started."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(STOP_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    process.wait(STOP_S)


@contextmanager
def running(
    command: Sequence[str | Path], health: str, log: Path, **env: str
) -> Generator[None, None, None]:
    """A process group that answers at *health* for as long as the block lasts."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **env},
        )
    try:
        wait_healthy(health, process, log)
        yield
    finally:
        stop(process)
