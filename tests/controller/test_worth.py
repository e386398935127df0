"""Does a layout change exactly when it saves more than its cost with a margin, by whatever way it
is looked at?"""

from __future__ import annotations

import math
from bisect import bisect_left

import pytest
from exact_brute import CLOSE, LAWS, brute_cut_s, works_of
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.controller.core.cost import homogeneous_s
from heddle.controller.core.types import Work
from heddle.controller.core.worth import MARGIN, worth

EQUAL = [[1, 1, 1, 1], [2, 2], [4]]
MIXED = [[2, 1, 1], [1, 2, 1], [1, 1, 2]]
layouts = st.sampled_from([*EQUAL, *MIXED])
bounds = st.sampled_from(sorted(LAWS))
costs_s = st.floats(0.0, 500.0)


def brute_s(works, laws, degrees, *, mixed):
    """As equal engines that bind late; else the best of all contiguous cuts."""
    if not mixed:
        return homogeneous_s(works, laws[degrees[0]], len(degrees))
    return brute_cut_s(works, laws, sorted(degrees, reverse=True))


@given(works_of, bounds, layouts, layouts, costs_s)
@settings(max_examples=100, deadline=None)
def test_a_layout_changes_exactly_when_brute_force_says_that_it_gains_more_than_the_margin(
    works, bound, now, wanted, cost_s
):
    verdict = worth(works, LAWS[bound], now, wanted, cost_s)
    if sorted(now) == sorted(wanted):
        assert (verdict.change, verdict.gain_s) == (False, 0.0)
        return
    mixed = now in MIXED or wanted in MIXED
    here_s, there_s = (brute_s(works, LAWS[bound], d, mixed=mixed) for d in (now, wanted))
    # The cut is exact to a part of each makespan, so is their difference.
    off_s = (CLOSE - 1) * (here_s + there_s) + 1e-9
    assert verdict.gain_s == pytest.approx(here_s - there_s, abs=off_s)
    if abs(here_s - there_s - MARGIN * cost_s) > off_s:
        assert verdict.change == (here_s - there_s > MARGIN * cost_s)


@given(works_of, bounds, layouts, layouts)
@settings(max_examples=60, deadline=None)
def test_it_is_never_worth_to_go_and_to_come_back_and_dearer_changes_are_never_made_sooner(
    works, bound, now, wanted
):
    there, back = (worth(works, LAWS[bound], *way, 0.0) for way in ((now, wanted), (wanted, now)))
    assert not (there.change and back.change)
    assert there.gain_s == pytest.approx(-back.gain_s)
    dearer = [not worth(works, LAWS[bound], now, wanted, cost).change for cost in range(0, 800, 9)]
    assert dearer == sorted(dearer)


@pytest.mark.parametrize("margin", [1.0, MARGIN, 3.0])
def test_the_dearest_change_that_is_made_costs_the_gain_over_the_margin(margin):
    works = [Work(output_tokens=4_000.0)] * 2 + [Work(output_tokens=100.0)] * 6
    now, wanted, gain_s = [1] * 4, [4], worth(works, LAWS["free"], [1] * 4, [4], 0.0).gain_s
    costs = [gain_s * share / 1_000 for share in range(1_200)]
    kept = [not worth(works, LAWS["free"], now, wanted, cost, margin).change for cost in costs]
    first = costs[bisect_left(kept, True)]
    assert first == pytest.approx(gain_s / margin, abs=gain_s / 1_000)


def test_the_sentence_has_both_makespans_and_the_cost():
    works = [Work(output_tokens=10_000.0)]
    here_s, there_s = (homogeneous_s(works, LAWS["free"][d], 4 // d) for d in (1, 4))
    said = f"{here_s:.0f} s as it is, {there_s:.0f} s after a change that costs "
    assert worth(works, LAWS["free"], [1] * 4, [4], 40.0).because == f"{said}40 s"
    kept = worth(works, LAWS["free"], [1] * 4, [4], 900.0)
    assert kept.because == f"{said}900 s: not 1.25 times its cost, degrees stay"


@pytest.mark.parametrize(
    ("works", "wanted", "said"),
    [
        ([], [4], "no lengths to compare layouts by: degrees stay"),
        ([Work(output_tokens=9e9)], [8], "no latency law of degree 8: degrees stay"),
    ],
)
def test_without_lengths_or_a_law_nothing_changes_even_for_free(works, wanted, said):
    verdict = worth(works, LAWS["free"], [1] * 4, wanted, 0.0)
    assert (verdict.change, verdict.gain_s, verdict.because) == (False, None, said)


def test_where_no_engine_serves_any_layout_is_worth_its_cost():
    works = [Work(output_tokens=10_000.0)]
    assert worth(works, LAWS["free"], [], [4], math.inf).change


def test_a_change_that_never_ends_is_never_made():
    works = [Work(output_tokens=9e9)]
    assert not worth(works, LAWS["free"], [1] * 4, [4], math.inf).change
