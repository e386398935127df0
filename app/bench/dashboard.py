"""How quick are the pages with 100,000 trajectories behind them, and what do 20 tabs cost?

A real chromium drives a real dashboard on a collector whose data is made by SQL (query_data.py): a
run of 100 rollouts of 1,000 trajectories, the last one running and still sent to, and one
trajectory of 50,000 spans. First paint is when a number and a figure stand (browse.USEFUL: what
else a page is for), in a profile that was never here and loads Streamlit's scripts too; whole is a
page when what waits below its first screen stands as well. An interaction ends when the script has
run and each figure is drawn. Payload is what the page's socket received. The tabs are sessions of
Streamlit's own without a browser that draws them (sessions.py): the services cannot tell, and
twenty chromium tabs on two cores measure chromium.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final
from urllib.parse import urlencode

import psutil

from heddle.app.bench.browse import Tab, browsing
from heddle.app.bench.figures import Figure, Say
from heddle.app.bench.query_data import Shape, made
from heddle.app.bench.served import Served, served, used_s
from heddle.app.bench.sessions import sessions
from heddle.app.bench.trickle import trickling
from heddle.collector.store import FILE_NAME

EACH: Final = 20
TRAJECTORIES: Final = 1_000
LONG: Final = 10_000
"""Number of the rollout whose one trajectory has LONG_SPANS."""
LONG_SPANS: Final = 50_000
TABS: Final = 20
PAGES: Final = (
    "", "idle", "tail", "trajectory", "compare", "predictor", "policies", "fleet", "ask",
)  # fmt: skip
SQL: Final = "SELECT task, quantile_cont(duration_s, 0.99) AS p99_s FROM trajectories GROUP BY task"


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
        with served(data) as stack, browsing(stack.dashboard) as tab:
            note = f"{rollouts * TRAJECTORIES:,} trajectories, {spans:,} spans"
            run_id = f"run-{(rollouts - 1) // 50}"
            told = _pages(tab, stack, (run_id, f"r{rollouts - 2:05d}"), note, say)
            say(f"{tabs} tabs on a running rollout")
            with trickling(stack.otlp, run_id, last):
                told |= _tabs(stack, (run_id, last), (tabs, watch_s))
            return told


@dataclass(slots=True)
class _Opened:
    """By page."""

    paint_s: dict[str, float] = field(default_factory=dict[str, float])
    settled_s: dict[str, float] = field(default_factory=dict[str, float])
    cpu_s: dict[str, float] = field(default_factory=dict[str, float])
    payload_mb: dict[str, float] = field(default_factory=dict[str, float])
    marks: int = 0


def _pages(
    tab: Tab, stack: Served, whose: tuple[str, str], note: str, say: Say
) -> dict[str, Figure]:
    """First paint, payload and marks of each page; then what clicks take."""
    chosen = {"run": whose[0], "rollout": whose[1]}
    cold = tab.opened(f"?{urlencode(chosen)}")
    say(f"pages and a collector that knew nothing: {cold.paint_s:.2f} s")
    seen = _Opened()
    for page in PAGES:
        _look(tab, stack, page, {"sql": SQL} if page == "ask" else chosen, seen)
        say(
            f"page {page or 'overview'}: paint {seen.paint_s[page]:.2f} s, whole "
            f"{seen.settled_s[page]:.2f} s, CPU {seen.cpu_s[page]:.2f} s, "
            f"{seen.payload_mb[page]:.2f} MB"
        )
    return {
        "first_paint_s": _worst(seen.paint_s, "s", 3, note),
        "first_paint_median_s": Figure(median(seen.paint_s.values()), "s", 3, "lower", note),
        "cold_paint_s": Figure(
            cold.paint_s, "s", 10, "lower", "collector and pages just started; no target"
        ),
        "whole_page_s": _worst(seen.settled_s, "s", 10, "no issue target"),
        "page_cpu_s": _worst(seen.cpu_s, "s", 3, "pages and collector; no issue target"),
        "page_payload_mb": _worst(seen.payload_mb, "MB", 1, note),
        "marks": Figure(seen.marks, "", 2_200, "lower", f"of the fullest figure; {note}"),
        **_clicks(tab, stack, whose, note, say),
    }


def _look(tab: Tab, stack: Served, page: str, chosen: dict[str, str], seen: _Opened) -> None:
    before_s = stack.cpu_s()
    opened = tab.opened(f"{page}?{urlencode(chosen)}")
    seen.cpu_s[page] = stack.cpu_s() - before_s
    seen.paint_s[page], seen.settled_s[page] = opened.paint_s, opened.settled_s
    seen.payload_mb[page] = opened.payload_bytes / 1e6
    seen.marks = max(seen.marks, opened.marks)


def _clicks(
    tab: Tab, stack: Served, whose: tuple[str, str], note: str, say: Say
) -> dict[str, Figure]:
    before_s = stack.cpu_s()
    taken = _interactions(tab, *whose)
    long = tab.opened(f"trajectory?{urlencode({'run': f'run-{LONG // 50}'})}")
    taken += [(f"tab {name}", tab.panel(name)) for name in ("Decisions", "Spans", "Steps")]
    cpu_s = (stack.cpu_s() - before_s) / len(taken)
    say(", ".join(f"{name} {seconds:.2f} s" for name, seconds in taken))
    slowest, slowest_s = max(taken, key=lambda one: one[1])
    ordered = sorted(seconds for _, seconds in taken)
    p95 = ordered[round(0.95 * (len(ordered) - 1))]
    clicks = f"of {len(taken)}; slowest: {slowest}, {slowest_s:.2f} s; {note}"
    return {
        "interaction_p95_s": Figure(p95, "s", 1, "lower", clicks),
        "interaction_cpu_s": Figure(
            cpu_s, "s", 1, "lower", "pages and collector, the mean, opening the pages included"
        ),
        "long_trajectory_paint_s": Figure(
            long.paint_s, "s", 3, "lower", f"{LONG_SPANS:,} spans, no issue target"
        ),
        "long_trajectory_payload_mb": Figure(
            long.payload_bytes / 1e6, "MB", 1, "lower", f"{LONG_SPANS:,} spans"
        ),
    }


def _worst(of: dict[str, float], unit: str, target: float, note: str) -> Figure:
    worst = max(of, key=lambda page: of[page])
    return Figure(of[worst], unit, target, "lower", f"worst: {worst or 'overview'}; {note}")


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


def _tabs(stack: Served, whose: tuple[str, str], asked: tuple[int, float]) -> dict[str, Figure]:
    """The collector's CPU with tabs open, less what arriving spans alone cost."""
    count, watch_s = asked
    alone = _shares((stack.collector,), watch_s / 2)[0]
    address = urlencode({"run": whose[0], "rollout": whose[1]})
    with sessions(stack.dashboard, address, count) as seen:
        before = seen.refreshed
        busy, pages = _shares((stack.collector, stack.pages), watch_s)
        note = _note(count, alone, pages, (seen.refreshed - before) / watch_s)
    return {"tabs_cpu_percent": Figure(busy - alone, "% of a core", 30, "lower", note)}


def _note(count: int, alone: float, pages: float, runs: float) -> str:
    return (
        f"{count} tabs, {alone:.1f} % without them taken off; the pages' process used "
        f"{pages:.0f} % and ran {runs:.1f} fragments a second; sessions, no browser draws"
    )


def _shares(processes: Sequence[psutil.Process], seconds: float) -> list[float]:
    """Per cent of a core each used in that time."""
    before, began = [used_s(one) for one in processes], time.monotonic()
    time.sleep(seconds)
    passed_s = time.monotonic() - began
    return [
        100 * (used_s(one) - past) / passed_s for one, past in zip(processes, before, strict=True)
    ]
