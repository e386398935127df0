"""Does an imagined rollout keep to the bounds of any, and to what its parts cost alone?"""

from __future__ import annotations

import numpy as np
import pytest
from exact_brute import LAWS
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.controller.core.allocation import ALLOCATIONS, NEAR
from heddle.controller.core.cost import group_s, lower_bounds_s
from heddle.controller.core.imagined import FEWEST, imagined_s
from heddle.controller.core.types import CoreError, Work

STEP = 1.0 / FEWEST
"""What one time step may be off: a rollout's fiftieth."""
some_works = st.lists(
    st.builds(
        Work,
        output_tokens=st.floats(0.0, 20_000.0),
        prompt_tokens=st.floats(0.0, 500.0),
        observation_tokens=st.floats(0.0, 2_000.0),
        steps=st.floats(1.0, 10.0),
        tool_s=st.floats(0.0, 60.0),
        resets=st.sampled_from([0.0, 0.5, 4.0]),
    ),
    min_size=1,
    max_size=40,
)
layouts = st.sampled_from([(1,), (1, 1), (2, 1), (4,), (2, 2), (1, 1, 1, 1), (4, 2, 1, 1)])


@given(some_works, st.sampled_from(sorted(LAWS)), layouts)
@settings(max_examples=60, deadline=None)
def test_no_imagined_rollout_ends_before_the_lower_bounds(works, bound, degrees):
    bounds = lower_bounds_s([[work] for work in works], LAWS[bound], sum(degrees))
    assert imagined_s(works, LAWS[bound], degrees) >= max(bounds.values()) * (1.0 - STEP)


@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize("tool_s", [0.0, 300.0])
def test_one_trajectory_takes_what_it_costs_alone(degree, tool_s):
    work = Work(
        output_tokens=8_000.0, prompt_tokens=300.0, observation_tokens=900.0, steps=5.0,
        tool_s=tool_s,
    )  # fmt: skip
    alone_s = group_s([work], LAWS["free"][degree])
    assert imagined_s([work], LAWS["free"], [degree]) == pytest.approx(alone_s, rel=0.01)


def test_as_many_engines_as_trajectories_end_with_the_longest_alone():
    works = [Work(output_tokens=1_000.0 * n) for n in range(1, 9)]
    longest_s = group_s(works[-1:], LAWS["free"][1])
    assert imagined_s(works, LAWS["free"], [1] * 8) == pytest.approx(longest_s, rel=0.01)


@given(some_works, st.sampled_from(sorted(LAWS)), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_twice_the_engines_never_end_later(works, bound, engines):
    few, many = (imagined_s(works, LAWS[bound], [1] * n) for n in (engines, 2 * engines))
    assert many <= few * (1.0 + 2 * STEP)


def test_two_that_will_not_fit_together_overlap_only_as_far_as_they_do():
    """Each grows to 0.7 of the KV: on one engine the second waits, by how much guesses say."""
    room = LAWS["kv-bound"][1].kv_tokens
    works = [Work(output_tokens=0.7 * room)] * 2
    one, two = (imagined_s(works, LAWS["kv-bound"], [1] * n) for n in (1, 2))
    assert 1.5 <= one / two <= 2.0 * (1.0 + STEP)


def test_nobody_takes_no_time_and_a_degree_without_a_law_is_named():
    assert imagined_s([], LAWS["free"], [1]) == 0.0
    with pytest.raises(CoreError, match="no latency law of degree 16"):
        imagined_s([Work(output_tokens=9.0)], LAWS["free"], [16, 1])


@given(some_works, st.sampled_from(sorted(LAWS)))
@settings(max_examples=30, deadline=None)
def test_simulated_takes_no_homogeneous_degree_that_another_beats(works, bound):
    laws = LAWS[bound]
    layout = ALLOCATIONS["simulated"](works, laws, 4, np.random.default_rng(0))
    equal = {d: imagined_s(works, laws, [d] * (4 // d)) for d in (1, 2, 4)}
    assert sum(layout.degrees) <= 4
    assert sum(layout.shares) == len(works)
    assert layout.makespan_s == imagined_s(works, laws, layout.degrees)
    assert layout.makespan_s <= min(equal.values()) * (1.0 + NEAR)
