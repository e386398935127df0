"""How often does the best contiguous cut lose to the best of all assignments, on unequal degrees?

Contiguity is the paper's lemma for equal workers and an assumption for unequal ones (exact.py).
Every assignment of six trajectories to three workers is tried, so the cases are small ones.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from statistics import median
from typing import Final

import numpy as np

from heddle.app.bench.figures import Figure
from heddle.controller.core.cost import group_s
from heddle.controller.core.exact import PRECISION, Columns, Runs, best_cut
from heddle.controller.core.types import Latency, Work

CASES: Final = 200
TRAJECTORIES: Final = 6
LAYOUTS: Final = ((4, 2, 1), (2, 1, 1), (2, 2, 1), (4, 1, 1))
ROOMS: Final = (1.0, 0.05)
"""Shares of the engines' KV: all of it, and so little that it is what binds."""


def lost(known: dict[int, Latency]) -> dict[str, Figure]:
    """Of seeded cases: the share where contiguity loses, and by how much in the worst."""
    ratios = [_ratio(known, case) for case in range(CASES)]
    losses = [ratio - 1.0 for ratio in ratios if ratio > 1.0 + 3 * PRECISION]
    note = (
        f"{CASES} seeded cases of {TRAJECTORIES} trajectories on three unequal workers, half of"
        f" them KV-bound; where it loses, by {median(losses or [0.0]):.2%} in the median"
    )
    return {
        "contiguity_loses": Figure(len(losses) / CASES, "", 0.25, "lower", note),
        "contiguity_worst": Figure(max(ratios), "x", 1.05, "lower", "best cut / best assignment"),
    }


def _ratio(known: dict[int, Latency], case: int) -> float:
    rng = np.random.default_rng([case, 17])
    degrees, room = LAYOUTS[case % len(LAYOUTS)], ROOMS[case // len(LAYOUTS) % len(ROOMS)]
    laws = {d: _narrowed(known[d], room) for d in set(degrees)}
    works = [
        Work(
            output_tokens=float(rng.lognormal(8.5, 0.9)), prompt_tokens=600.0,
            observation_tokens=float(rng.uniform(0, 4_000)), steps=10.0,
            tool_s=float(rng.uniform(0, 60)),
        )
        for _ in range(TRAJECTORIES)
    ]  # fmt: skip
    runs = {d: Runs(Columns.of(works), laws[d]) for d in laws}
    return best_cut(runs, degrees).makespan_s / _best_s(works, [laws[d] for d in degrees])


def _narrowed(law: Latency, room: float) -> Latency:
    return replace(law, kv_tokens=round(law.kv_tokens * room))


def _best_s(works: list[Work], laws: list[Latency]) -> float:
    """By trying every assignment; a group's cost on a law is worked out once."""
    costs: dict[tuple[int, int], float] = {}
    for place, law in enumerate(laws):
        for chosen in range(1 << len(works)):
            group = [work for i, work in enumerate(works) if chosen >> i & 1]
            costs[place, chosen] = group_s(group, law) if group else 0.0
    best = float("inf")
    for homes in product(range(len(laws)), repeat=len(works)):
        masks = [0] * len(laws)
        for i, home in enumerate(homes):
            masks[home] |= 1 << i
        best = min(best, max(costs[place, mask] for place, mask in enumerate(masks)))
    return best
