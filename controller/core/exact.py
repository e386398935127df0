"""Which contiguous cut, and which degrees, end first in closed form?

The cost of a run of the sorted list is a few prefix sums, and it never falls when the run grows,
so bisection on the makespan finds the best cut for given degrees and, with a table over GPUs, the
best layout and cut together. Contiguity is the paper's lemma for equal workers and an assumption
for unequal ones. Exact means: to PRECISION of the makespan.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from heddle.controller.core.types import CoreError, Latency, Work

Floats = NDArray[np.float64]

PRECISION: Final = 1e-4


@dataclass(frozen=True, slots=True)
class Columns:
    """Works as arrays, longest output first."""

    order: NDArray[np.intp]
    output: Floats
    prompt: Floats
    observed: Floats
    steps: Floats
    tool_s: Floats
    resets: Floats
    depth: Floats
    """Tokens beyond the prompt that the context holds on average."""

    @classmethod
    def of(cls, works: Sequence[Work]) -> Columns:
        """Sorted; equal lengths keep their order. CoreError where a figure is not finite."""
        rows = np.array(
            [
                (
                    w.output_tokens,
                    w.prompt_tokens,
                    w.observation_tokens,
                    w.steps,
                    w.tool_s,
                    w.resets,
                    w.depth_tokens,
                )
                for w in works
            ],
            dtype=np.float64,
        ).reshape(-1, 7)
        if not np.isfinite(rows).all():
            # Bisection on a makespan that is no number would never end.
            place = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
            message = f"lengths to plan for must be finite numbers; got {works[place]}"
            raise CoreError(message)
        return cls.sorted(rows)

    @classmethod
    def sorted(cls, rows: Floats) -> Columns:
        """From rows of output, prompt, observation tokens, steps, tool seconds, resets, depth."""
        order = np.argsort(-rows[:, 0], kind="stable")
        # Column by column: each is contiguous then, and prefix sums take half the time.
        return cls(order, *(column[order] for column in rows.T))

    def __len__(self) -> int:
        return len(self.output)


class Runs:
    """What any contiguous run costs on an engine of one degree."""

    def __init__(self, columns: Columns, law: Latency) -> None:
        self.n = len(columns)
        area = columns.output * (columns.prompt + columns.depth)
        work = law.b_s * columns.output + law.c_s * area + prefill_s(columns, law)
        kv = work + law.a_s * area / max(law.kv_tokens, 1)
        running = work + law.a_s * columns.output / max(law.max_running, 1)
        sums = np.zeros((3, self.n + 1))
        np.cumsum([work, kv, running], axis=1, out=sums[:, 1:])
        self.work, self.kv, self.running = (row.tolist() for row in sums)
        arm = law.a_s * columns.output + columns.tool_s
        self.falling = bool((np.diff(arm) <= 0).all())
        """Whether the longest arm of a run is its first: no tools, or the same for all."""
        self._tables = [arm.tolist()] if self.falling else _maxima(arm)

    def arm_s(self, start: int, end: int) -> float:
        """The longest a*L + tools in the run."""
        if self.falling:
            return self._tables[0][start]
        level = (end - start).bit_length() - 1
        row = self._tables[level]
        return max(row[start], row[end - (1 << level)])

    def cost_s(self, start: int, end: int) -> float:
        """Expected busy time of the run; 0 for an empty one."""
        if end <= start:
            return 0.0
        work = self.work[end] - self.work[start]
        full = max(self.kv[end] - self.kv[start], self.running[end] - self.running[start])
        return max(self.arm_s(start, end) + work, full)

    def reach(self, start: int, budget_s: float) -> int:
        """The furthest end such that the run from `start` costs at most that."""
        if start >= self.n:
            return self.n
        high = bisect_right(self.kv, self.kv[start] + budget_s, start) - 1
        high = bisect_right(self.running, self.running[start] + budget_s, start, high + 1) - 1
        if self.falling:
            left_s = budget_s - self._tables[0][start]
            if left_s < 0:
                return start
            return bisect_right(self.work, self.work[start] + left_s, start, high + 1) - 1
        low = start
        while low < high:
            middle = (low + high + 1) // 2
            spent = self.arm_s(start, middle) + self.work[middle] - self.work[start]
            low, high = (middle, high) if spent <= budget_s else (low, middle - 1)
        return low


def prefill_s(columns: Columns, law: Latency) -> Floats:
    """Prompt and observations prefilled once each, p0 paid a step."""
    c = columns
    seen = c.prompt / 2 + c.depth
    attention = law.p2_s * (c.prompt**2 / 2 + c.observed * seen)
    return law.p0_s * np.maximum(c.steps, 1.0) + law.p1_s * (c.prompt + c.observed) + attention


@dataclass(frozen=True, slots=True)
class Cut:
    """Ends of each worker's run in the sorted list, and when the latest is done."""

    degrees: tuple[int, ...]
    ends: tuple[int, ...]
    makespan_s: float

    @property
    def shares(self) -> tuple[int, ...]:
        """Trajectories of each worker."""
        return tuple(b - a for a, b in zip((0, *self.ends[:-1]), self.ends, strict=True))


def best_cut(runs: Mapping[int, Runs], degrees: Sequence[int], above_s: float = 0.0) -> Cut:
    """The contiguous cut over workers of those degrees, in that order, that ends first."""
    n = runs[degrees[0]].n
    chain = [runs[degree] for degree in degrees]

    def ends_within(budget_s: float) -> list[int] | None:
        ends, at = list[int](), 0
        for one in chain:
            at = one.reach(at, budget_s)
            ends.append(at)
        return ends if at >= n else None

    high = max((one.cost_s(0, n) for one in chain), default=0.0)
    ends = _bisected(ends_within, max(above_s, _least_s(chain)), high)
    made = max(one.cost_s(a, b) for one, a, b in zip(chain, [0, *ends[:-1]], ends, strict=True))
    return Cut(tuple(degrees), tuple(ends), made)


def best_layout(runs: Mapping[int, Runs], gpus: int) -> Cut:
    """Degrees and contiguous cut together, highest degrees for the longest first in the list.

    furthest(g) = max over d of reach_d(furthest(g - d), T): all are done when it reaches n.
    """
    degrees = sorted(d for d in runs if d <= gpus)
    if not degrees:
        message = f"no known degree fits {gpus} GPUs; known degrees are {sorted(runs)}"
        raise CoreError(message)
    n = runs[degrees[0]].n
    if n == 0:
        return _spare(Cut((), (), 0.0), gpus, degrees)

    def layout_within(budget_s: float) -> list[int] | None:
        furthest, chosen = [0] * (gpus + 1), [0] * (gpus + 1)
        for g in range(1, gpus + 1):
            furthest[g] = furthest[g - 1]
            for d in degrees:
                if d <= g:
                    end = runs[d].reach(furthest[g - d], budget_s)
                    if end > furthest[g]:
                        furthest[g], chosen[g] = end, d
            if furthest[g] >= n:
                return _walk(chosen, g)
        return None

    low = min(runs[d].arm_s(0, n) for d in degrees)
    high = min(_equal_s(runs[d], gpus // d) for d in degrees)
    layout = _bisected(layout_within, low, high)
    cut = best_cut(runs, layout)
    return _spare(cut, gpus, degrees)


def _walk(chosen: list[int], gpus: int) -> list[int]:
    degrees: list[int] = []
    while gpus > 0:
        if chosen[gpus]:
            degrees.append(chosen[gpus])
        gpus -= max(chosen[gpus], 1)
    return degrees[::-1]


def _spare(cut: Cut, gpus: int, degrees: Sequence[int]) -> Cut:
    """GPUs the plan did not need become workers too, the largest that fit."""
    more, ends, left = list(cut.degrees), list(cut.ends), gpus - sum(cut.degrees)
    for degree in sorted(degrees, reverse=True):
        while left >= degree:
            more.append(degree)
            ends.append(ends[-1] if ends else 0)
            left -= degree
    return Cut(tuple(more), tuple(ends), cut.makespan_s)


def _equal_s(runs: Runs, engines: int) -> float:
    """An upper bound: equal counts on equal engines."""
    edges = [runs.n * i // engines for i in range(engines + 1)]
    return max(runs.cost_s(a, b) for a, b in itertools.pairwise(edges))


def _least_s(chain: Sequence[Runs]) -> float:
    """A lower bound: the mean share of the work on the engine that does it quickest."""
    return min(one.work[-1] for one in chain) / len(chain)


def _bisected(within: Callable[[float], list[int] | None], low: float, high: float) -> list[int]:
    """What `within` gives for the least budget for which it gives something."""
    found = within(high)
    while found is None:  # the bound was rounded down
        high = high * (1.0 + PRECISION) + 1e-12
        found = within(high)
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        better = within(middle)
        if better is None:
            low = middle
        else:
            high, found = middle, better
    return found


def _maxima(values: Floats) -> list[list[float]]:
    """Sparse table: row k holds the maxima of 2^k values from each place on."""
    rows, width = [values], 1
    while 2 * width <= len(values):
        last = rows[-1]
        rows.append(np.maximum(last[:-width], last[width:]))
        width *= 2
    return [row.tolist() for row in rows]
