"""What would group history have said of each recorded trajectory, had it been the newest?

Every trajectory is asked with its siblings and never with itself (leave one out). Task levels come
from the trajectories given as known, so held-out groups lend none of theirs. In training a random
part of the siblings is hidden for half of the trajectories: the model meets groups young and old.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from heddle.models.dataset import KEY
from heddle.models.features import COLUMNS, PRIOR, Floats, matrix
from heddle.models.history import GroupHistory, predictive
from heddle.models.lognormal import Lognormal, quantiles_many
from heddle.models.serve import PRIOR_AT
from heddle.models.variance import GroupStats

MOST_SIBLINGS: Final = 64
"""Beyond this a further sibling changes the predictive variance by less than 1 %."""
HIDDEN_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Sample:
    at: int
    log_tokens: float
    truncated: bool
    steps: int


def totals(rows: pl.DataFrame) -> pl.DataFrame:
    """One row a trajectory: whose, its total, whether cut off, its steps."""
    return rows.group_by(*KEY, maintain_order=True).agg(
        pl.col("task", "group_id", "truncated", "total_tokens", "total_steps").first()
    )


def history_of(rows: pl.DataFrame) -> GroupHistory:
    """Group history as the collector's query would give it for these trajectories."""
    log_tokens, whole = pl.col("total_tokens").clip(lower_bound=1).log(), ~pl.col("truncated")
    frame = (
        totals(rows)
        .group_by("task", "group_id")
        .agg(
            trajectories=whole.sum(),
            mean_log_tokens=log_tokens.filter(whole).mean(),
            var_log_tokens=log_tokens.filter(whole).var(),
            mean_steps=pl.col("total_steps").mean(),
            mean_tool_s=pl.lit(0.0),
            truncated=(~whole).sum(),
            mean_log_truncated=log_tokens.filter(~whole).mean(),
        )
    )
    return GroupHistory.from_frame(frame.sort("task", "group_id"))


def with_priors(
    rows: pl.DataFrame, history: GroupHistory, hide: np.random.Generator | None = None
) -> pl.DataFrame:
    """The rows with history's columns (`features.PRIOR`); `hide` draws
    which siblings are left out."""
    samples = totals(rows).with_row_index("at")
    laws: list[tuple[float, float, int, float]] = [(0.0, 1.0, 0, 0.0)] * samples.height
    for (task, _), part in samples.group_by("task", "group_id", maintain_order=True):
        siblings = [_sample(row) for row in part.iter_rows(named=True)]
        for own in siblings:
            others = _shown([s for s in siblings if s is not own], hide)
            laws[own.at] = _law(task, others, history)
    named = pl.DataFrame(
        laws, schema=["prior_mu", "prior_sigma", "prior_samples", "prior_steps"], orient="row"
    )
    joined = rows.join(samples.select(*KEY).hstack(named), on=KEY, maintain_order="left")
    return joined.with_columns(_quantiles(joined))


def features(rows: pl.DataFrame) -> Floats:
    """The feature matrix of rows with priors."""
    names = (*COLUMNS, "tool_bucket", *PRIOR)
    return matrix({name: rows[name].cast(pl.Float64).to_numpy() for name in names})


def history_log_quantiles(x: Floats) -> Floats:
    """What group history alone answers for those rows: ln of its p10, p50, p90."""
    at, low, high = PRIOR_AT
    return np.stack([x[:, at] - x[:, low], x[:, at], x[:, at] + x[:, high]], axis=1)


def _sample(row: dict[str, Any]) -> _Sample:
    log_tokens = math.log(max(row["total_tokens"], 1))
    return _Sample(row["at"], log_tokens, row["truncated"], row["total_steps"])


def _shown(others: list[_Sample], hide: np.random.Generator | None) -> list[_Sample]:
    if hide is not None and others and hide.random() < HIDDEN_SHARE:
        order = hide.permutation(len(others))[: int(hide.integers(0, len(others) + 1))]
        others = [others[i] for i in order]
    return others[:MOST_SIBLINGS]


def _law(
    task: Any, others: Sequence[_Sample], history: GroupHistory
) -> tuple[float, float, int, float]:
    logs = np.array([s.log_tokens for s in others if not s.truncated])
    mean = float(logs.mean()) if len(logs) else 0.0
    stats = GroupStats(len(logs), mean, float(((logs - mean) ** 2).sum()))
    law: Lognormal = predictive(
        stats, [s.log_tokens for s in others if s.truncated], history.level(task)
    )
    steps = history.steps_with(sum(s.steps for s in others), len(others), task)
    return law.mu, law.sigma, len(logs), steps or 0.0


def _quantiles(joined: pl.DataFrame) -> list[pl.Series]:
    mu, sigma, so_far = (
        joined[name].cast(pl.Float64).to_numpy()
        for name in ("prior_mu", "prior_sigma", "tokens_so_far")
    )
    logs = np.log(np.maximum(quantiles_many(mu, sigma, so_far), 1.0))
    named = zip(("prior_log_p10", "prior_log_p50", "prior_log_p90"), logs.T, strict=True)
    return [pl.Series(name, values) for name, values in named]
