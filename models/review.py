"""How does a version do on rollouts it never saw, beside group history?

Only rollouts recorded since its training count: what it learned from says nothing. Both are asked
with the siblings recorded by now, each trajectory without itself. Needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from heddle.models.dataset import Dataset
from heddle.models.errors import DatasetError, RegistryError
from heddle.models.evaluate import OVERALL, Held, compare
from heddle.models.gate import Verdict, judge
from heddle.models.priors import features, history_log_quantiles, history_of, with_priors
from heddle.models.registry import Registry
from heddle.models.serve import log_quantiles


@dataclass(frozen=True, slots=True)
class Review:
    """The version and what the gate would say of it on those rollouts."""

    version: str
    rollouts: int
    trajectories: int
    verdict: Verdict

    @property
    def sentence(self) -> str:
        """One for a person."""
        told = self.verdict.table.filter(
            pl.col("metric") == "spearman", pl.col("k") == OVERALL
        ).to_dicts()
        spearman = (
            f"Spearman of remaining tokens {told[0]['candidate']:.3f}"
            f" (group history {told[0]['baseline']:.3f}), "
            if told
            else ""
        )
        return (
            f"{self.trajectories:,} trajectories of {self.rollouts:,} rollouts it never saw: "
            f"{spearman}the gate says {self.verdict.because}"
        )


def review(
    dataset: Dataset, registry: Registry, version: str | None = None, *, rounds: int = 200
) -> Review:
    """The version, or the one that serves, on the rollouts that were not in its training."""
    wanted = version or registry.active()
    if wanted is None:
        message = "no trained version serves, only group history; name a version to evaluate"
        raise RegistryError(message)
    weights, seen = registry.weights(wanted), registry.get(wanted).trained.get("rollouts", [])
    rows = dataset.rows
    named = pl.concat_str("run_id", pl.col("rollout_id").fill_null(""), separator="/")
    is_new = rows.select(~named.is_in(list(seen))).to_series()
    if not is_new.any():
        message = (
            f"all {dataset.trajectories:,} trajectories here were in the training of {wanted}; "
            "record another rollout, or read its held-out table: heddle predictor show"
        )
        raise DatasetError(message)
    # Levels of tasks come from what it was trained on, where there is any of it left.
    history = history_of(rows if is_new.all() else rows.filter(~is_new))
    new = with_priors(rows, history).filter(is_new)
    x, held = features(new), Held.from_rows(new)
    table = compare(log_quantiles(weights, x), history_log_quantiles(x), held, rounds=rounds)
    return Review(
        wanted,
        new.select(named.n_unique()).item(),
        new.select(pl.struct("run_id", "trajectory_id").n_unique()).item(),
        judge({"group history": table}),
    )
