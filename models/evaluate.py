"""Is one predictor better than another, on the same held-out groups, per step?

Always paired and always on REMAINING tokens. Intervals come from resampling whole groups, since
samples of one prompt are alike. Truncated rows enter the pinball loss as lower bounds and no other
metric: how long they would have become nobody knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from heddle.models.features import Floats
from heddle.models.lognormal import LEVELS

KS: Final = (0, 1, 2, 4, 8, 16)
LEAST_ROWS: Final = 20
"""A k with fewer trajectories is left out: its top 10 % would be one of them."""
OVERALL: Final = -1
"""In the table's column k: the mean over the steps."""


@dataclass(frozen=True, slots=True)
class Held:
    """Held-out rows: whose group, after how many steps, what was left, whether cut off."""

    group: NDArray[np.int64]
    k: NDArray[np.int64]
    remaining: Floats
    censored: NDArray[np.bool_]

    @classmethod
    def from_rows(cls, rows: pl.DataFrame) -> Held:
        """From a dataset's rows; `ask` gave every one of them a group."""
        return cls(
            groups_of(rows),
            rows["steps_so_far"].cast(pl.Int64).to_numpy(),
            rows["remaining_tokens"].cast(pl.Float64).to_numpy(),
            rows["truncated"].to_numpy(),
        )

    def steps(self) -> list[int]:
        """The k with enough rows to be scored."""
        seen = {k: int(((self.k == k) & ~self.censored).sum()) for k in KS}
        return [k for k, rows in seen.items() if rows >= LEAST_ROWS]


def groups_of(rows: pl.DataFrame) -> NDArray[np.int64]:
    """A number from 0 for each group; rows without one share the last, they never become NaN."""
    return rows["group_id"].fill_null("\U0010ffff").rank("dense").cast(pl.Int64).to_numpy() - 1


def ranks(values: Floats) -> Floats:
    """From 0; ties share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts + 1) / 2.0)[inverse]


def spearman(predicted: Floats, truth: Floats) -> float:
    """Rank correlation; 0 where either side is constant."""
    a, b = ranks(predicted), ranks(truth)
    a, b = a - a.mean(), b - b.mean()
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale > 0 else 0.0


def recall(predicted: Floats, truth: Floats, share: float) -> float:
    """Of the longest `share`, the part among as many predicted longest.

    Where a tie straddles the cut every tied row counts for its fair part.
    """
    top = max(math.ceil(share * len(truth)), 1)
    cut = np.sort(predicted)[-top]
    above, tied = predicted > cut, predicted == cut
    taken = above + tied * (top - above.sum()) / tied.sum()
    longest = np.argsort(-truth, kind="stable")[:top]
    return float(taken[longest].mean())


def pinball(log_q: Floats, remaining: Floats, censored: NDArray[np.bool_]) -> float:
    """Mean over levels and rows on ln tokens; a truncated row costs nothing above its length."""
    short = np.log(np.maximum(remaining, 1.0))[:, None] - log_q
    levels = np.array(LEVELS)
    over = np.maximum(-short, 0.0) * (1.0 - levels) * ~censored[:, None]
    return float((np.maximum(short, 0.0) * levels + over).mean())


def coverage(log_q: Floats, remaining: Floats) -> float:
    """Share of rows between p10 and p90; 0.8 is calibrated."""
    y = np.log(np.maximum(remaining, 1.0))
    return float(((y >= log_q[:, 0]) & (y <= log_q[:, 2])).mean())


def _mae(log_q: Floats, remaining: Floats) -> float:
    return float(np.abs(np.exp(log_q[:, 1]) - remaining).mean())


Metric = Callable[[Floats, Floats], float]
METRICS: Final[dict[str, Metric]] = {
    "spearman": lambda q, y: spearman(q[:, 1], y),
    "recall10": lambda q, y: recall(q[:, 1], y, 0.1),
    "recall20": lambda q, y: recall(q[:, 1], y, 0.2),
    "mae_tokens": _mae,
    "coverage80": coverage,
}
"""Of ln quantiles and remaining tokens, rows that were not cut off."""
NAMES: Final = (*METRICS, "pinball")


def scores(log_q: Floats, held: Held, at: NDArray[np.int64]) -> Floats:
    """The metrics in the order of NAMES over those rows."""
    censored = held.censored[at]
    whole = at[~censored]
    plain = [metric(log_q[whole], held.remaining[whole]) for metric in METRICS.values()]
    return np.array([*plain, pinball(log_q[at], held.remaining[at], censored)])


def evaluate(log_q: Floats, held: Held) -> pl.DataFrame:
    """One row a k and metric: k, n, metric, value; k = -1 is the mean over the steps."""
    table = compare(log_q, log_q, held, rounds=0)
    return table.select("k", "n", "metric", pl.col("candidate").alias("value"))


def compare(
    candidate: Floats, baseline: Floats, held: Held, *, rounds: int = 200, seed: int = 0
) -> pl.DataFrame:
    """k, n, metric, baseline, candidate, difference, low, high (90 % interval of the difference).

    k = -1 is the mean over the steps. Without `rounds` the interval is null.
    """
    steps = held.steps()
    rows = {k: np.flatnonzero(held.k == k) for k in steps}
    base = np.array([scores(baseline, held, rows[k]) for k in steps])
    ours = np.array([scores(candidate, held, rows[k]) for k in steps])
    drawn = _resampled(candidate, baseline, held, steps, rounds, seed)
    table = [_line(k, len(rows[k]), base[i], ours[i], drawn[:, i]) for i, k in enumerate(steps)]
    if steps:
        n = len(np.concatenate([rows[k] for k in steps]))
        overall = _line(OVERALL, n, base.mean(0), ours.mean(0), drawn.mean(1))
        table.insert(0, overall)
    nothing = np.zeros(len(NAMES))
    return pl.concat(table) if table else _line(0, 0, nothing, nothing, drawn[:0]).clear()


def _resampled(
    candidate: Floats, baseline: Floats, held: Held, steps: list[int], rounds: int, seed: int
) -> Floats:
    """Differences per round, step and metric, over groups drawn with replacement."""
    rng = np.random.default_rng(seed)
    groups = int(held.group.max()) + 1 if len(held.group) else 0
    by_step = {k: _by_group(held, k, groups) for k in steps}
    out = np.zeros((rounds, len(steps), len(NAMES)))
    for r in range(rounds):
        drawn = rng.integers(0, groups, groups)
        for i, k in enumerate(steps):
            at = np.concatenate([by_step[k][g] for g in drawn])
            if (~held.censored[at]).any():
                out[r, i] = scores(candidate, held, at) - scores(baseline, held, at)
    return out


def _by_group(held: Held, k: int, groups: int) -> list[NDArray[np.int64]]:
    at = np.flatnonzero(held.k == k)
    at = at[np.argsort(held.group[at], kind="stable")]
    return np.split(at, np.searchsorted(held.group[at], np.arange(1, groups)))


def _line(k: int, n: int, base: Floats, ours: Floats, drawn: Floats) -> pl.DataFrame:
    low, high = (
        np.quantile(drawn, (0.05, 0.95), axis=0) if len(drawn) else np.full((2, len(NAMES)), None)
    )
    return pl.DataFrame(
        {
            "k": [k] * len(NAMES),
            "n": [n] * len(NAMES),
            "metric": list(NAMES),
            "baseline": base.tolist(),
            "candidate": ours.tolist(),
            "difference": (ours - base).tolist(),
            "low": low.tolist(),
            "high": high.tolist(),
        },
        schema_overrides={"low": pl.Float64, "high": pl.Float64, "k": pl.Int64, "n": pl.Int64},
    )
