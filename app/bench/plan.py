"""How long does a plan take, at the paper's size and ten times it?

Exact cut, exact layout and cut, the paper's DP and annealing on the same log-normal lengths, and
one full decision with 6,400 trajectories; sorting and prefix sums are counted.
Seconds are CPU time of this process: a busy machine does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median, quantiles
from typing import Final

import numpy as np

from heddle.app.bench.figures import Figure, Say
from heddle.controller.core.anneal import annealed_cut, presorted_cut
from heddle.controller.core.decide import decide
from heddle.controller.core.exact import Columns, Floats, Runs, best_cut, best_layout
from heddle.controller.core.policies import preset_switches
from heddle.controller.core.types import Latency, Length, Rates, Snapshot, Trajectory, Worker
from heddle.controller.laws import laws

RUNS: Final = 7
SYSTEM: Final = "h100_sxm"
MODEL: Final = "Qwen3-14B"
COARSE: Final = 8
"""The paper's DP ends runs at multiples of this many trajectories: it aggregates too."""


def run(*, quick: bool, say: Say) -> dict[str, Figure]:
    """Medians of seven; --quick leaves out the sizes beyond the paper's."""
    known = laws(SYSTEM, MODEL)
    small, large = _rows(6_400), _rows(64_000)
    say("cuts")
    cut_s = _timed(lambda: best_cut(_runs(small, known, (4,)), (4,) * 16))
    told = {
        "cut_6400_16_ms": Figure(cut_s * 1e3, "ms", 5, "lower", "exact, one degree"),
        "papers_dp_ratio": Figure(
            _timed(lambda: presorted_cut(_runs(small, known, (4,)), (4,) * 16, COARSE), 1) / cut_s,
            "x", 1, "higher", f"our O(n^2 m) DP over every {COARSE}th trajectory / exact cut",
        ),
    }  # fmt: skip
    degrees = (1, 2, 4, 8)
    layout_s = _timed(lambda: best_layout(_runs(small, known, degrees), 64))
    told["layout_6400_64_ms"] = Figure(layout_s * 1e3, "ms", 30, "lower", "exact layout and cut")
    if not quick:
        wide_s = _timed(lambda: best_cut(_runs(large, known, (4,)), (4,) * 128))
        told["cut_64000_128_ms"] = Figure(wide_s * 1e3, "ms", 40, "lower", "exact, one degree")
        far_s = _timed(lambda: best_layout(_runs(large, known, degrees), 1024), 3)
        told["layout_64000_1024_ms"] = Figure(far_s * 1e3, "ms", 400, "lower", "exact")
    say("annealing against exact")
    told["annealing_lead"] = _lead(_runs(small, known, degrees))
    say("decisions")
    return told | _decisions(1_600 if quick else 6_400)


def _rows(n: int) -> Floats:
    rng = np.random.default_rng(0)
    output = np.minimum(rng.lognormal(8.5, 0.9, n), 40_000.0)
    return np.stack([output, np.full(n, 600.0), output * 0.8, output / 480, output / 250], axis=1)


def _runs(rows: Floats, known: Mapping[int, Latency], degrees: tuple[int, ...]) -> dict[int, Runs]:
    columns = Columns.sorted(rows)
    return {d: Runs(columns, known[d]) for d in degrees}


def _timed(work: Callable[[], object], runs: int = RUNS) -> float:
    spent: list[float] = []
    for _ in range(runs):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return median(spent)


def _lead(runs: dict[int, Runs]) -> Figure:
    exact = best_layout(runs, 64).makespan_s
    found = annealed_cut(runs, 64, np.random.default_rng(0), moves=1_000).makespan_s
    note = "annealed / exact makespan, 1,000 moves"
    return Figure(found / exact, "x", 0.9999, "higher", note)


def _decisions(n: int) -> dict[str, Figure]:
    switches, rng = preset_switches("heddle"), np.random.default_rng(1)
    snapshot = _snapshot(n, started=0)
    began = time.process_time()
    decide(snapshot, switches, rng)
    first_s = time.process_time() - began
    mid = _snapshot(n, started=n * 3 // 4)
    spent = [_timed(lambda: decide(mid, switches, rng), 1) for _ in range(20)]
    note = f"{n:,} trajectories, 64 workers, preset heddle"
    return {
        "decide_first_ms": Figure(first_s * 1e3, "ms", 200, "lower", f"all waiting; {note}"),
        "decide_p50_ms": Figure(median(spent) * 1e3, "ms", 10, "lower", note),
        "decide_p95_ms": Figure(quantiles(spent, n=20)[-1] * 1e3, "ms", 40, "lower", note),
    }


def _snapshot(n: int, started: int) -> Snapshot:
    rng = np.random.default_rng(2)
    law = laws(SYSTEM, MODEL)[1]
    means = rng.lognormal(8.3, 0.7, n)
    made = [
        Trajectory(
            id=f"t{i}", arrival=i, state="running" if i < started else "held",
            worker=f"w{i % 64}" if i < started else None, steps=3 if i < started else 0,
            context_tokens=3_000 if i < started else 600, output_tokens=900 if i < started else 0,
            remaining=Length(p10=mean / 2.5, p50=mean / 1.1, p90=mean * 2, mean=mean),
        )
        for i, mean in enumerate(means.tolist())
    ]  # fmt: skip
    workers = tuple(Worker(id=f"w{i}", latency=law) for i in range(64))
    return Snapshot(
        trajectories=tuple(made), workers=workers, rates=Rates(context_per_output=1.8, tool_s=1.0)
    )
