"""Real processes for the journeys: the command itself, on free ports, in a folder of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import psutil
import pytest
from ray_cluster import ray_cluster

from heddle.app.compose import answers
from heddle.app.supervise import free_port, free_range

COMMAND = [sys.executable, "-m", "heddle.app.cli"]


@pytest.fixture(scope="session")
def ports():
    """Environment that moves every port away from those of a person's own stack."""
    names = ("OTLP_GRPC", "OTLP_HTTP", "QUERIES", "CONTROLLER", "DASHBOARD")
    chosen = {f"HEDDLE_PORTS__{name}": str(free_port()) for name in names}
    return {**chosen, "HEDDLE_PORTS__ENGINES": str(free_range(31_500 + os.getpid() % 4_000, 8))}


@pytest.fixture(scope="session")
def heddle(ports):
    """Run the command to its end."""

    def run(*arguments, timeout=150, cwd=None):
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=cwd,
            env={**os.environ, **ports},
        )

    return run


class Stack:
    """A `heddle up` under way."""

    def __init__(self, process, ports, data):
        self.process, self.data = process, data
        self.controller = f"http://127.0.0.1:{ports['HEDDLE_PORTS__CONTROLLER']}"
        self.queries = f"http://127.0.0.1:{ports['HEDDLE_PORTS__QUERIES']}"
        self.otlp = f"http://127.0.0.1:{ports['HEDDLE_PORTS__OTLP_HTTP']}"

    @property
    def family(self):
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def stop(self, number=signal.SIGINT):
        """Seconds from the signal to the end."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(timeout=30)
        return time.monotonic() - began


@pytest.fixture(scope="session")
def up(ports):
    """Start `heddle up` and wait until its fleet serves."""

    @contextmanager
    def start(data, *arguments):
        words = ["up", "--no-dashboard", "--data", data, *arguments]
        with (data / "said").open("wb") as said:
            process = subprocess.Popen(
                [*COMMAND, *map(str, words)], stderr=said, env={**os.environ, **ports}
            )
            try:
                _until(process, data / "said")
                yield Stack(process, ports, data)
            finally:
                process.terminate()
                process.wait(timeout=30)

    return start


def _until(process, said):
    deadline = time.monotonic() + 90
    while "Ctrl-C stops everything" not in said.read_text():
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.1)


@pytest.fixture(scope="session")
def answering():
    return answers


@pytest.fixture(scope="session")
def cluster():
    """Ray with nodes of 8, 2 and 2 logical GPUs, and its nodes; starting it takes 15 s of CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        with ray_cluster(8, 2, 2) as found:
            yield found
