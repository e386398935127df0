"""How many steps are still to come, and how long does the tool that runs now take?

Two more heads on the layers of a fitted length network: ridge regression of the logarithms on its
standardised features and hidden units, in closed form. Steps of a truncated trajectory
are a lower bound: each round takes the larger of the bound and the answer. A head that does no
better on held-out groups than what is known without it (history's steps, the usual tool) is not
served.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
import torch

from heddle.models.features import Floats
from heddle.models.serve import Weights, head_inputs, simple_outlook

ROUNDS: Final = 4
"""Of filling in truncated rows: the fifth moves no answer by 1 %."""
RIDGE: Final = 1e-2
"""Times the rows, on standardised inputs."""
LEAST_TOOL_S: Final = 0.01
LEAST_ROWS: Final = 20


def targets(rows: pl.DataFrame) -> Floats:
    """ln of the steps still to come and of the running tool's seconds; NaN where nobody knows."""
    left = (rows["total_steps"] - rows["steps_so_far"]).cast(pl.Float64).to_numpy()
    tool_s = rows["running_tool_s"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    return np.stack([np.log(np.maximum(left, 1.0)), np.log(np.maximum(tool_s, LEAST_TOOL_S))], 1)


def fit_heads(weights: Weights, x: Floats, y: Floats, censored: Floats, weight: Floats) -> Floats:
    """(inputs, 2) for the one network in `weights`."""
    inputs = head_inputs(weights, x)[0]
    steps = _ridge(inputs, y[:, 0], weight)
    for _ in range(ROUNDS if censored.any() else 0):
        filled = np.where(censored > 0, np.maximum(y[:, 0], inputs @ steps), y[:, 0])
        steps = _ridge(inputs, filled, weight)
    known = np.isfinite(y[:, 1])
    tool = np.zeros(inputs.shape[1])
    if known.sum() >= LEAST_ROWS:
        tool = _ridge(inputs[known], y[known, 1], weight[known])
    return np.stack([steps, tool], axis=1)


def errors(told: Floats, y: Floats, censored: Floats) -> Floats:
    """Mean absolute error of the logarithms, one a head; NaN where nothing can be compared."""
    whole = y.copy()
    whole[censored > 0, 0] = np.nan
    found = [np.abs(told[:, i] - whole[:, i])[np.isfinite(whole[:, i])] for i in range(2)]
    return np.array([e.mean() if len(e) >= LEAST_ROWS else np.nan for e in found])


def trusted(
    told: Floats, x: Floats, y: Floats, censored: Floats
) -> tuple[Floats, dict[str, float]]:
    """Which heads beat what is known without them, held out, and by what: for the card."""
    usual = float(np.nanmean(y[:, 1])) if np.isfinite(y[:, 1]).any() else 0.0
    ours, simple = errors(told, y, censored), errors(simple_outlook(x, usual), y, censored)
    names = ("steps_log_error", "tool_s_log_error")
    metrics = dict(zip(names, ours.tolist(), strict=True))
    metrics |= {f"{n}_simple": v for n, v in zip(names, simple.tolist(), strict=True)}
    known = {name: value for name, value in metrics.items() if np.isfinite(value)}
    return np.array([*(ours < simple).astype(np.float64), usual]), known


def _ridge(inputs: Floats, y: Floats, weight: Floats) -> Floats:
    weighted = inputs * weight[:, None]
    pull = RIDGE * weight.sum() * np.eye(inputs.shape[1])
    pull[-1, -1] = 0.0
    # By torch, which keeps to its one thread: numpy's BLAS spins on every core, a fifth of all the
    # CPU time of a training.
    square = (torch.from_numpy(weighted).T @ torch.from_numpy(inputs)).numpy()
    return np.linalg.solve(square + pull + 1e-9 * np.eye(len(pull)), weighted.T @ y)
