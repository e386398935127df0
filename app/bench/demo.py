"""How long, how large and how good is `heddle demo`, run as a person runs it?

The command itself in a process of its own, watched from outside: when its dashboard answers, what
all its processes hold together (PSS: shared pages once), when it ends, and what it measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import orjson
import psutil

from heddle.app.bench.figures import Figure, Say, medians
from heddle.app.compose import answers
from heddle.app.errors import fail
from heddle.app.supervise import free_port

RUNS: Final = 3
QUICK: Final = ("--trajectories", "48", "--gpus", "4", "--speed", "60")
LIMIT_S: Final = 400.0
SAMPLE_S: Final = 1.0


def run(*, quick: bool, say: Say) -> dict[str, Figure]:
    """Medians of three runs; --quick is one small one."""
    arguments, count = (QUICK, 1) if quick else ((), RUNS)
    runs: list[dict[str, float]] = []
    for index in range(count):
        say(f"demo {index + 1} of {count}")
        runs.append(_once(arguments))
    seen = medians(runs)
    how = "48 trajectories on 4 GPUs, x60" if quick else "256 trajectories on 8 GPUs, x20"
    note = f"median of {count}; {how}"
    return {
        "dashboard_reachable_s": Figure(seen["dashboard_s"], "s", 90, "lower", note),
        "total_s": Figure(seen["total_s"], "s", 240, "lower", note),
        "peak_memory_gb": Figure(seen["peak_gb"], "GB", 3, "lower", f"PSS, all processes; {note}"),
        "makespan_ratio": Figure(
            seen["ratio"], "x", 1, "higher", f"verl / heddle, paired, emulated; {note}"
        ),
    }


def _once(arguments: tuple[str, ...]) -> dict[str, float]:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as data:
        command = [sys.executable, "-m", "heddle.app.cli", "demo", "--once", "--json"]
        began = time.monotonic()
        process = subprocess.Popen(
            [*command, "--data", data, *arguments],
            stdout=subprocess.PIPE,
            stderr=(Path(data) / "stderr").open("wb"),
            env={**os.environ, "HEDDLE_PORTS__DASHBOARD": str(port)},
        )
        watch = _Watch(process.pid, f"http://127.0.0.1:{port}/_stcore/health", began)
        watch.start()
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        finally:
            process.terminate()
            process.wait()
            watch.done.set()
            watch.join()
        if process.returncode:
            fail(f"heddle demo ended with {process.returncode}: {_said(Path(data) / 'stderr')}")
        ratio = _ratio(orjson.loads(output))
    seen = {"total_s": time.monotonic() - began, "peak_gb": watch.peak_bytes / 1e9, "ratio": ratio}
    return seen | ({"dashboard_s": watch.answered_s} if watch.answered_s else {})


def _said(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-500:]


def _ratio(result: dict[str, Any]) -> float:
    presets = result["presets"]
    return presets["verl"]["makespan_s"] / presets["heddle"]["makespan_s"]


class _Watch(threading.Thread):
    """Samples a process tree's memory and the dashboard's first answer."""

    def __init__(self, pid: int, url: str, began: float) -> None:
        super().__init__(name="heddle-bench-watch", daemon=True)
        self._root, self._url, self._began = psutil.Process(pid), url, began
        self.done = threading.Event()
        self.peak_bytes = 0
        self.answered_s: float | None = None

    def run(self) -> None:
        while not self.done.wait(0.1 if self.answered_s is None else SAMPLE_S):
            if self.answered_s is None and answers(self._url):
                self.answered_s = time.monotonic() - self._began
            self.peak_bytes = max(self.peak_bytes, pss_bytes(self._root))


def pss_bytes(root: psutil.Process) -> int:
    """Of a process and all below it; one that ends meanwhile counts as nothing."""
    try:
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    return sum(_pss(process) for process in family)


def _pss(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0
