"""How much is still to come of a lognormal length that has already survived some tokens?

Closed forms, safe far in the tail: a trajectory ten times beyond anything seen still gets a finite,
positive answer. With z = (log tokens - mu)/sigma all that is needed is the normal's survival
function below z = 30 and its Mills ratio above, where 1 - cdf loses meaning long before it
underflows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from heddle.models.normal import Floats, inv_cdf
from heddle.models.types import Length

# Above this z the tail is exponential to 1e-6 and the asymptotic forms are the more exact ones.
FAR_Z: Final = 30.0
LEVELS: Final = (0.1, 0.5, 0.9)
"""Of the quantiles every prediction carries."""
Z90: Final = NormalDist().inv_cdf(0.9)
FEW: Final = 4
"""Laws up to which plain Python is faster than numpy."""
MAX_LOG: Final = 60.0
"""exp(60) tokens: more is the same to every caller, and exp must not overflow."""

_OVER: Final = tuple(1.0 - level for level in LEVELS)
_NORMAL: Final = NormalDist()
_SQRT2: Final = math.sqrt(2.0)
_SQRT2PI: Final = math.sqrt(2.0 * math.pi)


def mills(z: float) -> float:
    """(1 - cdf(z)) / pdf(z), the reciprocal of the normal's hazard; z above -35."""
    if z < FAR_Z:
        return 0.5 * math.erfc(z / _SQRT2) * _SQRT2PI * math.exp(0.5 * z * z)
    inverse = 1.0 / (z * z)
    return (1.0 - inverse * (1.0 - 3.0 * inverse * (1.0 - 5.0 * inverse))) / z


def z_beyond(z: float, level: float) -> float:
    """How far beyond z lies the quantile `level` of a standard normal known to exceed z."""
    if z < FAR_Z:
        surviving = 0.5 * math.erfc(z / _SQRT2) * (1.0 - level)
        return max(-_NORMAL.inv_cdf(surviving) - z, 0.0)
    hazard, nats = z + 1.0 / z, -math.log1p(-level)
    return 2.0 * nats / (hazard + math.sqrt(hazard * hazard + 2.0 * nats))


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Total output tokens of a trajectory: log tokens are normal(mu, sigma)."""

    mu: float
    sigma: float

    def quantile(self, level: float, tokens_so_far: float = 0.0) -> float:
        """Remaining tokens at `level` in (0, 1), given that the total exceeds `tokens_so_far`."""
        z = self._z(tokens_so_far)
        if z < -FAR_Z:
            log_total = self.mu + self.sigma * _NORMAL.inv_cdf(level)
            return max(math.exp(min(log_total, MAX_LOG)) - tokens_so_far, 0.0)
        grown = min(self.sigma * z_beyond(z, level), MAX_LOG)
        return tokens_so_far * math.expm1(grown)

    def mean(self, tokens_so_far: float = 0.0) -> float:
        """Expected remaining tokens, given that the total exceeds `tokens_so_far`."""
        z = self._z(tokens_so_far)
        if z - self.sigma < -FAR_Z:
            log_mean = self.mu + 0.5 * self.sigma**2
            return max(math.exp(min(log_mean, MAX_LOG)) - tokens_so_far, 0.0)
        return tokens_so_far * (mills(z - self.sigma) / mills(z) - 1.0)

    def remaining(self, tokens_so_far: float = 0.0) -> Length:
        """p10, p50, p90 and mean of what is still to come."""
        z = self._z(tokens_so_far)
        if self.sigma - FAR_Z < z < FAR_Z:
            return self._near(z, tokens_so_far)
        p10, p50, p90 = (self.quantile(level, tokens_so_far) for level in LEVELS)
        return Length(p10, p50, p90, self.mean(tokens_so_far))

    def _near(self, z: float, so_far: float) -> Length:
        """The same where nothing is far in a tail: what the four have in common is worked out once,
        as every step asks for it."""
        below = _NORMAL.inv_cdf
        survival = 0.5 * math.erfc(z / _SQRT2)
        p10, p50, p90 = [
            so_far * math.expm1(min(self.sigma * max(-below(survival * over) - z, 0.0), MAX_LOG))
            for over in _OVER
        ]
        ratio = mills(z - self.sigma) / (survival * _SQRT2PI * math.exp(0.5 * z * z))
        return Length(p10, p50, p90, so_far * (ratio - 1.0))

    def draws(self, n: int, rng: np.random.Generator, tokens_so_far: float = 0.0) -> Floats:
        """`n` independent draws of the remaining tokens, by inverting the truncated law."""
        # The open interval: quantile 0 and 1 of an unbounded law are no numbers of tokens.
        levels: Sequence[float] = rng.uniform(1e-12, 1.0 - 1e-12, n).tolist()
        return np.array([self.quantile(level, tokens_so_far) for level in levels])

    def _z(self, tokens_so_far: float) -> float:
        if tokens_so_far <= 0.0:
            return -math.inf
        return (math.log(tokens_so_far) - self.mu) / self.sigma


def remaining_many(mu: Floats, sigma: Floats, tokens_so_far: Floats) -> Floats:
    """p10, p50, p90 and mean of many at once, one row each; as `Lognormal.remaining` to 1e-9."""
    if len(mu) <= FEW:
        laws = map(Lognormal, mu.tolist(), sigma.tolist())
        told = zip(laws, tokens_so_far.tolist(), strict=True)
        return np.array([law.remaining(so_far) for law, so_far in told]).reshape(-1, 4)
    quantiles = quantiles_many(mu, sigma, tokens_so_far)
    return np.column_stack((quantiles, _means(mu, sigma, tokens_so_far)))


def quantiles_many(
    mu: Floats, sigma: Floats, tokens_so_far: Floats, levels: Sequence[float] = LEVELS
) -> Floats:
    """`Lognormal.quantile` of many at once: one row each, one column a level.

    Rows that are far beyond their law take the scalar path.
    """
    if len(mu) <= FEW:
        each = zip(mu.tolist(), sigma.tolist(), tokens_so_far.tolist(), strict=True)
        told = [[Lognormal(m, s).quantile(level, t) for level in levels] for m, s, t in each]
        return np.array(told).reshape(-1, len(levels))
    z = _z_many(mu, sigma, tokens_so_far)
    near = np.abs(z) < FAR_Z
    if near.all():
        return _near_quantiles(z, sigma, tokens_so_far, levels)
    out, begun = np.empty((len(mu), len(levels))), z >= -FAR_Z
    out[near] = _near_quantiles(z[near], sigma[near], tokens_so_far[near], levels)
    out[~begun] = _whole_quantiles(mu[~begun], sigma[~begun], tokens_so_far[~begun], levels)
    for i in np.flatnonzero(begun & ~near):
        law, so_far = Lognormal(float(mu[i]), float(sigma[i])), float(tokens_so_far[i])
        out[i] = [law.quantile(level, so_far) for level in levels]
    return out


def _z_many(mu: Floats, sigma: Floats, so_far: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return (np.log(np.maximum(so_far, 0.0)) - mu) / sigma


def _near_quantiles(z: Floats, sigma: Floats, so_far: Floats, levels: Sequence[float]) -> Floats:
    over = 1.0 - np.array(levels)
    at = -inv_cdf(_survival(z)[:, None] * over)
    grown = np.minimum(sigma[:, None] * np.maximum(at - z[:, None], 0.0), MAX_LOG)
    return so_far[:, None] * np.expm1(grown)


def _whole_quantiles(mu: Floats, sigma: Floats, so_far: Floats, levels: Sequence[float]) -> Floats:
    """Where nothing to speak of has been written."""
    z = np.array([_NORMAL.inv_cdf(level) for level in levels])
    log_total = np.minimum(mu[:, None] + sigma[:, None] * z, MAX_LOG)
    total = np.reshape([math.exp(one) for one in log_total.ravel().tolist()], log_total.shape)
    return np.maximum(total - so_far[:, None], 0.0)


def _means(mu: Floats, sigma: Floats, so_far: Floats) -> Floats:
    z = _z_many(mu, sigma, so_far)
    shifted = z - sigma
    near = (shifted > -FAR_Z) & (z < FAR_Z)
    out = np.empty(len(mu))
    for i in np.flatnonzero(~near):
        out[i] = Lognormal(float(mu[i]), float(sigma[i])).mean(float(so_far[i]))
    z, shifted = z[near], shifted[near]
    ratio = _survival(shifted) / _survival(z) * np.exp(0.5 * (shifted**2 - z**2))
    out[near] = so_far[near] * (ratio - 1.0)
    return out


def _survival(z: Floats) -> Floats:
    return 0.5 * np.array([math.erfc(v) for v in (z / _SQRT2).tolist()])


def draws_from(length: Length, n: int, rng: np.random.Generator) -> Floats:
    """`n` draws of the remaining tokens from any predictor's quantiles: lognormal on each side."""
    middle = math.log(max(length.p50, 1.0))
    below = max(middle - math.log(max(length.p10, 1.0)), 0.0) / Z90
    above = max(math.log(max(length.p90, 1.0)) - middle, 0.0) / Z90
    z = rng.standard_normal(n)
    return np.exp(middle + z * np.where(z < 0.0, below, above))
