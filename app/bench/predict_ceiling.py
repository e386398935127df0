"""How much of a generated trajectory's length can anybody tell, and how sure is that of so few?

Two ceilings, each the ln quantiles of what remains. The oracle knows the latents of the prompt. Who
knows the generator's law, but of the prompt only what its fifteen siblings did, is told less: where
few are left that is the ceiling of every predictor. Neither knows which trajectories a limit cuts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from heddle.app.bench.predict_sets import KS, Judged, ranks
from heddle.controller.emulator.oracle import Oracle
from heddle.controller.emulator.presets import PRESETS
from heddle.models.dataset import KEY
from heddle.models.evaluate import spearman
from heddle.models.features import Floats
from heddle.models.priors import history_of, totals, with_priors

IMAGINED: Final = 1_000
"""Trajectories a sample: three times as many move no part of the oracle's Spearman by 0.005."""
PACE_SPREAD: Final = 0.21
"""Of ln tokens a step: 0.2 within a prompt, and what fifteen siblings leave unknown of its own."""
ROUNDS: Final = 200
BLOCK: Final = 96
"""Groups of one draw: how much the parts of the oracle's vary between such."""
At = NDArray[np.int64]


def oracle_of(preset: str, groups: int, rows: pl.DataFrame) -> Floats:
    """What an oracle answers for each row after one of KS steps; NaN for others."""
    names = rows["group_id"].str.slice(-4).cast(pl.Int64).to_numpy()
    steps, so_far = rows["steps_so_far"].to_numpy(), rows["tokens_so_far"].to_list()
    out = np.full((rows.height, 3), np.nan)
    for group in range(groups):
        oracle = Oracle.of(preset, group, 0)
        for i in np.flatnonzero((names == group) & np.isin(steps, KS)):
            out[i] = oracle.log_quantiles(int(steps[i]), so_far[i])
    return out


def siblings_of(preset: str, rows: pl.DataFrame) -> Floats:
    """What the other samples can tell one who knows the generator; NaN but after KS steps."""
    tokens, steps = pl.col("total_tokens"), pl.col("total_steps")
    theirs = (tokens.sum().over("group_id") - tokens) / (steps.sum().over("group_id") - steps)
    paces = totals(rows).select(*KEY, pace=theirs)
    asked = rows.with_row_index("row").filter(pl.col("steps_so_far").is_in(KS))
    asked = with_priors(asked, history_of(rows)).join(paces, on=KEY, maintain_order="left")
    out = np.full((rows.height, 3), np.nan)
    for part in asked.filter(~pl.col("truncated")).partition_by(*KEY, maintain_order=True):
        imagined = _imagined(preset, part.row(0, named=True))
        for row, k, so_far in part.select("row", "steps_so_far", "tokens_so_far").iter_rows():
            out[row] = imagined.log_quantiles(k, so_far)
    return out


def _imagined(preset: str, known: dict[str, Any]) -> Oracle:
    rng = np.random.default_rng([known["row"], 0x51B])
    wanted = rng.lognormal(known["prior_mu"], known["prior_sigma"], IMAGINED)
    step = known["pace"] * rng.lognormal(0.0, PACE_SPREAD, IMAGINED)
    return Oracle.drawn(PRESETS[preset], wanted, step, rng)


def interval(of: Callable[[At], float], group: NDArray[Any]) -> tuple[float, float]:
    """90 % of it, whole groups drawn again; `of` is given places in `group`."""
    _, which = np.unique(group, return_inverse=True)
    order = np.argsort(which, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(which))[:-1])
    rng = np.random.default_rng(0)
    drawn = [
        of(np.concatenate([parts[g] for g in rng.integers(0, len(parts), len(parts))]))
        for _ in range(ROUNDS)
    ]
    low, high = np.quantile(drawn, (0.05, 0.95)).tolist()
    return low, high


@dataclass(frozen=True, slots=True)
class Parts:
    """At one step: parts of the oracle's figures, the share inside the interval, and a sentence."""

    spearman: float
    siblings: float
    recall20: float
    covered: float
    told: str


def parts_of(found: Judged, ceilings: tuple[Floats, Floats], at: At) -> Parts:
    """What was chosen against the oracle (first of the ceilings), and what siblings can tell."""
    truth, said = found.truth[at], found.chosen[at]
    oracle, siblings = (ceiling[at] for ceiling in ceilings)
    (s, r, c), (top_s, top_r, _) = ranks(said, truth), ranks(oracle, truth)
    by_siblings = spearman(siblings[:, 1], truth) / top_s

    def part(some: At) -> float:
        return spearman(said[some, 1], truth[some]) / spearman(oracle[some, 1], truth[some])

    low, high = interval(part, found.fitted.rows["group_id"].to_numpy()[at])
    told = (
        f"Spearman {s:.3f}, oracle {top_s:.3f}: {s / top_s:.3f} [{low:.2f}, {high:.2f}] of it; "
        f"by siblings and the generator's law {by_siblings:.3f}; recall of the longest fifth "
        f"{r:.3f} of {top_r:.3f}; coverage {c:.0%}"
    )
    return Parts(s / top_s, by_siblings, r / top_r, c, told)


def by_blocks(found: Judged, ceilings: tuple[Floats, Floats], at: At) -> str:
    """The same of each BLOCK groups, where there are several."""
    groups = found.fitted.rows["group_id"].str.slice(-4).cast(pl.Int64).to_numpy()[at]
    blocks = groups // BLOCK
    if len(np.unique(blocks)) == 1:
        return ""
    each = [parts_of(found, ceilings, at[blocks == b]) for b in np.unique(blocks)]
    listed = ", ".join(f"{part.spearman:.2f} ({part.siblings:.2f})" for part in each)
    return f"; by {BLOCK} groups, and by siblings: {listed}"
