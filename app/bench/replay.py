"""How much sooner does the preset `heddle` end than what a fleet would do without it?

Paired cells in virtual time. B is `sticky` at the best homogeneous degree in hindsight, the one
to beat; `verl` is sticky at degree 1. Reduced by default: 128 trajectories on 4 GPUs.
"""

from __future__ import annotations

from statistics import median
from typing import Any, Final

from heddle.app.bench.figures import Figure, Say
from heddle.app.replay import generated, play

CELLS: Final = ("coding", "search", "math", "prefill-heavy")
DEGREES: Final = (1, 2, 4)
GPUS: Final = 4
GROUPS: Final = 8


def run(*, quick: bool, say: Say) -> dict[str, Figure]:
    """Two seeds of every cell; --quick is one."""
    over_b: list[float] = []
    over_verl: list[float] = []
    off_plan: list[float] = []
    told: dict[str, Figure] = {}
    for workload in CELLS:
        rows = [_cell(workload, seed, say) for seed in range(1 if quick else 2)]
        over_b += [row["over_b"] for row in rows]
        over_verl += [row["over_verl"] for row in rows]
        off_plan += [row["off_plan"] for row in rows]
        note = "; ".join(f"{row['hash']}, B at degree {row['degree']}" for row in rows)
        lowest = min(row["over_b"] for row in rows)
        told[f"{workload}_over_b"] = Figure(lowest, "x", 1.02, "higher", f"lowest seed; {note}")
    how = f"{GROUPS * 16} trajectories on {GPUS} GPUs, history predicts"
    told["median_over_b"] = Figure(median(over_b), "x", 1.1, "higher", how)
    told["median_over_verl"] = Figure(median(over_verl), "x", 2.1, "higher", how)
    told["predicted_off"] = Figure(median(off_plan), "", 0.05, "lower", how)
    return told


def _cell(workload: str, seed: int, say: Say) -> dict[str, Any]:
    say(f"{workload}, seed {seed}")
    cell = generated(workload, seed=seed, groups=GROUPS, gpus=GPUS)
    pinned = {d: play(cell, f"verl/allocation=fixed-{d}") for d in DEGREES}
    ours = play(cell, "heddle")
    degree = min(pinned, key=lambda d: pinned[d]["makespan_s"])
    return {
        "over_b": pinned[degree]["makespan_s"] / ours["makespan_s"],
        "over_verl": pinned[1]["makespan_s"] / ours["makespan_s"],
        "off_plan": abs(ours["predicted_s"] / ours["makespan_s"] - 1.0),
        "degree": degree,
        "hash": f"workload {ours['workload_hash']}, engines {ours['truth_hash']}",
    }
