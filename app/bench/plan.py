"""How long does a plan take, at the paper's size and ten times it?

Exact cut, exact layout and cut, the paper's DP, annealing and imagined rollouts on the same
log-normal lengths, and one full decision with 6,400 trajectories; sorting and prefix sums count.
Seconds are CPU time of this process: a busy machine does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median, quantiles
from typing import Final

import numpy as np

from heddle.app.bench.contiguity import lost
from heddle.app.bench.figures import Figure, Say
from heddle.controller.core.allocation import simulated
from heddle.controller.core.anneal import annealed_cut, presorted_cut
from heddle.controller.core.decide import decide, decide_at_home
from heddle.controller.core.exact import Columns, Floats, Runs, best_cut, best_layout
from heddle.controller.core.memory import Memory
from heddle.controller.core.policies import preset_switches
from heddle.controller.core.types import (
    Latency,
    Length,
    Plan,
    Rates,
    Snapshot,
    Trajectory,
    Work,
    Worker,
)
from heddle.controller.laws import laws

RUNS: Final = 7
CALLS: Final = 41
CHANGES: Final = 128
"""Between two decisions: a quarter of a second of 6,400 trajectories with steps of 12 s."""
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
    say("imagined rollouts")
    imagined_s = _timed(lambda: simulated(_works(small), known, 64, np.random.default_rng(0)), 3)
    told["simulated_6400_64_s"] = Figure(imagined_s, "s", 5, "lower", "every candidate imagined")
    say("contiguous cuts against all assignments")
    told |= lost(known)
    say("annealing against exact")
    told["annealing_lead"] = _lead(_runs(small, known, degrees))
    say("decisions")
    return told | _decisions(6_400)


def _rows(n: int) -> Floats:
    rng = np.random.default_rng(0)
    output = np.minimum(rng.lognormal(8.5, 0.9, n), 40_000.0)
    columns = [output, np.full(n, 600.0), output * 0.8, output / 480, output / 250]
    return np.stack([*columns, np.zeros(n), output * 0.9], axis=1)


def _works(rows: Floats) -> list[Work]:
    names = ("output_tokens", "prompt_tokens", "observation_tokens", "steps", "tool_s")
    return [Work(**dict(zip(names, row, strict=True))) for row in rows[:, :5].tolist()]


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
    """A rollout begins; then, between decisions, steps end and what was released starts."""
    switches, rng, memory = preset_switches("heddle"), np.random.default_rng(1), Memory()
    live = {t.id: t for t in _fresh(n)}
    spent: list[float] = []
    for _ in range(CALLS):
        snapshot = _snapshot(live)
        began = time.process_time()
        plan = decide(snapshot, switches, rng, memory)
        spent.append(time.process_time() - began)
        _go_on(live, plan, rng)
    step_s = _timed(lambda: decide_at_home([live["t0"]], Rates(), switches), 2_000)
    note = f"{n:,} trajectories, 64 workers, preset heddle"
    then = f"{note}; {CHANGES} of them change between two decisions"
    return {
        "decide_first_ms": Figure(spent[0] * 1e3, "ms", 200, "lower", f"all waiting; {note}"),
        "decide_p50_ms": Figure(median(spent[1:]) * 1e3, "ms", 10, "lower", then),
        "decide_p95_ms": Figure(quantiles(spent[1:], n=20)[-1] * 1e3, "ms", 40, "lower", then),
        "decide_step_us": Figure(step_s * 1e6, "us", 30, "lower", "a started one's next step"),
    }


def _fresh(n: int) -> list[Trajectory]:
    means = np.random.default_rng(2).lognormal(8.3, 0.7, n)
    return [
        Trajectory(id=f"t{i}", arrival=i, context_tokens=600, remaining=_length(mean))
        for i, mean in enumerate(means.tolist())
    ]


def _length(mean: float) -> Length:
    return Length(p10=mean / 2.5, p50=mean / 1.1, p90=mean * 2, mean=mean)


def _go_on(live: dict[str, Trajectory], plan: Plan, rng: np.random.Generator) -> None:
    for release in plan.releases:
        one = live[release.trajectory]
        live[one.id] = one._replace(worker=release.worker, state="running")
    started = [t for t in live.values() if t.worker is not None]
    for at in rng.integers(len(started), size=CHANGES).tolist():
        one = started[at]
        left = max(one.remaining.mean - 400.0, 50.0) if one.remaining else 50.0
        live[one.id] = one._replace(
            state="running" if one.state == "tool" else "tool",
            steps=one.steps + 1,
            context_tokens=one.context_tokens + 700,
            output_tokens=one.output_tokens + 400,
            remaining=_length(left),
        )


def _snapshot(live: dict[str, Trajectory]) -> Snapshot:
    law = laws(SYSTEM, MODEL)[1]
    workers = tuple(Worker(id=f"w{i}", latency=law) for i in range(64))
    rates = Rates(context_per_output=1.8, tool_s=1.0)
    return Snapshot(trajectories=tuple(live.values()), workers=workers, rates=rates)
