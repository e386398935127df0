"""How much sooner does the preset `heddle` end than what a fleet would do without it?

The policy study in virtual time: nine cells (three models, three workloads), three seeds, paired.
B is `sticky` at the best homogeneous degree in hindsight, the one to beat. The fleet is an eighth
of the paper's 64 GPUs with as many trajectories a worker: whole cells take hours.
`python -m heddle.app.bench.replay JOURNAL SEEDS` keeps every row in a file and goes on from it;
`--gpus 64 --workloads math` plays the cells that a whole fleet can be afforded for.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from heddle.app.bench.cells import (
    MODELS,
    OURS,
    SIGMAS,
    SLIME,
    STICKY,
    Job,
    grid,
    perturbations,
    play_all,
    prefill_heavy,
)
from heddle.app.bench.figures import Figure, Say, document, markdown
from heddle.app.bench.replay_tables import tables

GPUS: Final = 8
SEEDS: Final = (0, 1, 2)
Row = dict[str, Any]


def run(*, quick: bool, say: Say) -> dict[str, Figure]:
    """Every cell; --quick is one seed on half the fleet, by history alone and undisturbed."""
    gpus, seeds = (GPUS // 2, SEEDS[:1]) if quick else (GPUS, SEEDS)
    jobs = [*grid(gpus, seeds, foreseen=not quick), *prefill_heavy(gpus, seeds)]
    if not quick:
        jobs += perturbations(gpus, SEEDS[0])
    return figures(studied(jobs, say))


def studied(jobs: Iterable[Job], say: Say, journal: Path | None = None) -> list[Row]:
    """Play them all and say how far it is."""
    wanted = list(jobs)
    left = len(wanted)

    def done(row: Row) -> None:
        nonlocal left
        left -= 1
        say(f"{left} left; {row['job']['model']} {row['cell']} {row['policy']}")

    return play_all(wanted, done, journal)


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """The issue's targets, cell by cell, each with its seeds' hashes."""
    told: dict[str, Figure] = {}
    plain = [r for r in rows if not r["job"]["slow"] and not r["job"]["wrong"]]
    cells = [r for r in plain if r["job"]["workload"] != "prefill-heavy"]
    for error, name in [(None, "history"), *((s, f"sigma_{s:g}") for s in SIGMAS)]:
        ours = [r for r in cells if r["policy"] == OURS and r["job"]["error"] == error]
        if ours:
            told |= _grid(ours, cells, name, known=error == 0.0)
    told |= _prefill([r for r in plain if r["job"]["workload"] == "prefill-heavy"])
    told |= _wrong([r for r in rows if r["job"]["wrong"]], cells)
    told |= _slow([r for r in rows if r["job"]["slow"]])
    return told


def _grid(
    ours: Sequence[Row], cells: Sequence[Row], name: str, *, known: bool
) -> dict[str, Figure]:
    told: dict[str, Figure] = {}
    floor, middle = (1.08, 1.18) if known else (1.02, 1.10)
    ratios = [best(row, cells)["makespan_s"] / row["makespan_s"] for row in ours]
    for cell in dict.fromkeys(_name(row) for row in ours):
        those = [(row, r) for row, r in zip(ours, ratios, strict=True) if _name(row) == cell]
        note = "; ".join(_said(row, best(row, cells)) for row, _ in those)
        lowest = min(ratio for _, ratio in those)
        told[f"{name}_{cell}"] = Figure(lowest, "x B", floor, "higher", f"lowest seed; {note}")
    note = f"{len(ratios)} rollouts, {ours[0]['job']['gpus']} GPUs"
    told[f"{name}_over_b"] = Figure(median(ratios), "x B", middle, "higher", note)
    told[f"{name}_over_verl"] = _over(ours, cells, STICKY, 2.1, note)
    told[f"{name}_over_slime"] = _over(ours, cells, SLIME, 1.9, note)
    share = median(row["bound_s"] / row["makespan_s"] for row in ours)
    told[f"{name}_of_bound"] = Figure(share, "", 0.82, "higher", "share of the lower bound")
    off = median(abs(row["predicted_s"] / row["makespan_s"] - 1.0) for row in ours)
    told[f"{name}_predicted_off"] = Figure(off, "", 0.05, "lower", "planned against replayed")
    return told


def _over(
    ours: Sequence[Row], cells: Sequence[Row], policy: str, target: float, note: str
) -> Figure:
    ratios = [
        other["makespan_s"] / row["makespan_s"]
        for row in ours
        for other in _paired(row, cells)
        if other["policy"] == policy.format(MODELS[row["job"]["model"]])
    ]
    return Figure(median(ratios), "x", target, "higher", f"at the paper's degree; {note}")


def _prefill(rows: Sequence[Row]) -> dict[str, Figure]:
    ours = [row for row in rows if row["policy"] == OURS]
    if not ours:
        return {}
    ratios = [best(row, rows)["makespan_s"] / row["makespan_s"] for row in ours]
    note = "; ".join(_said(row, best(row, rows)) for row in ours)
    return {"prefill_heavy": Figure(min(ratios), "x B", 1.0, "higher", f"lowest seed; {note}")}


def _wrong(rows: Sequence[Row], cells: Sequence[Row]) -> dict[str, Figure]:
    if not rows:
        return {}
    ratios = {_name(r): best(r, cells)["makespan_s"] / r["makespan_s"] for r in rows}
    note = "all beliefs wrong at once; " + _listed(ratios)
    return {"perturbed": Figure(min(ratios.values()), "x B", 1.0, "higher", note)}


def _slow(rows: Sequence[Row]) -> dict[str, Figure]:
    ours = [row for row in rows if row["policy"] == OURS]
    if not ours:
        return {}
    ratios = {_name(r): best(r, rows)["makespan_s"] / r["makespan_s"] for r in ours}
    note = "one engine 1.5x slow and unknown; " + _listed(ratios)
    return {"one_slow": Figure(min(ratios.values()), "x B", 1.0, "higher", note)}


def best(row: Row, rows: Sequence[Row]) -> Row:
    """B of the same cell and seed."""
    pinned = [r for r in _paired(row, rows) if r["policy"].startswith("verl/allocation")]
    return min(pinned, key=lambda r: r["makespan_s"])


def _paired(row: Row, rows: Sequence[Row]) -> list[Row]:
    same = ("model", "workload", "seed", "gpus", "groups")
    return [r for r in rows if all(r["job"][key] == row["job"][key] for key in same)]


def _name(row: Row) -> str:
    return f"{row['job']['model'].removeprefix('Qwen3-')}_{row['job']['workload']}"


def _said(row: Row, other: Row) -> str:
    return (
        f"seed {row['seed']}: {row['makespan_s']:.0f} s on {row['layout']}, B "
        f"{other['makespan_s']:.0f} s on {other['layout']}, workload {row['workload_hash']}, "
        f"engines {row['truth_hash']}"
    )


def _listed(ratios: dict[str, float]) -> str:
    return ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())


def main() -> None:
    """What `run` plays, of some seeds, fleet and workloads, as the tables of docs/results."""
    asking = argparse.ArgumentParser(description=__doc__)
    asking.add_argument("journal", type=Path, help="rows in it are not played again")
    asking.add_argument("seeds", type=_numbers, help="0,1,2: beliefs are wrong in the first")
    asking.add_argument("--gpus", type=int, default=GPUS)
    asking.add_argument("--workloads", type=lambda said: said.split(","), help="else all")
    asked = asking.parse_args()
    gpus, seeds = asked.gpus, asked.seeds
    every = [*grid(gpus, seeds), *prefill_heavy(gpus, seeds), *perturbations(gpus, seeds[0])]
    jobs = [job for job in every if not asked.workloads or job.workload in asked.workloads]
    rows = studied(jobs, lambda text: print(text, file=sys.stderr, flush=True), asked.journal)
    print(tables(rows), end="\n\n")
    print(markdown([document("replay", figures(rows))]))


def _numbers(said: str) -> list[int]:
    return [int(number) for number in said.split(",")]


if __name__ == "__main__":
    main()
