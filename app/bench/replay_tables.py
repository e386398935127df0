"""How does the policy study read, cell by cell?

The tables of docs/results/policies.md from the study's rows: makespans of the first seed,
everything over B, medians. What was not played is a dash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, Final

from heddle.app.bench.cells import MODELS, OURS, SIGMAS, SLIME, STICKY, WORKLOADS

Row = dict[str, Any]
DEGREES: Final = (1, 2, 4, 8)
BASELINE: Final = "verl/allocation"
"""What B is the best of."""


class Study:
    """The rows by what was played."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = list(rows)
        self.seeds = sorted({row["job"]["seed"] for row in self._rows})
        played = {(row["job"]["model"], row["job"]["workload"]) for row in self._rows}
        self.cells = [(m, w) for m in MODELS for w in WORKLOADS if (m, w) in played]

    def row(self, cell: tuple[str, str], seed: int, policy: str, **how: Any) -> Row | None:
        """How it went; None where it was not played. *how*: error, wrong, slow."""
        wanted = {"error": None, "wrong": False, "slow": False, **how}
        for row in self._rows:
            job = row["job"]
            same = (job["model"], job["workload"]) == cell and job["seed"] == seed
            if same and row["policy"] == policy and all(job[k] == v for k, v in wanted.items()):
                return row
        return None

    def best(self, cell: tuple[str, str], seed: int, *, slow: bool = False) -> Row | None:
        """B: `sticky` at the best homogeneous degree in hindsight."""
        tried = (self.row(cell, seed, STICKY.format(d), slow=slow) for d in DEGREES)
        return min((r for r in tried if r), key=lambda r: r["makespan_s"], default=None)


def tables(rows: Iterable[Row]) -> str:
    """Markdown: makespans, ratios, medians."""
    study = Study(rows)
    return "\n\n".join((_makespans(study), _ratios(study), _medians(study)))


def _makespans(study: Study) -> str:
    seed = study.seeds[0]
    lines = [
        f"Seed {seed}, makespans in seconds.",
        "",
        "| cell | sticky TP1, 2, 4, 8 | slime | heddle (layout) | forecast | bound | workload, "
        "engines |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in study.cells:
        best, ours = study.best(cell, seed), study.row(cell, seed, OURS)
        if best is None or ours is None:
            continue
        tried = ", ".join(_s(study.row(cell, seed, STICKY.format(d))) for d in DEGREES)
        slime = _s(study.row(cell, seed, SLIME.format(MODELS[cell[0]])))
        hashes = f"{ours['workload_hash'][:8]} {ours['truth_hash'][:8]}"
        lines.append(
            f"| {_name(cell)} | {tried} | {slime} | {_s(ours)} ({_layout(ours)}) | "
            f"{ours['predicted_s']:.0f} | {ours['bound_s']:.0f} | {hashes} |"
        )
    return "\n".join(lines)


def _ratios(study: Study) -> str:
    first, words = study.seeds[0], [f"seed {seed}" for seed in study.seeds]
    words += ["known", *(f"{sigma:g}" for sigma in SIGMAS[1:]), "wrong beliefs", "one slow"]
    lines = [
        f"Over B: by history, then seed {first} with lengths foreseen with a log-error, with every "
        "belief wrong, with one engine slow (B has it too).",
        "",
        f"| cell | {' | '.join(words)} |",
        "|---" * (len(words) + 1) + "|",
    ]
    for cell in study.cells:
        best = study.best(cell, first)
        told = [_over(study.best(cell, s), study.row(cell, s, OURS)) for s in study.seeds]
        told += [_over(best, study.row(cell, first, OURS, error=sigma)) for sigma in SIGMAS]
        told.append(_over(best, study.row(cell, first, OURS, error=1.0, wrong=True)))
        slow = study.row(cell, first, OURS, slow=True)
        told.append(_over(study.best(cell, first, slow=True), slow))
        lines.append(f"| {_name(cell)} | {' | '.join(told)} |")
    return "\n".join(lines)


def _medians(study: Study) -> str:
    lines = [
        "Medians over cells and seeds.",
        "",
        "| lengths | rollouts | over B | lowest | over verl | over slime | of the bound | "
        "forecast off |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for error, words in [(None, "by history"), *((s, f"{s:g}") for s in SIGMAS)]:
        lines += _median_line(study, error, words)
    return "\n".join(lines)


def _median_line(study: Study, error: float | None, words: str) -> list[str]:
    found = [
        (cell, seed, best, ours)
        for cell in study.cells
        for seed in study.seeds
        if (ours := study.row(cell, seed, OURS, error=error)) and (best := study.best(cell, seed))
    ]
    if not found:
        return []
    over = [(best["makespan_s"] / ours["makespan_s"], c, s) for c, s, best, ours in found]
    lowest, cell, seed = min(over)
    baselines = (_median_over(study, found, policy) for policy in (STICKY, SLIME))
    share = median(ours["bound_s"] / ours["makespan_s"] for *_, ours in found)
    off = median(abs(ours["predicted_s"] / ours["makespan_s"] - 1.0) for *_, ours in found)
    return [
        f"| {words} | {len(found)} | {median(r for r, *_ in over):.2f} | {lowest:.2f} "
        f"({_name(cell)}, seed {seed}) | {' | '.join(baselines)} | {share:.2f} | {off:.1%} |"
    ]


def _median_over(study: Study, found: Sequence[tuple[Any, ...]], policy: str) -> str:
    """At the paper's degree."""
    ratios = [
        other["makespan_s"] / ours["makespan_s"]
        for cell, seed, _, ours in found
        if (other := study.row(cell, seed, policy.format(MODELS[cell[0]])))
    ]
    return f"{median(ratios):.2f}" if ratios else "-"


def _s(row: Row | None) -> str:
    return f"{row['makespan_s']:.0f}" if row else "-"


def _over(best: Row | None, ours: Row | None) -> str:
    return f"{best['makespan_s'] / ours['makespan_s']:.2f}" if best and ours else "-"


def _layout(row: Row) -> str:
    degrees = row["layout"].split("+")
    alike = len(set(degrees)) == 1 and len(degrees) > 2
    return f"{len(degrees)}x{degrees[0]}" if alike else row["layout"]


def _name(cell: tuple[str, str]) -> str:
    return f"{cell[0].removeprefix('Qwen3-')} {cell[1]}"
