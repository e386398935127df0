"""How long may each trajectory still be, as equally likely values instead of one?

Sixteen draws of each prediction, at levels that belong to the trajectory's name: two decisions, and
two policies on the same rollout, see the same luck (common random numbers). Predictions arrive
conditional on the tokens so far, so the draws are survival-corrected without more ado.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from heddle.controller.core.types import Trajectory

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

DRAWS: Final = 16
ROWS: Final = 512
"""Different sets of levels; trajectories beyond that many share one with another."""
Z90: Final = NormalDist().inv_cdf(0.9)
UNPREDICTED_SIGMA: Final = 0.8
"""Log-spread of a length nobody predicted: what agentic tasks show (models.variance)."""
LEAST_TOKENS: Final = 20.0


def _levels() -> Floats:
    """Stratified standard-normal values, one row a name: sixteen strata, shuffled by row."""
    rng = np.random.default_rng(0)
    strata = np.argsort(rng.random((ROWS, DRAWS)), axis=1)
    levels = (strata + rng.random((ROWS, DRAWS))) / DRAWS
    inverse = NormalDist().inv_cdf
    flat = [inverse(min(max(u, 1e-9), 1 - 1e-9)) for u in levels.ravel().tolist()]
    return np.array(flat).reshape(ROWS, DRAWS)


LEVELS: Final = _levels()


def level_of(name: str) -> int:
    """Which row of levels belongs to that trajectory."""
    return crc32(name.encode()) % ROWS


def draws_of(quantiles: Floats, levels: Ints) -> Floats:
    """One row of draws for each row of p10, p50, p90 and mean.

    Log-normal on each side of the median; the mean is the predicted one.
    """
    p10, p50, p90, mean = np.maximum(quantiles, 1.0).T
    below, above = np.log(p50 / p10) / Z90, np.log(p90 / p50) / Z90
    z = LEVELS[levels]
    drawn = p50[:, None] * np.exp(z * np.where(z < 0, below[:, None], above[:, None]))
    # Sixteen strata miss part of the tail's mass: the mean is what work adds up to.
    drawn *= (mean / drawn.mean(axis=1))[:, None]
    return np.maximum(drawn, LEAST_TOKENS)


def quantiles_of(trajectory: Trajectory, mean: float) -> tuple[float, float, float, float]:
    """p10, p50, p90 and mean of what remains; a wide guess around `mean` without a prediction."""
    known = trajectory.remaining
    if known is not None:
        return known.p10, known.p50, known.p90, known.mean
    middle, wide = mean / math.exp(UNPREDICTED_SIGMA**2 / 2), math.exp(UNPREDICTED_SIGMA * Z90)
    return middle / wide, middle, middle * wide, mean
