"""How long may each trajectory still be, as equally likely values instead of one?

Sixteen draws of each prediction, at levels that belong to the trajectory's name: two decisions, and
two policies on the same rollout, see the same luck (common random numbers). Predictions arrive
conditional on the tokens so far, so the draws are survival-corrected without more ado.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from heddle.controller.core.types import Rates, Snapshot, Trajectory

Floats = NDArray[np.float64]

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


def remaining_draws(trajectories: Sequence[Trajectory], rates: Rates) -> Floats:
    """One row of draws a trajectory: log-normal on each side of the median, mean as predicted."""
    if not trajectories:
        return np.zeros((0, DRAWS))
    quantiles = np.array([_quantiles(t, rates) for t in trajectories])
    p10, p50, p90, mean = np.maximum(quantiles, 1.0).T
    below, above = np.log(p50 / p10) / Z90, np.log(p90 / p50) / Z90
    z = LEVELS[[crc32(t.id.encode()) % ROWS for t in trajectories]]
    drawn = p50[:, None] * np.exp(z * np.where(z < 0, below[:, None], above[:, None]))
    # Sixteen strata miss part of the tail's mass: the mean is what work adds up to.
    drawn *= (mean / drawn.mean(axis=1))[:, None]
    return np.maximum(drawn, LEAST_TOKENS)


def _quantiles(trajectory: Trajectory, rates: Rates) -> tuple[float, float, float, float]:
    known = trajectory.remaining
    if known is not None:
        return known.p10, known.p50, known.p90, known.mean
    mean = rates.remaining_tokens
    middle, wide = mean / math.exp(UNPREDICTED_SIGMA**2 / 2), math.exp(UNPREDICTED_SIGMA * Z90)
    return middle / wide, middle, middle * wide, mean


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is still to come of some live trajectories; rows in their order."""

    rows: dict[str, int]
    draws: Floats
    context: Floats
    tokens: Floats
    area: Floats
    growth: float
    """Observation tokens for each output token."""
    steps_a_token: float
    tool_s_a_token: float

    @classmethod
    def of(cls, snapshot: Snapshot) -> Outlook:
        """Draws of everybody, and what this rollout's steps have looked like so far."""
        live = snapshot.trajectories
        draws = remaining_draws(live, snapshot.rates)
        context = np.array([float(t.context_tokens) for t in live])
        growth = max(snapshot.rates.context_per_output - 1.0, 0.0)
        made = sum(t.output_tokens for t in live)
        steps = sum(t.steps for t in live) / made if made else 0.0
        area = draws * (context[:, None] + (1.0 + growth) * draws / 2)
        return cls(
            rows={t.id: i for i, t in enumerate(live)},
            draws=draws,
            context=context,
            tokens=draws.mean(axis=1),
            area=area.mean(axis=1),
            growth=growth,
            steps_a_token=steps,
            tool_s_a_token=steps * snapshot.rates.tool_s,
        )
