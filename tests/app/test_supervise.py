"""Claims about children: they are waited for, watched, and gone afterwards."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from heddle.app import supervise
from heddle.app.errors import ChildDied, NotHealthy
from heddle.app.supervise import Supervisor, free_port, free_range, is_free

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); "
    "time.sleep(60)"
)


@pytest.fixture
def as_python(monkeypatch):
    """Children run `python -c CODE` in the place of `heddle ARGUMENTS`."""
    popen = subprocess.Popen

    def start(command, **options):
        return popen([sys.executable, *command[3:]], **options)

    monkeypatch.setattr(supervise.subprocess, "Popen", start)


def test_a_child_that_dies_is_reported_with_the_end_of_its_log(tmp_path, as_python):
    with Supervisor(tmp_path) as supervisor:
        supervisor.start("collector", ["-c", "print('disk full'); raise SystemExit(3)"])
        with pytest.raises(ChildDied) as said:
            supervisor.wait("collector", "http://x", lambda: False, 20)

    assert "exit code 3" in str(said.value)
    assert "disk full" in str(said.value)


def test_a_child_that_never_answers_is_given_up_on(tmp_path, as_python):
    with Supervisor(tmp_path) as supervisor:
        supervisor.start("controller", ["-c", "import time; time.sleep(60)"])
        with pytest.raises(NotHealthy, match="controller"):
            supervisor.wait("controller", "http://x", lambda: False, 0.2)


def test_even_a_child_that_ignores_sigterm_is_gone_afterwards(tmp_path, as_python, monkeypatch):
    monkeypatch.setattr(supervise, "ASK_S", 0.3)
    monkeypatch.setattr(supervise, "KILL_S", 0.6)
    with Supervisor(tmp_path) as supervisor:
        child = supervisor.start("engine", ["-c", STUBBORN])
        supervisor.wait("engine", "its log", lambda: "deaf" in child.tail(), 20)
    assert child.process.returncode == -signal.SIGKILL


def test_handlers_are_as_they_were_afterwards(tmp_path):
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with Supervisor(tmp_path):
        pass
    assert before == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


def test_sigterm_ends_the_block_as_ctrl_c_does(tmp_path):
    with Supervisor(tmp_path), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


def test_a_process_of_ours_ends_when_its_parent_is_killed(tmp_path):
    child = "from heddle.app.orphans import die_with_parent as d; d(); import time; time.sleep(60)"
    parent = (
        "import subprocess, sys, time; "
        f"p = subprocess.Popen([sys.executable, '-c', {child!r}]); print(p.pid, flush=True); "
        "time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent],
        stdout=subprocess.PIPE,
        env={**os.environ, supervise.ORPHANS_END: "1"},
        text=True,
    )
    assert process.stdout is not None
    orphan = psutil.Process(int(process.stdout.readline()))
    time.sleep(1.0)  # it must have learned who its parent is
    process.kill()
    process.wait()
    process.stdout.close()
    orphan.wait(timeout=20)
    assert not orphan.is_running()


def test_a_taken_port_is_not_free_and_a_range_steps_over_it():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free(port)
        assert free_range(port, 2) > port
    assert is_free(free_port())


class Timed:
    """A child on a clock of the test: ends so long after it is asked, or never."""

    def __init__(self, name, takes_s, clock, log):
        self.name, self.takes_s, self.clock, self.log = name, takes_s, clock, log
        self.asked_s = self.ended_s = None
        self.process = self

    def signal_group(self, number):
        if number == signal.SIGTERM:
            self.asked_s = self.clock.now_s
        elif self.poll() is None:
            self.ended_s = self.clock.now_s
            self.log.append((self.name, "killed", round(self.clock.now_s, 1)))

    def poll(self):
        if self.ended_s is None and self.asked_s is not None and self.takes_s is not None:
            due_s = self.asked_s + self.takes_s
            if self.clock.now_s >= due_s:
                self.ended_s = due_s
                self.log.append((self.name, "ended", round(due_s, 1)))
        return None if self.ended_s is None else 0

    def wait(self):
        assert self.poll() is not None


class TestClock:
    __test__ = False
    now_s = 100.0

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.mark.parametrize(
    ("takes_s", "asked_after_s", "took_s"),
    [
        # collector, controller, dashboard: seconds each needs once asked, None for ever
        ((0.1, 0.5, 0.2), 0.5, 0.6),
        ((0.1, 0.5, None), 0.5, 3.0),
        ((0.1, None, 0.1), 1.8, 3.0),
        ((None, 0.1, 0.1), 0.1, 3.0),
        ((None, None, None), 1.8, 3.0),
    ],
)
def test_all_are_asked_at_once_the_collector_last_and_after_three_seconds_killed(
    tmp_path, monkeypatch, takes_s, asked_after_s, took_s
):
    clock, log = TestClock(), []
    monkeypatch.setattr(supervise, "time", clock)
    supervisor = Supervisor(tmp_path)
    names = ("collector", "controller", "dashboard")
    children = [Timed(n, t, clock, log) for n, t in zip(names, takes_s, strict=True)]
    supervisor.children.update({child.name: child for child in children})

    supervisor.stop()

    collector, controller, dashboard = children
    assert controller.asked_s == dashboard.asked_s == 100.0
    assert collector.asked_s - 100.0 == pytest.approx(asked_after_s, abs=0.05)
    assert clock.now_s - 100.0 == pytest.approx(took_s, abs=0.05)
    killed = {name for name, how, _ in log if how == "killed"}
    assert killed == {c.name for c in children if c.takes_s is None}


def test_it_is_told_whether_the_child_or_another_process_listens(tmp_path, as_python):
    code = (
        "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); "
        "print(s.getsockname()[1], flush=True); time.sleep(60)"
    )
    with Supervisor(tmp_path) as supervisor, socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        ours.listen()
        child = supervisor.start("controller", ["-c", code])
        supervisor.wait("controller", "its log", lambda: child.tail().isdigit(), 20)
        assert child.listens(int(child.tail()))
        assert not child.listens(ours.getsockname()[1])
    assert not child.listens(1)
