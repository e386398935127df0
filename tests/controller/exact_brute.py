"""Works, laws and the best contiguous cut by trying all of them."""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise

from hypothesis import strategies as st

from heddle.controller.core.cost import group_s
from heddle.controller.core.exact import PRECISION, Columns
from heddle.controller.core.types import Latency, Work

CLOSE = 1 + 3 * PRECISION


def law(degree, kv=10**7, running=256):
    return Latency(
        degree=degree, a_s=0.01 / degree**0.6, b_s=1e-4 / degree**0.8, c_s=2e-9 / degree,
        p0_s=0.005, p1_s=3e-5 / degree**0.9, p2_s=1e-11, kv_tokens=kv * degree,
        max_running=running,
    )  # fmt: skip


LAWS = {
    "free": {d: law(d) for d in (1, 2, 4)},
    "kv-bound": {d: law(d, kv=3_000) for d in (1, 2, 4)},
    "running-bound": {d: law(d, running=2) for d in (1, 2, 4)},
}
works_of = st.lists(
    st.builds(
        Work,
        output_tokens=st.sampled_from([0.0, 5.0, 100.0, 100.0, 900.0, 4000.0]),
        prompt_tokens=st.sampled_from([0.0, 50.0, 2000.0]),
        observation_tokens=st.sampled_from([0.0, 700.0]),
        steps=st.sampled_from([1.0, 9.0]),
        tool_s=st.sampled_from([0.0, 0.0, 20.0, 300.0]),
        resets=st.sampled_from([0.0, 0.0, 1e-4, 2.5]),
    ),
    min_size=1,
    max_size=7,
)


def by_length(works):
    return [works[i] for i in Columns.of(works).order]


def brute_cut_s(works, laws, degrees):
    ordered, n = by_length(works), len(works)
    best = float("inf")
    for inner in combinations_with_replacement(range(n + 1), len(degrees) - 1):
        ends = (0, *inner, n)
        costs = [
            group_s(ordered[a:b], laws[d])
            for (a, b), d in zip(pairwise(ends), degrees, strict=True)
        ]
        best = min(best, max(costs))
    return best
