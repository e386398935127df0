"""Does each further step tell more of the same trajectories?

Paired: the trajectories that took more than two steps, ranked by what the prompt told, what was
known at admission, after one step and after two, all against the same tokens: those left after two.
Against what was left at its own moment each would rank another quantity, and the oracle's own
Spearman falls from step to step then: what is easy to foresee has been written.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from heddle.app.bench import predict_sets as sets
from heddle.app.bench.figures import Figure
from heddle.app.bench.predict_ceiling import At, interval
from heddle.models.evaluate import spearman
from heddle.models.features import Floats

LAST: Final = 2
PAIRS: Final = (
    ("heddle1_over_prompt", "Heddle-1", "prompt only"),
    ("heddle2_over_heddle1", "Heddle-2", "Heddle-1"),
)


def more_is_known(preset: str, found: sets.Judged, oracle: Floats) -> dict[str, Figure]:
    """Heddle-1 over the prompt alone, and Heddle-2 over Heddle-1."""
    at = {k: found.at(k, least_steps=LAST) for k in range(LAST + 1)}
    left = found.truth[at[LAST]]
    told = {"prompt only": sets.prompt_only(found)[at[0], 1]}
    told |= {f"Heddle-{k}": found.chosen[rows, 1] for k, rows in at.items()}
    ranked = ", ".join(f"{who} {spearman(said, left):.3f}" for who, said in told.items())
    best = ", ".join(f"{spearman(oracle[rows, 1], left):.3f}" for rows in at.values())
    note = f"{len(left)} trajectories, what is left after two steps: {ranked}; oracle {best}"
    group = found.fitted.rows["group_id"].to_numpy()[at[LAST]]
    figures: dict[str, Figure] = {}
    for name, later, sooner in PAIRS:

        def gain(some: At, now: Floats = told[later], before: Floats = told[sooner]) -> float:
            return spearman(now[some], left[some]) - spearman(before[some], left[some])

        low, high = interval(gain, group)
        whole = gain(np.arange(len(left)))
        said = f"Spearman, 90 % interval {low:+.3f} to {high:+.3f}; {note}"
        figures[f"{preset}_{name}"] = Figure(whole, "", 0.0, "higher", said)
    return figures
