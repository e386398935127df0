"""How quick are the pages with 100,000 trajectories behind them, and what do 20 tabs cost?

A real chromium drives a real dashboard on a collector whose data is made by SQL (query_data.py): a
run of 100 rollouts of 1,000 trajectories, the last one running and still sent to, and one
trajectory of 50,000 spans. First paint is when numbers, a figure or a table stand; an interaction
ends when the script has run. Payload is what the page's socket received; Streamlit's own script
files are not counted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import urlencode

import psutil

from heddle.app.bench.browse import Tab, browsing
from heddle.app.bench.figures import Figure, Say
from heddle.app.bench.query_data import Shape, made
from heddle.app.bench.trickle import trickling
from heddle.app.supervise import free_port
from heddle.collector.client import CollectorClient
from heddle.collector.store import FILE_NAME

EACH: Final = 20
TRAJECTORIES: Final = 1_000
LONG: Final = 10_000
"""Number of the rollout whose one trajectory has LONG_SPANS."""
LONG_SPANS: Final = 50_000
TABS: Final = 20
PAGES: Final = ("", "idle", "tail", "trajectory", "compare", "policies", "ask")
SQL: Final = "SELECT task, quantile_cont(duration_s, 0.99) AS p99_s FROM trajectories GROUP BY task"
Address = Callable[..., str]


def run(*, quick: bool, say: Say) -> dict[str, Figure]:
    """100,000 trajectories and 2 million spans; --quick 5,000 and 100,000, and fewer tabs."""
    rollouts, tabs, watch_s = (5, 4, 10.0) if quick else (100, TABS, 40.0)
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder:
        data = Path(folder)
        spans = rollouts * TRAJECTORIES * EACH
        say(f"making {spans:,} spans")
        last = f"r{rollouts - 1:05d}"
        shapes = {0: (rollouts, Shape(EACH, TRAJECTORIES)), LONG: (1, Shape(LONG_SPANS, 1))}
        made(data / FILE_NAME, shapes, running=last)
        with _served(data) as (collector, otlp, dashboard), browsing(dashboard) as tab:
            note = f"{rollouts * TRAJECTORIES:,} trajectories, {spans:,} spans"
            run_id = f"run-{(rollouts - 1) // 50}"
            told = _pages(tab, run_id, rollouts, note, say)
            say(f"{tabs} tabs on a running rollout")
            with trickling(otlp, run_id, last):
                told |= _tabs(tab, collector, (run_id, last), (tabs, watch_s))
            return told


@contextmanager
def _served(data: Path) -> Generator[tuple[psutil.Process, str, str]]:
    """The collector's process, where it takes spans, and the dashboard's address."""
    http, query, grpc, pages = (free_port() for _ in range(4))
    collect = ["collect", "--data", str(data), "--seal-after-s", "1e9"]
    collect += ["--http-port", str(http), "--query-port", str(query), "--grpc-port", str(grpc)]
    dash = ["dash", "--data", str(data), "--port", str(pages)]
    dash += ["--collector", f"http://127.0.0.1:{query}", "--controller", "http://127.0.0.1:9"]
    env = {**os.environ, "HEDDLE_COLLECT__SILENT_S": "1e12"}
    command = [sys.executable, "-m", "heddle.app.cli"]
    with subprocess.Popen([*command, *collect], env=env) as collector:
        try:
            with CollectorClient(f"http://127.0.0.1:{query}", timeout_s=120) as client:
                client.wait_healthy(120)
                client.query("runs")
            with subprocess.Popen(
                [*command, *dash], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as dashboard:
                try:
                    yield (
                        psutil.Process(collector.pid),
                        f"http://127.0.0.1:{http}",
                        f"http://127.0.0.1:{pages}",
                    )
                finally:
                    dashboard.terminate()
        finally:
            collector.terminate()


def _pages(tab: Tab, run_id: str, rollouts: int, note: str, say: Say) -> dict[str, Figure]:
    """First paint, payload and marks of each page; then what clicks take."""
    middle = f"r{rollouts - 2:05d}"
    paints: dict[str, float] = {}
    settled: dict[str, float] = {}
    payload: dict[str, int] = {}
    marks = 0
    for page in PAGES:
        say(f"page {page or 'overview'}")
        chosen: dict[str, str] = {"run": run_id, "rollout": middle}
        if page == "ask":
            chosen = {"sql": SQL}
        opened = tab.opened(f"{page}?{urlencode(chosen)}")
        paints[page], settled[page] = opened.paint_s, opened.settled_s
        payload[page], marks = opened.payload_bytes, max(marks, opened.marks)
    long = tab.opened(f"trajectory?{urlencode({'run': f'run-{LONG // 50}'})}")
    taken = [*_interactions(tab, run_id, middle), *_long(tab)]
    worst, heavy = (max(of, key=lambda page: of[page]) for of in (paints, payload))
    slowest, slowest_s = max(taken, key=lambda one: one[1])
    ordered = sorted(seconds for _, seconds in taken)
    p95 = ordered[round(0.95 * (len(ordered) - 1))]
    slow, heaviest = f"slowest: {worst or 'overview'}", f"heaviest: {heavy or 'overview'}"
    clicks = f"of {len(taken)}; slowest: {slowest}, {slowest_s:.2f} s; {note}"
    return {
        "first_paint_s": Figure(max(paints.values()), "s", 3, "lower", f"{slow}; {note}"),
        "first_paint_median_s": Figure(median(paints.values()), "s", 3, "lower", note),
        "whole_page_s": Figure(max(settled.values()), "s", 10, "lower", "no issue target"),
        "interaction_p95_s": Figure(p95, "s", 1, "lower", clicks),
        "page_payload_mb": Figure(
            max(payload.values()) / 1e6, "MB", 1, "lower", f"{heaviest}; {note}"
        ),
        "marks": Figure(marks, "", 2_200, "lower", f"of the fullest figure; {note}"),
        "long_trajectory_paint_s": Figure(
            long.paint_s, "s", 3, "lower", f"{LONG_SPANS:,} spans, no issue target"
        ),
        "long_trajectory_payload_mb": Figure(
            long.payload_bytes / 1e6, "MB", 1, "lower", f"{LONG_SPANS:,} spans"
        ),
    }


def _interactions(tab: Tab, run_id: str, rollout: str) -> list[tuple[str, float]]:
    """What a person clicks, page by page."""
    chosen = urlencode({"run": run_id, "rollout": rollout})
    taken: list[tuple[str, float]] = []
    tab.opened(f"?{chosen}")
    taken += [(f"unit {one}", tab.segment(one)) for one in ("share", "GPU-s", "share", "GPU-s")]
    tab.opened(f"tail?{chosen}")
    taken += [(one, tab.segment(one)) for one in ("duration (s)", "steps", "output tokens")]
    taken += [(f"by {one}", tab.segment(one)) for one in ("worker", "preset", "task")]
    tab.opened(f"idle?{chosen}")
    taken += [(f"by {one}", tab.segment(one)) for one in ("tool", "group", "state")]
    taken += [(f"bar {one}", tab.segment(one)) for one in ("degree", "worker")]
    taken += [(f"to {page}", tab.link(page)) for page in ("Long tail", "GPUs idle", "Overview")]
    return taken


def _long(tab: Tab) -> list[tuple[str, float]]:
    """On the trajectory of 50,000 spans."""
    tab.opened(f"trajectory?{urlencode({'run': f'run-{LONG // 50}'})}")
    return [(f"tab {name}", tab.panel(name)) for name in ("Decisions", "Spans", "Steps")]


def _tabs(
    tab: Tab, collector: psutil.Process, whose: tuple[str, str], asked: tuple[int, float]
) -> dict[str, Figure]:
    """The collector's CPU with tabs open, less what arriving spans alone cost."""
    count, watch_s = asked
    alone = _cpu_share(collector, watch_s / 2)
    address = f"?{urlencode({'run': whose[0], 'rollout': whose[1]})}"
    with tab.others(address, count):
        busy = _cpu_share(collector, watch_s)
    note = f"{count} tabs, {alone:.1f} % without them taken off"
    return {"tabs_cpu_percent": Figure(busy - alone, "% of a core", 30, "lower", note)}


def _cpu_share(process: psutil.Process, seconds: float) -> float:
    def spent() -> float:
        times: Any = process.cpu_times()
        return times.user + times.system

    before, began = spent(), time.monotonic()
    time.sleep(seconds)
    return 100 * (spent() - before) / (time.monotonic() - began)
