"""What is a bench, what does it print, and on which machine was it taken?"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal, Protocol

from heddle.app.errors import fail

BENCHES: Final[dict[str, str]] = {
    "demo": "heddle.app.bench.demo",
    "accounting": "heddle.app.bench.accounting",
    "plan": "heddle.app.bench.plan",
    "replay": "heddle.app.bench.replay",
    "engines": "heddle.app.bench.engines",
    "ingest": "heddle.app.bench.ingest",
    "query": "heddle.app.bench.query",
    "route": "heddle.app.bench.route",
    "predict": "heddle.app.bench.predict",
    "dashboard": "heddle.app.bench.dashboard",
    "fleet": "heddle.app.bench.fleet",
    "tracing": "heddle.app.bench.tracing",
}
"""Name and module; each has `run(*, quick, say) -> dict[str, Figure]`."""

PACKAGES: Final = ("heddle-rollout", "duckdb", "polars", "numpy", "aiohttp", "fastapi", "streamlit")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that an issue names, and the target it is held against."""

    value: float
    unit: str
    target: float
    better: Literal["lower", "higher"]
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the value is at the target or on its better side."""
        ahead = self.target - self.value if self.better == "lower" else self.value - self.target
        return ahead >= 0


class Runner(Protocol):
    """A bench."""

    def __call__(self, *, quick: bool, say: Say, **more: Any) -> dict[str, Figure]: ...


def load(name: str) -> Runner:
    """The bench of that name, or a sentence naming the ones there are."""
    if name not in BENCHES:
        fail(f"no bench called {name!r}; choose one of {', '.join(BENCHES)}, or all")
    return import_module(BENCHES[name]).run


def document(name: str, figures: dict[str, Figure]) -> dict[str, Any]:
    """The JSON of one bench."""
    told = {key: {**asdict(figure), "met": figure.met} for key, figure in figures.items()}
    return {"bench": name, "machine": machine(), "figures": told}


def machine() -> dict[str, Any]:
    """What the figures depend on and a reader cannot see."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "python_loop_ms": round(_loop_ms(), 1),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _loop_ms() -> float:
    """CPU milliseconds of a million calls of an empty function, the best of three.

    One name of a processor stands for machines that differ twofold, and a Python built without
    profile-guided optimisation is a fifth slower: both show here.
    """

    def turn() -> None:
        for _ in range(1_000_000):
            _nothing()

    best_s = inf
    for _ in range(3):
        began_s = time.process_time()
        turn()
        best_s = min(best_s, time.process_time() - began_s)
    return best_s * 1e3


def _nothing() -> None:
    """What `_loop_ms` calls."""


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Key by key; a key that a run lacks is not counted for it."""
    keys = dict.fromkeys(key for run in runs for key in run)
    return {key: median(run[key] for run in runs if key in run) for key in keys}


def markdown(documents: list[dict[str, Any]]) -> str:
    """The table of docs/benchmarks.md."""
    machine = documents[0]["machine"] if documents else {}
    lines = [
        f"{machine.get('cpu')}, {machine.get('cores')} cores, {machine.get('memory_gb')} GB, "
        f"Python {machine.get('python')}, a million empty calls in "
        f"{machine.get('python_loop_ms')} ms.",
        "",
        "| bench | figure | value | target | met | note |",
        "|---|---|---|---|---|---|",
    ]
    for told in documents:
        for name, f in told["figures"].items():
            sign = "≤" if f["better"] == "lower" else "≥"
            cells = [
                told["bench"],
                name,
                f"{f['value']:.4g} {f['unit']}".strip(),
                f"{sign} {f['target']:g}",
                "yes" if f["met"] else "**no**",
                f["note"],
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
