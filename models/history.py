"""How long do samples of this group usually get, and how much is left of one that got this far?

Group history, the predictor to beat: lognormal totals shrunk from task to group (empirical Bayes),
updated by siblings that finish during the rollout, corrected for having survived so far. It reads
no features but whose trajectory it is and its tokens so far.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from heddle.models import beyond
from heddle.models.lognormal import Lognormal, remaining_many
from heddle.models.types import Length, Outlook, Query
from heddle.models.variance import UNKNOWN, GroupStats, Level, level_of, posterior, spread_of_tasks

# Samples of the task that one group's mean of steps or tool seconds is weighed against.
MEAN_PULL = 2.0
FEW = 8
"""Questions up to which plain Python is faster than numpy."""
_Key = tuple[str, str | None]
"""Group and task."""


@dataclass(slots=True)
class _Group:
    """Sums over the finished samples of one group, log totals of the cut-off and running ones."""

    task: str
    n: int = 0
    sum_log: float = 0.0
    squares_log: float = 0.0
    steps: float = 0.0
    tool_s: float = 0.0
    tokens: float = 0.0
    with_means: int = 0
    censored: list[float] = field(default_factory=list[float])
    running: dict[str, float] = field(default_factory=dict[str, float])
    _known: tuple[Level, tuple[float, float, float]] | None = None

    def add(self, n: int, mean_log: float, squares_log: float) -> None:
        """Pool n more samples (Chan's update of mean and squares)."""
        self._known = None
        if self.n:
            gap = mean_log - self.sum_log / self.n
            squares_log += gap * gap * self.n * n / (self.n + n)
        self.squares_log += squares_log
        self.sum_log += n * mean_log
        self.n += n

    def posterior(self, level: Level) -> tuple[float, float, float]:
        """Of its finished samples: asked at every step, and the same until one more finished."""
        if self._known is None or self._known[0] is not level:
            self._known = level, posterior(self.stats(), level)
        return self._known[1]

    def stats(self) -> GroupStats:
        return GroupStats(self.n, self.sum_log / self.n if self.n else 0.0, self.squares_log)


class _Shared(NamedTuple):
    """A group as all its samples see it; `at` is where each running one stands in `censored`."""

    posterior: tuple[float, float, float]
    censored: NDArray[np.float64]
    at: dict[str, int]


def _grouped(queries: Sequence[Query]) -> tuple[NDArray[np.intp], list[_Key]]:
    """Which of the groups and tasks that occur each query is about, and these."""
    places: dict[_Key, int] = {}
    of = [places.setdefault((query.group, query.task), len(places)) for query in queries]
    return np.array(of), list(places)


def _own(
    shared: Sequence[_Shared], of: NDArray[np.intp], queries: Sequence[Query]
) -> NDArray[np.intp]:
    """Where each query's trajectory stands among its group's cut-off and running ones, else -1."""
    at = [one.at for one in shared]
    told = zip(of.tolist(), queries, strict=True)
    return np.array([at[which].get(query.trajectory, -1) for which, query in told])


class GroupHistory:
    """Predicts from the samples already finished: the same task's, then the same group's.

    Recorded history sets the task levels once; `observe` moves only its own group, so a call costs
    microseconds and no prediction depends on the order in which siblings finished.
    """

    version = "group-history"

    def __init__(self) -> None:
        self._levels: dict[str, Level] = {}
        self._top = UNKNOWN
        self._groups: dict[str, _Group] = {}
        self._task_means: dict[str, tuple[float, float, float]] = {}

    @classmethod
    def from_frame(cls, history: pl.DataFrame, *, task: str | None = None) -> Self:
        """From the collector's `history` query; `task` keeps one task's rows.

        `var_log_tokens` is the sample variance (null for a single sample). `truncated` ones are
        censored, all at their mean; a frame may lack them. Runs are pooled. Rows without a group
        tell what their task is like, and are nobody's siblings.
        """
        self = cls()
        if task is not None:
            history = history.filter(pl.col("task") == task)
        for row in history.iter_rows(named=True):
            group = self._group(row["group_id"] or f"\x00alone\x00{row['task'] or ''}", row["task"])
            n, cut = int(row["trajectories"]), int(row.get("truncated") or 0)
            if n and row["mean_log_tokens"] is not None:
                group.add(n, row["mean_log_tokens"], (row["var_log_tokens"] or 0.0) * (n - 1))
            group.censored += [row["mean_log_truncated"]] * cut if cut else []
            group.steps += (n + cut) * (row["mean_steps"] or 0.0)
            group.tool_s += (n + cut) * (row["mean_tool_s"] or 0.0)
            group.tokens += (n + cut) * (row.get("mean_tokens") or 0.0)
            group.with_means += n + cut
        self.refit()
        return self

    def refit(self) -> None:
        """Estimate task levels and means again from every group known now."""
        by_task: dict[str, list[_Group]] = defaultdict(list)
        for group in self._groups.values():
            if group.n:
                by_task[group.task].append(group)
        every = [g.stats() for groups in by_task.values() for g in groups]
        pooled = level_of(every, UNKNOWN)
        above = Level(pooled.mean, UNKNOWN.mean_variance, pooled.between, pooled.within)
        self._levels = {
            task: level_of([g.stats() for g in groups], above) for task, groups in by_task.items()
        }
        self._top = spread_of_tasks(list(self._levels.values()), UNKNOWN)
        self._task_means = {task: _means(groups) for task, groups in by_task.items()}

    def observe(
        self,
        group: str,
        total_tokens: float,
        *,
        censored: bool = False,
        task: str | None = None,
        trajectory: str = "",
    ) -> None:
        """A sample of the group ended; `censored` when a limit ended it (it would go on)."""
        known = self._group(group, task)
        known.running.pop(trajectory, None)
        log_tokens = math.log(max(total_tokens, 1.0))
        if censored:
            known.censored.append(log_tokens)
        else:
            known.add(1, log_tokens, 0.0)

    def survives(
        self, group: str, trajectory: str, tokens_so_far: float, *, task: str | None = None
    ) -> None:
        """A sample still runs: the early finishers alone would make a group look short."""
        running = self._group(group, task).running
        running[trajectory] = math.log(tokens_so_far) if tokens_so_far > 1.0 else 0.0

    def total(self, query: Query) -> Lognormal:
        """The law of the trajectory's total output tokens, before its own survival is used."""
        return _law(*self._posterior(query.group, query.task, query.trajectory))

    def predict(self, query: Query) -> Length:
        """Remaining output tokens, given that the trajectory got as far as it did."""
        return self.total(query).remaining(query.tokens_so_far)

    def predict_many(self, queries: Sequence[Query]) -> list[Length]:
        """The same for many, in their order."""
        so_far = np.array([query.tokens_so_far for query in queries], dtype=np.float64)
        return [Length(*row) for row in remaining_many(*self.laws(queries), so_far).tolist()]

    def laws(self, queries: Sequence[Query]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """`total` of many at once: mu and sigma, in their order."""
        return self._laws(queries, *_grouped(queries))

    def _laws(
        self, queries: Sequence[Query], of: NDArray[np.intp], keys: Sequence[_Key]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if len(queries) <= FEW:
            few = [self.total(query) for query in queries]
            return np.array([law.mu for law in few]), np.array([law.sigma for law in few])
        shared = [self._shared(*key) for key in keys]
        known = np.array([one.posterior for one in shared]).T
        mean, variance, within = known[:, of]
        if widest := max(len(one.censored) for one in shared):
            padded = np.full((len(shared), widest), -np.inf)
            for row, one in enumerate(shared):
                padded[row, : len(one.censored)] = one.censored
            mean, variance = beyond.modes_of_others(known, padded, of, _own(shared, of, queries))
        return mean, np.sqrt(variance + within)

    def _shared(self, name: str, task: str | None) -> _Shared:
        """What all samples of that group have in common."""
        known, censored = self._posterior(name, task, own="")
        group = self._groups.get(name)
        names = list(group.running) if group else []
        first = len(censored) - len(names)
        return _Shared(known, np.array(censored), {n: first + i for i, n in enumerate(names)})

    def _posterior(
        self, name: str, task: str | None, own: str
    ) -> tuple[tuple[float, float, float], list[float]]:
        """Of the group's mean, and what is known of cut-off and running samples but `own`."""
        group = self._groups.get(name)
        level = self.level(task or (group.task if group else None))
        if group is None:
            return posterior(GroupStats(0, 0.0, 0.0), level), []
        alive = group.running.copy()
        alive.pop(own, None)
        return group.posterior(level), [*group.censored, *alive.values()]

    def outlook_many(self, queries: Sequence[Query]) -> list[Outlook]:
        """With steps and tool seconds as the group's means have them; 1 step where none is."""
        told: list[Outlook] = []
        for query, length in zip(queries, self.predict_many(queries), strict=True):
            steps = self.mean_steps(query.group, query.task) or 1.0
            tool_s = (self.mean_tool_s(query.group, query.task) or 0.0) / max(steps - 1.0, 1.0)
            left = max(steps - query.steps_so_far, 1.0)
            told.append(Outlook(length, left, tool_s if query.steps_so_far else 0.0))
        return told

    def mean_steps(self, group: str, task: str | None = None) -> float | None:
        """Expected steps of a whole trajectory; None while nothing is recorded."""
        return self._mean(group, task, 0)

    def mean_tool_s(self, group: str, task: str | None = None) -> float | None:
        """Expected tool seconds of a whole trajectory; None while nothing is recorded."""
        return self._mean(group, task, 1)

    def mean_tokens(self, group: str, task: str | None = None) -> float | None:
        """Expected output tokens of a whole trajectory as limits let it be; None while nothing is
        recorded."""
        return self._mean(group, task, 2)

    def priors(self, queries: Sequence[Query]) -> NDArray[np.float64]:
        """(4, queries): mu and sigma of `total`, `mean_steps` (0 for None) and `samples`."""
        of, keys = _grouped(queries)
        known = [(self.mean_steps(*key) or 0.0, self.samples(key[0])) for key in keys]
        laws = self._laws(queries, of, keys)
        return np.stack([*laws, *np.array(known, dtype=np.float64)[of].T])

    def samples(self, group: str) -> int:
        """Finished samples of that group, recorded and observed."""
        known = self._groups.get(group)
        return known.n if known else 0

    def _group(self, group: str, task: str | None) -> _Group:
        known = self._groups.get(group)
        if known is None:
            known = self._groups[group] = _Group(task or "")
        return known

    def level(self, task: str | None) -> Level:
        """What a group of that task is expected to be; of a task never seen, what tasks are."""
        return self._levels.get(task or "", self._top)

    def steps_with(self, steps: float, samples: int, task: str | None) -> float | None:
        """The mean of `samples` trajectories with that many steps together, shrunk to the task."""
        means = self._task_means.get(task or "")
        return _shrunk(steps, samples, means[0] if means else None)

    def _mean(self, group: str, task: str | None, which: int) -> float | None:
        known = self._groups.get(group)
        means = self._task_means.get(task or (known.task if known else ""))
        above = means[which] if means else None
        if known is None:
            return above
        total = (known.steps, known.tool_s, known.tokens)[which]
        return _shrunk(total, known.with_means, above)


def _shrunk(total: float, samples: int, above: float | None) -> float | None:
    if above is None:
        return total / samples if samples else None
    return (total + MEAN_PULL * above) / (samples + MEAN_PULL)


def _means(groups: Sequence[_Group]) -> tuple[float, float, float]:
    n = max(sum(g.with_means for g in groups), 1)
    sums = zip(*((g.steps, g.tool_s, g.tokens) for g in groups), strict=True)
    steps, tool_s, tokens = (sum(column) / n for column in sums)
    return steps, tool_s, tokens


def predictive(stats: GroupStats, censored: Sequence[float], level: Level) -> Lognormal:
    """The law of the next total: the group's mean with its uncertainty, and chance inside it."""
    return _law(posterior(stats, level), censored)


def _law(known: tuple[float, float, float], censored: Sequence[float]) -> Lognormal:
    mean, variance, within = known
    if censored:
        mean, variance = beyond.mode(mean, variance, within, censored)
    return Lognormal(mean, math.sqrt(variance + within))
