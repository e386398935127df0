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
from numpy.typing import NDArray

from heddle.models.normal import inv_cdf
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

    def draws(
        self, n: int, rng: np.random.Generator, tokens_so_far: float = 0.0
    ) -> NDArray[np.float64]:
        """`n` independent draws of the remaining tokens, by inverting the truncated law."""
        # The open interval: quantile 0 and 1 of an unbounded law are no numbers of tokens.
        levels: Sequence[float] = rng.uniform(1e-12, 1.0 - 1e-12, n).tolist()
        return np.array([self.quantile(level, tokens_so_far) for level in levels])

    def _z(self, tokens_so_far: float) -> float:
        if tokens_so_far <= 0.0:
            return -math.inf
        return (math.log(tokens_so_far) - self.mu) / self.sigma


def remaining_many(
    mu: NDArray[np.float64], sigma: NDArray[np.float64], tokens_so_far: NDArray[np.float64]
) -> NDArray[np.float64]:
    """p10, p50, p90 and mean of many at once, one row each; as `Lognormal.remaining` to 1e-9.

    Rows whose survival is far in the tail or negligible take the scalar path.
    """
    out = np.empty((len(mu), 4))
    if len(mu) <= FEW:
        laws = map(Lognormal, mu.tolist(), sigma.tolist())
        for row, (law, so_far) in enumerate(zip(laws, tokens_so_far.tolist(), strict=True)):
            out[row] = law.remaining(so_far)
        return out
    with np.errstate(divide="ignore"):
        z = (np.log(np.maximum(tokens_so_far, 0.0)) - mu) / sigma
    plain = (z - sigma > -FAR_Z) & (z < FAR_Z)
    for i in np.flatnonzero(~plain):
        length = Lognormal(float(mu[i]), float(sigma[i])).remaining(float(tokens_so_far[i]))
        out[i] = length.p10, length.p50, length.p90, length.mean
    if plain.any():
        out[plain] = _remaining_near(z[plain], sigma[plain], tokens_so_far[plain])
    return out


def remaining_median(
    mu: NDArray[np.float64], sigma: NDArray[np.float64], so_far: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The middle of what remains, as `remaining_many` has it."""
    if len(mu) <= FEW:
        told = zip(mu.tolist(), sigma.tolist(), so_far.tolist(), strict=True)
        return np.array([Lognormal(m, s).quantile(0.5, tokens) for m, s, tokens in told])
    with np.errstate(divide="ignore"):
        z = (np.log(np.maximum(so_far, 0.0)) - mu) / sigma
    if not ((z > -FAR_Z) & (z < FAR_Z)).all():
        return remaining_many(mu, sigma, so_far)[:, 1]
    return so_far * np.expm1(_grown(z, _survival(z), sigma, 0.5))


def _grown(
    z: NDArray[np.float64], survival: NDArray[np.float64], sigma: NDArray[np.float64], level: float
) -> NDArray[np.float64]:
    """By how much ln of the total lies beyond ln of what was written, at that quantile."""
    at = -inv_cdf(survival * (1.0 - level))
    return np.minimum(sigma * np.maximum(at - z, 0.0), MAX_LOG)


def _remaining_near(
    z: NDArray[np.float64], sigma: NDArray[np.float64], so_far: NDArray[np.float64]
) -> NDArray[np.float64]:
    survival = _survival(z)
    columns = [so_far * np.expm1(_grown(z, survival, sigma, level)) for level in LEVELS]
    shifted = z - sigma
    ratio = _survival(shifted) / survival * np.exp(0.5 * (shifted**2 - z**2))
    columns.append(so_far * (ratio - 1.0))
    return np.stack(columns, axis=1)


def _survival(z: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * np.array([math.erfc(v) for v in (z / _SQRT2).tolist()])


def draws_from(length: Length, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """`n` draws of the remaining tokens from any predictor's quantiles: lognormal on each side."""
    middle = math.log(max(length.p50, 1.0))
    below = max(middle - math.log(max(length.p10, 1.0)), 0.0) / Z90
    above = max(math.log(max(length.p90, 1.0)) - middle, 0.0) / Z90
    z = rng.standard_normal(n)
    return np.exp(middle + z * np.where(z < 0.0, below, above))
