"""Is the exact cut what brute force finds, for equal and unequal degrees, whatever binds?"""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from exact_brute import CLOSE, LAWS, brute_cut_s, by_length, works_of
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.controller.core.allocation import ALLOCATIONS
from heddle.controller.core.anneal import annealed_cut, presorted_cut
from heddle.controller.core.cost import expected_ranks, group_s
from heddle.controller.core.exact import PRECISION, Columns, Runs, best_cut, best_layout
from heddle.controller.core.types import CoreError, Work

RNG = np.random.default_rng(0)
CHAINS = [(1,), (2, 2), (1, 1, 1, 1, 1), (4, 1), (2, 1, 1), (1, 4)]


def layouts_of(known, gpus):
    for count in range(1, gpus + 1):
        for degrees in product(known, repeat=count):
            if sum(degrees) == gpus:
                yield degrees


def runs_of(works, laws):
    columns = Columns.of(works)
    return {d: Runs(columns, one) for d, one in laws.items()}


@pytest.mark.parametrize("allocation", sorted(ALLOCATIONS))
@pytest.mark.parametrize("wrong", [{"output_tokens": np.nan}, {"output_tokens": np.inf},
                                   {"output_tokens": 5.0, "tool_s": np.nan}])  # fmt: skip
def test_what_is_no_number_is_refused_and_not_searched_for_ever(allocation, wrong):
    laws = LAWS[min(LAWS)]
    laws = {degree: laws[min(laws)] for degree in (1, 2, 4, 8)}
    with pytest.raises(CoreError, match="finite numbers"):
        ALLOCATIONS[allocation]([Work(output_tokens=9.0), Work(**wrong)], laws, 8, RNG)


@given(works_of, st.sampled_from(sorted(LAWS)))
@settings(max_examples=60, deadline=None)
def test_a_run_costs_what_its_group_costs_and_never_less_when_it_grows(works, bound):
    laws = LAWS[bound]
    ordered, runs = by_length(works), runs_of(works, laws)
    for d, one in runs.items():
        for start in range(len(works)):
            costs = [one.cost_s(start, end) for end in range(start, len(works) + 1)]
            wanted = [group_s(ordered[start:e], laws[d]) for e in range(start, len(works) + 1)]
            assert costs == pytest.approx(wanted)
            assert all(a <= b + 1e-9 for a, b in pairwise(costs))


@given(works_of, st.sampled_from(sorted(LAWS)), st.sampled_from(CHAINS))
@settings(max_examples=120, deadline=None)
def test_the_exact_cut_is_the_best_of_all_contiguous_cuts(works, bound, degrees):
    laws = LAWS[bound]
    cut = best_cut(runs_of(works, laws), degrees)
    assert cut.makespan_s <= brute_cut_s(works, laws, degrees) * CLOSE + 1e-9
    assert sum(cut.shares) == len(works)
    assert min(cut.shares) >= 0
    edges = [0, *cut.ends]
    costs = [
        group_s(by_length(works)[a:b], laws[d])
        for (a, b), d in zip(pairwise(edges), degrees, strict=True)
    ]
    assert cut.makespan_s == pytest.approx(max(costs))


@given(works_of, st.sampled_from(sorted(LAWS)), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_exact_layout_and_cut_are_the_best_of_all_and_never_worse_than_annealing(
    works, bound, gpus
):
    laws = LAWS[bound]
    runs = runs_of(works, laws)
    found = best_layout(runs, gpus)
    brute = min(brute_cut_s(works, laws, degrees) for degrees in layouts_of((1, 2, 4), gpus))
    assert found.makespan_s <= brute * CLOSE + 1e-9
    assert sum(found.degrees) == gpus
    assert sum(found.shares) == len(works)
    for seed in range(3):
        tried = annealed_cut(runs, gpus, np.random.default_rng(seed), moves=30)
        assert found.makespan_s <= tried.makespan_s * CLOSE + 1e-9


@given(works_of, st.sampled_from(sorted(LAWS)), st.sampled_from([(1, 1), (2, 2, 2), (4, 2, 1)]))
@settings(max_examples=60, deadline=None)
def test_the_papers_dp_finds_the_same_makespan_and_aggregation_never_a_better_one(
    works, bound, degrees
):
    runs = runs_of(works, LAWS[bound])
    exact = best_cut(runs, degrees)
    assert presorted_cut(runs, degrees).makespan_s == pytest.approx(
        exact.makespan_s, rel=3 * PRECISION, abs=1e-9
    )
    coarse = presorted_cut(runs, degrees, step=3)
    assert coarse.makespan_s >= presorted_cut(runs, degrees).makespan_s - 1e-9
    assert sum(coarse.shares) == len(works)


@pytest.mark.parametrize("allocation", ["exact", "annealed"])
def test_allocations_use_all_gpus_and_share_out_every_trajectory(allocation):
    rng = np.random.default_rng(1)
    works = [Work(output_tokens=float(x)) for x in rng.lognormal(6, 1, 50)]
    layout = ALLOCATIONS[allocation](works, LAWS["free"], 8, rng)
    assert (layout.gpus, sum(layout.shares)) == (8, 50)
    assert list(layout.degrees) == sorted(layout.degrees, reverse=True)
    assert ALLOCATIONS[allocation]([], LAWS["free"], 8, rng).gpus == 8


def test_more_workers_than_trajectories_leave_the_rest_empty():
    cut = best_cut(runs_of([Work(output_tokens=100.0)], LAWS["free"]), (1,) * 5)
    assert sum(cut.shares) == 1


def test_the_first_expected_rank_is_the_expected_longest():
    worlds = [[Work(output_tokens=x) for x in world] for world in ((1.0, 9.0), (5.0, 2.0))]
    assert [w.output_tokens for w in expected_ranks(worlds)] == [7.0, 1.5]
