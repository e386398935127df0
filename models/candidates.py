"""How well do the simplest guesses do: a constant, tokens so far, the prompt's length, siblings?

Each is fitted on all folds but the one it answers for, as ln quantiles of the remaining tokens, so
that it is scored as the learned one is. Progress looks like skill wherever totals are scored; on
remaining tokens the first three say little (docs/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from heddle.models.dataset import KEY
from heddle.models.evaluate import OVERALL, Held, evaluate
from heddle.models.features import Floats
from heddle.models.lognormal import LEVELS

SIMPLE: Final[Mapping[str, tuple[str, ...]]] = {
    "constant": (),
    "tokens so far": ("tokens_so_far", "steps_so_far"),
    "prompt length": ("prompt_tokens",),
}
"""By name: what each looks at, as ln(1 + value)."""


def guesses(rows: pl.DataFrame, fold: NDArray[np.int64]) -> dict[str, Floats]:
    """ln quantiles of every row by each of SIMPLE; none where a fold is all there is to fit on, as
    by time on three rollouts."""
    whole = ~rows["truncated"].to_numpy()
    if any(not (whole & (fold != f)).any() for f in np.unique(fold)):
        return {}
    return {name: _line(rows, fold, columns) for name, columns in SIMPLE.items()}


def sibling_means(rows: pl.DataFrame) -> Floats:
    """Mean ln total of the other samples of the group, the grand mean where there is none: the
    untrained guess to beat. It ranks; it does not subtract what was written already."""
    whole = rows.group_by(*KEY, maintain_order=True).agg(pl.col("group_id", "total_tokens").first())
    log = pl.col("total_tokens").clip(lower_bound=1).log()
    others = (log.sum() - log).over("group_id") / (pl.len().over("group_id") - 1)
    means = whole.select(*KEY, siblings=others.fill_nan(None))
    means = means.with_columns(pl.col("siblings").fill_null(pl.col("siblings").mean()))
    return rows.join(means, on=KEY, maintain_order="left")["siblings"].to_numpy()


def standing(told: Mapping[str, Floats], rows: pl.DataFrame) -> pl.DataFrame:
    """One row a candidate and metric: the mean over the steps."""
    held = Held.from_rows(rows)
    tables = [
        evaluate(log_q, held)
        .filter(pl.col("k") == OVERALL)
        .select("metric", "value", candidate=pl.lit(name))
        for name, log_q in told.items()
    ]
    return pl.concat(tables)


def _line(rows: pl.DataFrame, fold: NDArray[np.int64], columns: tuple[str, ...]) -> Floats:
    """Least squares on the logarithms, with the residuals' own quantiles; a truncated row says
    only how long it was at least and is left out."""
    logs = [np.log1p(rows[c].cast(pl.Float64).to_numpy()) for c in columns]
    x = np.stack([*logs, np.ones(rows.height)], axis=1)
    y = np.log(np.maximum(rows["remaining_tokens"].cast(pl.Float64).to_numpy(), 1.0))
    whole = ~rows["truncated"].to_numpy()
    out = np.empty((rows.height, len(LEVELS)))
    for f in np.unique(fold):
        known, own = whole & (fold != f), fold == f
        slope = np.linalg.lstsq(x[known], y[known])[0]
        off = np.quantile(y[known] - x[known] @ slope, LEVELS)
        out[own] = (x[own] @ slope)[:, None] + off
    return out
