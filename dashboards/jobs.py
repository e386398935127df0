"""How does a page start a heddle command that takes longer than a page may, and follow it?

A child process, nice to the services beside it, one of a command at a time; it prints `DONE/TOTAL
unit` on stderr, and one JSON document or nothing on stdout. Jobs belong to the dashboard's process:
another tab, or the same address opened again, finds the same job by its command. They end with it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import streamlit as st

KEPT: Final = 16
NICE: Final = 10
"""A replay takes a core; the collector and the loop beside it go first."""
_DONE: Final = re.compile(r"(\d+)/(\d+)")
Words = tuple[str, ...]


@dataclass(slots=True)
class Job:
    """One command: how far it is, and what it said in the end."""

    words: Words
    process: subprocess.Popen[str]
    sink: Any
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None
    done: int = 0
    total: int = 0
    said: str = ""
    result: Any = None
    failed: str = ""
    stopped: bool = False

    @property
    def is_running(self) -> bool:
        return self.ended_s is None

    @property
    def share(self) -> float:
        """Of the work that is done, as far as the command told."""
        return min(self.done / self.total, 1.0) if self.total else 0.0

    @property
    def took_s(self) -> float:
        return (self.ended_s or time.monotonic()) - self.began_s

    def stop(self) -> None:
        """End it now; its partial work is lost."""
        self.stopped = True
        self.process.terminate()

    def follow(self) -> None:
        """Read what it says until it ends; runs in a thread of its own."""
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.said = line.strip() or self.said
                if found := _DONE.search(line):
                    self.done, self.total = int(found[1]), int(found[2])
        code = self.process.wait()
        with self.sink as sink:
            sink.seek(0)
            self._end(code, sink.read())
        self.ended_s = time.monotonic()

    def _end(self, code: int, printed: str) -> None:
        if self.stopped:
            self.failed = "it was stopped"
            return
        try:
            self.result = json.loads(printed) if printed or code else {}
        except ValueError:
            self.failed = self.said.removeprefix("heddle: ") or f"it ended with status {code}"


class Jobs:
    """The jobs of this dashboard, the oldest ended ones forgotten first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: OrderedDict[Words, Job] = OrderedDict()

    def find(self, words: Sequence[str]) -> Job | None:
        """The job of exactly that command, if it was started and is remembered."""
        with self._lock:
            return self._jobs.get(tuple(words))

    def running(self, command: str) -> Job | None:
        """The one of that command under way."""
        with self._lock:
            mine = (job for job in self._jobs.values() if job.words[0] == command)
            return next((job for job in mine if job.is_running), None)

    def start(self, words: Sequence[str]) -> Job:
        """Start it, unless it or another of its command runs already: then that one."""
        asked = tuple(words)
        busy = self.running(asked[0])
        if busy is not None:
            return busy
        with self._lock:
            job = self._jobs[asked] = _spawn(asked)
            self._jobs.move_to_end(asked)
            while len(self._jobs) > KEPT:
                self._jobs.popitem(last=False)
        threading.Thread(target=job.follow, name="heddle-job", daemon=True).start()
        return job


def _spawn(words: Words) -> Job:
    # Its answer may be larger than a pipe holds, and nobody reads that one until it ends.
    sink = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (follow closes it)
    process = subprocess.Popen(
        ["nice", "-n", str(NICE), sys.executable, "-m", "heddle.app.cli", *words],
        stdin=subprocess.DEVNULL,
        stdout=sink,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HEDDLE_DIE_WITH_PARENT": "1", "COLUMNS": "400"},
    )
    return Job(words, process, sink)


@st.cache_resource(show_spinner=False)
def jobs() -> Jobs:
    """The ones of this process."""
    return Jobs()
