"""What are the predictor's real errors worth to the planner?

Its held-out residuals on a generated workload become the log-error with which one small cell of
that workload is foreseen, in virtual time; beside it the same cell foreseen perfectly and by group
history. One cell of a few hundred trajectories: the nine cells are `heddle bench replay`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from heddle.app.bench import predict_sets as sets
from heddle.app.bench.figures import Figure, Say
from heddle.app.replay import generated, play

CELL_GROUPS: Final = 16
GPUS: Final = 8
OURS: Final = "heddle"
STICKY: Final = "verl/allocation=fixed-1"


def sigmas(found: sets.Judged) -> dict[int, float]:
    """Standard deviation of ln(truth / p50) on held-out rows, by step."""
    told: dict[int, float] = {}
    for k in sets.KS:
        at = found.at(k)
        if len(at) >= sets.FEWEST:
            told[k] = float(np.std(np.log(np.maximum(found.truth[at], 1.0)) - found.chosen[at, 1]))
    return told


def planned(preset: str, found: sets.Judged, say: Say) -> dict[str, Figure]:
    """The makespan with the chosen predictor's error at admission, against history's."""
    errors = sigmas(found)
    listed = ", ".join(f"k = {k}: {sigma:.2f}" for k, sigma in errors.items())
    say(f"{preset}: log-error of what was chosen, held out, {listed}")
    cell = generated(preset, seed=0, groups=CELL_GROUPS, gpus=GPUS)

    def makespan_s(policy: str, error: float | None) -> float:
        row: dict[str, Any] = play(replace(cell, error=error), policy)
        return float(row["makespan_s"])

    real_s, history_s = makespan_s(OURS, errors[0]), makespan_s(OURS, None)
    perfect_s, sticky_s = makespan_s(OURS, 0.0), makespan_s(STICKY, None)
    note = (
        f"{CELL_GROUPS} groups of 16, {GPUS} GPUs, virtual time; log-error {errors[0]:.2f}; "
        f"foreseen perfectly {perfect_s:.0f} s, sticky TP1 {sticky_s:.0f} s; target: by history"
    )
    return {f"{preset}_planned_s": Figure(real_s, "s", history_s, "lower", note)}
