"""How good is the network on groups it never saw, and which networks serve afterwards?

Folds of whole groups (or task families, or rollouts). Each network is fitted on all folds but two:
one stops its training, one scores it. The scored predictions together cover every row once; the
networks together are what is served.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from heddle.models.evaluate import KS, groups_of
from heddle.models.features import FEATURES, Floats
from heddle.models.folds import Split, folds_of, known_to, scored
from heddle.models.heads import fit_heads, targets, trusted
from heddle.models.length import Examples, FitArgs, export, fit
from heddle.models.priors import features, history_log_quantiles, history_of, with_priors
from heddle.models.serve import Weights, log_outlook, log_quantiles

Progress = Callable[[float, str], None]
"""Called with the part done (0 to 1) and a sentence."""
TOOL_HIDDEN: Final = 0.5
"""Of training rows forget the tool's name: a fleet whose client sends no tool spans has none."""


@dataclass(frozen=True, slots=True)
class Crossfit:
    """Held-out predictions for every row, in ln tokens, and the ensemble that made them."""

    rows: pl.DataFrame
    x: Floats
    """The feature matrix each row was scored on."""
    learned: Floats
    history: Floats
    weights: Weights
    fold: NDArray[np.int64]
    outlook: dict[str, float]
    """Held-out errors of the heads for steps and tool seconds, and without them (`_simple`)."""


def examples(rows: pl.DataFrame) -> Examples:
    """Rows with priors as arrays; later steps weigh less, as 1/sqrt(1 + k), never by length."""
    y = np.log(np.maximum(rows["remaining_tokens"].cast(pl.Float64).to_numpy(), 1.0))
    weight = 1.0 / np.sqrt(1.0 + rows["steps_so_far"].cast(pl.Float64).to_numpy())
    censored = rows["truncated"].to_numpy().astype(np.float64)
    return Examples(features(rows), y, censored, weight, groups_of(rows))


def crossfit(
    rows: pl.DataFrame, split: Split, folds: int, args: FitArgs, progress: Progress
) -> Crossfit:
    """Fit one network a fold and predict each row by the network that saw nothing of its fold."""
    fold = folds_of(rows, split, folds, args.seed)
    count = int(fold.max()) + 1
    judged = scored(split, fold)
    x = np.empty((rows.height, len(FEATURES)))
    learned, outlook = np.empty((rows.height, 3)), np.empty((rows.height, 2))
    nets: list[Weights] = []
    for f in range(int(fold[judged].min()), count):
        progress(f / count, f"fitting network {f + 1} of {count}")
        x[fold == f], net = _one(rows, fold, f, known_to(split, fold, f, count), args)
        learned[fold == f] = log_quantiles(net, x[fold == f])
        outlook[fold == f] = log_outlook(net, x[fold == f])
        nets.append(net)
    rows, x, fold = rows.filter(judged), x[judged], fold[judged]
    learned, widen = _calibrated(rows, learned[judged], fold)
    censored = rows["truncated"].to_numpy().astype(np.float64)
    trust, errors = trusted(outlook[judged], x, targets(rows), censored)
    progress(1.0, "comparing on held-out groups")
    weights = replace(together(nets), widen=np.array(widen), heads_trust=trust)
    return Crossfit(rows, x, learned, history_log_quantiles(x), weights, fold, errors)


def together(nets: Sequence[Weights]) -> Weights:
    """One ensemble of several; what belongs to the ensemble is still to be set."""
    apart = ("widen", "heads_trust")
    named = [f.name for f in fields(Weights) if f.name not in apart]
    stacked = {name: np.concatenate([getattr(net, name) for net in nets]) for name in named}
    return replace(nets[0], **stacked)


def _one(
    rows: pl.DataFrame,
    fold: NDArray[np.int64],
    f: int,
    teaching: tuple[int, NDArray[np.bool_]],
    args: FitArgs,
) -> tuple[Floats, Weights]:
    stop, taught = teaching
    known = rows.filter(taught)
    history = history_of(known)
    rng = np.random.default_rng([args.seed, f])
    train = _forget_tools(with_priors(known, history, rng), rng)
    validation = with_priors(rows.filter(fold == stop), history)
    made = examples(train)
    net = export([fit(made, examples(validation), args)[0]])
    heads = fit_heads(net, made.x, targets(train), made.censored, made.weight)
    net = replace(net, heads=heads[None], heads_trust=np.ones(3))
    return features(with_priors(rows.filter(fold == f), history)), net


def _forget_tools(rows: pl.DataFrame, rng: np.random.Generator) -> pl.DataFrame:
    forget = pl.Series(rng.random(rows.height) < TOOL_HIDDEN)
    bucket = pl.when(forget).then(-1).otherwise(pl.col("tool_bucket"))
    return rows.with_columns(tool_bucket=bucket)


def _calibrated(
    rows: pl.DataFrame, log_q: Floats, fold: NDArray[np.int64]
) -> tuple[Floats, tuple[float, float]]:
    """Each fold's intervals widened by what the other folds missed, and the factors of all."""
    y = np.log(np.maximum(rows["remaining_tokens"].cast(pl.Float64).to_numpy(), 1.0))
    scored = np.isin(rows["steps_so_far"].to_numpy(), KS) & ~rows["truncated"].to_numpy()
    out = log_q.copy()
    for f in range(int(fold.max()) + 1):
        others, own = scored & (fold != f), fold == f
        below, above = np.exp(_widening(log_q[others], y[others]))
        out[own, 0] = log_q[own, 1] - below * (log_q[own, 1] - log_q[own, 0])
        out[own, 2] = log_q[own, 1] + above * (log_q[own, 2] - log_q[own, 1])
    return out, _widening(log_q[scored], y[scored])


def _widening(log_q: Floats, y: Floats) -> tuple[float, float]:
    """ln factors on the spreads below and above that put a tenth outside each, within 1/2 to 2."""
    if len(y) == 0:
        return 0.0, 0.0
    below = np.quantile((log_q[:, 1] - y) / (log_q[:, 1] - log_q[:, 0]), 0.9)
    above = np.quantile((y - log_q[:, 1]) / (log_q[:, 2] - log_q[:, 1]), 0.9)
    low, high = np.log(np.clip([below, above], 0.5, 2.0)).tolist()
    return low, high
