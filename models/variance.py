"""How much of the spread of lengths is the task, how much the group, how much mere chance?

Empirical Bayes on log tokens: log total = task mean + group effect + chance. Between-group and
within-group variance are estimated from counts, means and variances of groups, each pulled towards
a documented default that a handful of groups outweighs. Numbers in, numbers out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from heddle.models.predictor import DEFAULT_MEDIAN_TOKENS, DEFAULT_SIGMA

# Measured on tau-bench (50 tasks x 4): log-variance 0.36, of which 0.62 lies between groups.
WITHIN_VARIANCE: Final = 0.14
BETWEEN_VARIANCE: Final = 0.22
# Degrees of freedom the defaults count for, and one task's variance against one group's own.
DEFAULT_WEIGHT: Final = 4.0
GROUP_VARIANCE_WEIGHT: Final = 10.0
# A group whose samples agree to the token still varies the next time.
LEAST_VARIANCE: Final = 0.01


class GroupStats(NamedTuple):
    """Finished trajectories of one group: how many, mean and summed squares of log tokens."""

    n: int
    mean_log: float
    squares_log: float
    """Sum of squared deviations from the mean, (n - 1) times the sample variance."""


@dataclass(frozen=True, slots=True)
class Level:
    """What a group of this task is expected to be before any of its samples finished."""

    mean: float
    mean_variance: float
    """How uncertain the mean itself is."""
    between: float
    within: float

    @property
    def prior_variance(self) -> float:
        """Of a new group's own mean."""
        return self.between + self.mean_variance


UNKNOWN: Final = Level(
    mean=math.log(DEFAULT_MEDIAN_TOKENS),
    mean_variance=DEFAULT_SIGMA**2 - WITHIN_VARIANCE - BETWEEN_VARIANCE,
    between=BETWEEN_VARIANCE,
    within=WITHIN_VARIANCE,
)
"""Nothing recorded at all: the same spread as the constant predictor's."""


def within_variance(groups: Sequence[GroupStats], default: float) -> float:
    """Pooled variance inside groups; the default where no group has two samples."""
    freedom = sum(g.n - 1 for g in groups)
    squares = sum(g.squares_log for g in groups)
    pooled = (DEFAULT_WEIGHT * default + squares) / (DEFAULT_WEIGHT + freedom)
    return max(pooled, LEAST_VARIANCE)


def between_variance(groups: Sequence[GroupStats], within: float, default: float) -> float:
    """Variance of group means beyond what chance inside groups explains (DerSimonian-Laird)."""
    freedom = len(groups) - 1
    if freedom < 1:
        return default
    weights = [g.n / within for g in groups]
    total = sum(weights)
    mean = sum(w * g.mean_log for w, g in zip(weights, groups, strict=True)) / total
    excess = sum(w * (g.mean_log - mean) ** 2 for w, g in zip(weights, groups, strict=True))
    scale = total - sum(w * w for w in weights) / total
    moment = max((excess - freedom) / scale, 0.0)
    return (DEFAULT_WEIGHT * default + freedom * moment) / (DEFAULT_WEIGHT + freedom)


def level_of(groups: Sequence[GroupStats], above: Level) -> Level:
    """One task's level from its groups, pulled towards the level above where they are few."""
    if not groups:
        return above
    within = within_variance(groups, above.within)
    between = between_variance(groups, within, above.between)
    weights = [1.0 / (between + within / g.n) for g in groups]
    pull = 1.0 / max(above.mean_variance, LEAST_VARIANCE)
    total = pull + sum(weights)
    weighted = sum(w * g.mean_log for w, g in zip(weights, groups, strict=True))
    return Level((pull * above.mean + weighted) / total, 1.0 / total, between, within)


def spread_of_tasks(levels: Sequence[Level], above: Level) -> Level:
    """What a task never seen is expected to be: mean and spread of the tasks that were."""
    if not levels:
        return above
    mean = sum(level.mean for level in levels) / len(levels)
    squares = sum((level.mean - mean) ** 2 for level in levels)
    weight = DEFAULT_WEIGHT + len(levels) - 1
    variance = (DEFAULT_WEIGHT * above.mean_variance + squares) / weight
    between = sum(level.between for level in levels) / len(levels)
    within = sum(level.within for level in levels) / len(levels)
    return Level(mean, variance, between, within)


def posterior(stats: GroupStats, level: Level) -> tuple[float, float, float]:
    """Mean and variance of the group's own mean, and the variance inside it."""
    if stats.n == 0:
        return level.mean, level.prior_variance, level.within
    freedom = GROUP_VARIANCE_WEIGHT + stats.n - 1
    within = (GROUP_VARIANCE_WEIGHT * level.within + stats.squares_log) / freedom
    within = max(within, LEAST_VARIANCE)
    prior, seen = 1.0 / max(level.prior_variance, LEAST_VARIANCE), stats.n / within
    mean = (prior * level.mean + seen * stats.mean_log) / (prior + seen)
    return mean, 1.0 / (prior + seen), within
