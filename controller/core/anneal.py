"""What would the paper's own planner choose?

Its presorted DP over equal or unequal workers, with short trajectories aggregated, and Algorithm 2:
annealing over degrees by redistribution, split and merge. Named policies and yardsticks; `exact`
finds the optimum of the same cost at once. Chance comes from the Generator given.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from heddle.controller.core.exact import Cut, Floats, Runs, best_cut
from heddle.controller.core.types import CoreError

COOLING: Final = 0.97
COLDEST: Final = 1e-3
"""The temperature starts at the first makespan and ends at this share of it; the paper gives
neither number."""


def presorted_cut(runs: Mapping[int, Runs], degrees: Sequence[int], step: int = 1) -> Cut:
    """dp[i][j] = min over k of max(dp[k][j-1], cost(k..i)): O(n^2 m), the paper's recurrence.

    `step` aggregates: runs end only at multiples of it (and at n), as the paper does for short
    trajectories.
    """
    n = runs[degrees[0]].n
    edges = np.unique(np.append(np.arange(0, n + 1, max(step, 1)), n))
    tables = {d: _table(runs[d], edges) for d in set(degrees)}
    best = tables[degrees[0]][0].copy()
    choices: list[np.ndarray] = []
    for degree in degrees[1:]:
        through = np.maximum(best[:, None], tables[degree])
        choice = np.argmin(through, axis=0)
        choices.append(choice)
        best = through[choice, np.arange(len(edges))]
    ends, at = list[int](), len(edges) - 1
    for choice in reversed(choices):
        ends.append(int(edges[at]))
        at = int(choice[at])
    ends.append(int(edges[at]))
    return Cut(tuple(degrees), tuple(ends[::-1]), float(best[-1]))


def _table(runs: Runs, edges: np.ndarray) -> Floats:
    """Cost of every run between two edges; infinite where it would run backwards."""
    m = len(edges)
    work, kv, running = (np.array(s)[edges] for s in (runs.work, runs.kv, runs.running))
    single = [runs.arm_s(int(a), int(b)) for a, b in itertools.pairwise(edges)]
    arm = np.zeros((m, m))
    for i in range(m - 1):
        arm[i, i + 1 :] = single[i] if runs.falling else np.maximum.accumulate(single[i:])
    full = np.maximum(kv - kv[:, None], running - running[:, None])
    cost = np.maximum(arm + work - work[:, None], full)
    cost[np.tril_indices(m, -1)] = math.inf
    np.fill_diagonal(cost, 0.0)
    return cost


def annealed_cut(
    runs: Mapping[int, Runs], gpus: int, rng: np.random.Generator, moves: int | None = None
) -> Cut:
    """Algorithm 2: start from chance, perturb, accept what is better or warm enough."""
    known = sorted(d for d in runs if d <= gpus)
    if not known:
        message = f"no known degree fits {gpus} GPUs; known degrees are {sorted(runs)}"
        raise CoreError(message)
    degrees = _sampled(known, gpus, rng)
    at = best = best_cut(runs, degrees)
    heat, coldest = at.makespan_s, COLDEST * at.makespan_s
    done = 0
    while heat > coldest if moves is None else done < moves:
        tried = best_cut(runs, _perturbed(list(at.degrees), known, gpus, rng))
        worse = tried.makespan_s - at.makespan_s
        if worse < 0 or rng.random() < math.exp(-worse / max(heat, 1e-12)):
            at = tried
        if at.makespan_s < best.makespan_s:
            best = at
        heat *= COOLING
        done += 1
    return best


def _sampled(known: Sequence[int], gpus: int, rng: np.random.Generator) -> list[int]:
    """Random degrees that use the GPUs, the highest first."""
    degrees, left = list[int](), gpus
    while fitting := [d for d in known if d <= left]:
        degrees.append(fitting[int(rng.integers(len(fitting)))])
        left -= degrees[-1]
    return sorted(degrees, reverse=True)


def _perturbed(
    degrees: list[int], known: Sequence[int], gpus: int, rng: np.random.Generator
) -> list[int]:
    """Split one worker, merge two, or shift GPUs from one to another; then use what is left."""
    kind = int(rng.integers(3))
    if kind == 0:
        degrees.remove(degrees[int(rng.integers(len(degrees)))])
        smaller = [d for d in known if d <= gpus - sum(degrees)]
        degrees.append(smaller[int(rng.integers(len(smaller)))])
    elif kind == 1 and len(degrees) > 1:
        for _ in range(2):
            degrees.pop(int(rng.integers(len(degrees))))
        degrees.append(max(d for d in known if d <= gpus - sum(degrees)))
    elif len(degrees) > 1:
        first, second = rng.choice(len(degrees), 2, replace=False)
        both = degrees[first] + degrees[second]
        kept = [d for i, d in enumerate(degrees) if i not in (first, second)]
        halves = [d for d in known if d < both] or [known[0]]
        degrees = [*kept, halves[int(rng.integers(len(halves)))]]
    left = gpus - sum(degrees)
    while fitting := [d for d in known if d <= left]:
        degrees.append(fitting[int(rng.integers(len(fitting)))])
        left -= degrees[-1]
    return sorted(degrees, reverse=True)
