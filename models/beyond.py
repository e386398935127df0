"""Where does a group's mean lie, when of some samples only how far they got is known?

The posterior mode and curvature of the mean of log totals, given the uncensored posterior and log
totals that are only known to be exceeded. The log posterior is concave in the mean, so Newton's
steps from the uncensored one converge. One at a time in plain Python, many at once in numpy: equal
to 1e-9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import erfc, exp
from typing import Final

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from heddle.models.lognormal import FAR_Z, mills

Floats = NDArray[np.float64]
ROUNDS: Final = 8
"""Eight reach the mode to 1e-9 with 15 running siblings around one finished; most need four."""
STILL: Final = 1e-6
"""Of a standard deviation: a step smaller than this is the last, what is left is its square."""
NO_PULL_Z: Final = -8.5
"""Who is so far below the mean says nothing of it: the hazard is below 1e-16."""
_SCALE: Final = 4.0
_SQRT2PI: Final = math.sqrt(2.0 * math.pi)
_SQRT_2_PI: Final = math.sqrt(2.0 / math.pi)
_SQRT_HALF: Final = math.sqrt(0.5)


def _shrunk_mills(at: Floats) -> Floats:
    """(1 + z) times the Mills ratio at z = scale (1 + t) / (1 - t): smooth on -1 to 1."""
    z = _SCALE * (1.0 + at) / np.maximum(1.0 - at, 1e-12)
    return np.array([(1.0 + v) * mills(v) for v in z.tolist()])


_SERIES: Final[Floats] = chebyshev.chebinterpolate(_shrunk_mills, 18)  # pyright: ignore[reportArgumentType, reportCallIssue] (the stub wants a scalar function)
_FROM_LAST: Final[list[float]] = _SERIES[::-1].tolist()


def mills_many(z: Floats) -> Floats:
    """As `lognormal.mills` to 2e-10, which no higher degree betters; z above -30."""
    size = np.abs(z)
    upper = _series((size - _SCALE) / (size + _SCALE)) / (1.0 + size)
    below = np.minimum(z, 0.0)
    return np.where(z < 0.0, _SQRT2PI * np.exp(0.5 * below * below) - upper, upper)


def _series(at: Floats) -> Floats:
    """Clenshaw's recurrence as `chebval` has it, in three arrays: half of its time goes into new
    ones."""
    twice, next_but_one, following = 2.0 * at, np.full_like(at, _FROM_LAST[1]), np.empty_like(at)
    one = np.full_like(at, _FROM_LAST[0])
    for coefficient in _FROM_LAST[2:]:
        np.multiply(one, twice, out=following)
        following += next_but_one
        np.subtract(coefficient, one, out=next_but_one)
        one, following = following, one
    one *= at
    one += next_but_one
    return one


def mode(
    mean: float, variance: float, within: float, censored: Sequence[float]
) -> tuple[float, float]:
    """The mode, and the variance around it."""
    sigma, at, curve = math.sqrt(within), mean, 1.0 / variance
    for _ in range(ROUNDS):
        pull = bend = 0.0
        for log_tokens in censored:
            z = (log_tokens - at) / sigma
            if z > NO_PULL_Z:
                # `mills` in line where it is a closed form: the call is half of what it costs.
                if z < FAR_Z:
                    hazard = _SQRT_2_PI * exp(-0.5 * z * z) / erfc(z * _SQRT_HALF)
                else:
                    hazard = 1.0 / mills(z)
                pull += hazard
                if hazard > z:
                    bend += hazard * (hazard - z)
        curve = 1.0 / variance + bend / within
        step = ((mean - at) / variance + pull / sigma) / curve
        at += step
        if abs(step) < STILL * sigma:
            break
    return at, 1.0 / curve


def modes(
    mean: Floats, variance: Floats, within: Floats, censored: Floats
) -> tuple[Floats, Floats]:
    """The same for many; `censored` has a row for each, filled up with -inf."""
    sigma = np.sqrt(within)
    return _newton(mean, variance, within, mean, lambda at: _pulls(censored, at, sigma))


def modes_of_others(
    known: Floats, censored: Floats, of: NDArray[np.intp], own: NDArray[np.intp]
) -> tuple[Floats, Floats]:
    """For many who are of a group each, and `own` of its row, or -1: the group's without that one.

    `known` and `censored` are of the groups, as `modes` takes them. Each begins at its group's
    mode, a step or two away, where what pulls is worked out once a group.
    """
    start, _ = modes(known[0], known[1], known[2], censored)
    mean, variance, within = known[:, of]
    sigma, itself = np.sqrt(within), np.flatnonzero(own >= 0)
    first = [part[of] for part in _pulls(censored, start, np.sqrt(known[2]))]
    rows = censored[of]
    rows[itself, own[itself]] = -np.inf
    for part in first:
        part[itself, own[itself]] = 0.0

    def pulls(at: Floats) -> list[Floats]:
        return [first.pop(0), first.pop(0)] if first else _pulls(rows, at, sigma)

    return _newton(mean, variance, within, start[of], pulls)


def _pulls(censored: Floats, at: Floats, sigma: Floats) -> list[Floats]:
    """The hazard of each, and how fast it grows; nothing where it is below 1e-16."""
    z = (censored - at[:, None]) / sigma[:, None]
    some = np.flatnonzero(z > NO_PULL_Z)
    near = z.ravel()[some]
    hazard = 1.0 / mills_many(near)
    out = np.zeros((2, z.size))
    out[0, some], out[1, some] = hazard, np.maximum(hazard * (hazard - near), 0.0)
    return list(out.reshape(2, *z.shape))


def _newton(
    mean: Floats,
    variance: Floats,
    within: Floats,
    start: Floats,
    pulls: Callable[[Floats], list[Floats]],
) -> tuple[Floats, Floats]:
    sigma, at = np.sqrt(within), start.copy()
    curve = 1.0 / variance
    for _ in range(ROUNDS):
        hazard, bend = (part.sum(axis=1) for part in pulls(at))
        curve = 1.0 / variance + bend / within
        step = ((mean - at) / variance + hazard / sigma) / curve
        at += step
        if (np.abs(step) < STILL * sigma).all():
            break
    return at, 1.0 / curve
