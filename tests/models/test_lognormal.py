"""The truncated lognormal against its definition, far in the tail and by simulation."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.models.lognormal import (
    FAR_Z,
    LEVELS,
    Lognormal,
    mills,
    quantiles_many,
    remaining_many,
    z_beyond,
)
from heddle.models.normal import inv_cdf

laws = st.builds(Lognormal, st.floats(-2.0, 14.0), st.floats(0.05, 3.0))
tokens = st.floats(0.0, 1e9)


@given(laws, tokens)
def test_quantiles_are_finite_positive_and_in_order_however_far_the_trajectory_got(law, so_far):
    length = law.remaining(so_far)
    assert 0.0 <= length.p10 <= length.p50 <= length.p90 < math.inf
    assert 0.0 <= length.mean < math.inf


@given(st.floats(3.0, 10.0), st.floats(0.1, 2.0), st.floats(-6.0, 6.0), st.floats(0.02, 0.98))
def test_the_remaining_quantile_splits_the_surviving_mass(mu, sigma, z, level):
    so_far = math.exp(mu + sigma * z)
    total = so_far + Lognormal(mu, sigma).quantile(level, so_far)
    surviving = 1.0 - NormalDist().cdf(z) if z < 0 else NormalDist().cdf(-z)
    beyond = NormalDist().cdf(-(math.log(total) - mu) / sigma)
    assert beyond / surviving == pytest.approx(1.0 - level, rel=1e-6)


@given(laws, st.floats(1.0, 1e6), st.floats(1.0, 3.0))
def test_the_total_only_grows_with_the_tokens_already_spent(law, so_far, factor):
    later = so_far * factor
    first, second = law.quantile(0.5, so_far) + so_far, law.quantile(0.5, later) + later
    assert second >= first * (1.0 - 1e-9)


@given(laws, st.floats(1.0, 1e9))
def test_what_is_asked_of_every_step_at_once_is_what_is_asked_one_by_one(law, so_far):
    one_by_one = [law.quantile(level, so_far) for level in LEVELS]
    assert law.remaining(so_far) == (*one_by_one, law.mean(so_far))


@settings(deadline=None)
@given(st.lists(st.tuples(laws, st.just(0.0) | tokens), min_size=1, max_size=12))
def test_many_are_answered_as_each_at_admission_on_the_way_and_far_beyond(asked):
    columns = [np.array(c) for c in zip(*((law.mu, law.sigma, t) for law, t in asked), strict=True)]
    each = np.array([law.remaining(so_far) for law, so_far in asked])
    assert remaining_many(*columns) == pytest.approx(each, rel=1e-9)
    assert quantiles_many(*columns) == pytest.approx(each[:, :3], rel=1e-9)
    assert quantiles_many(*columns, (0.5,))[:, 0] == pytest.approx(each[:, 1], rel=1e-9)


@given(st.floats(0.05, 0.95))
def test_the_far_tail_meets_the_exact_branch_without_a_jump(level):
    near, far = z_beyond(FAR_Z - 1e-9, level), z_beyond(FAR_Z + 1e-9, level)
    assert near == pytest.approx(far, rel=2e-5)
    assert mills(FAR_Z - 1e-9) == pytest.approx(mills(FAR_Z + 1e-9), rel=1e-8)


def test_ten_thousand_sigmas_out_the_tail_is_the_exponential_of_its_hazard():
    law = Lognormal(5.0, 0.01)
    so_far = math.exp(105.0)
    z = 100.0 / 0.01
    assert law.quantile(0.5, so_far) == pytest.approx(so_far * 0.01 * math.log(2) / z, rel=1e-3)
    assert law.mean(so_far) == pytest.approx(so_far * 0.01 / z, rel=1e-3)


@pytest.mark.parametrize("so_far", [0.0, 200.0, 3_000.0, 20_000.0])
def test_quantiles_and_mean_agree_with_a_million_simulated_survivors(so_far):
    law = Lognormal(7.0, 0.9)
    totals = np.random.default_rng(1).lognormal(law.mu, law.sigma, 1_000_000)
    left = totals[totals > so_far] - so_far
    length = law.remaining(so_far)
    tolerance = 4.0 / math.sqrt(len(left))
    for level, value in ((0.1, length.p10), (0.5, length.p50), (0.9, length.p90)):
        assert float(np.mean(left < value)) == pytest.approx(level, abs=tolerance)
    assert length.mean == pytest.approx(float(left.mean()), rel=10 * tolerance)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1_000), st.floats(0.0, 5_000.0))
def test_draws_follow_the_quantiles_and_repeat_under_a_seed(seed, so_far):
    law = Lognormal(7.0, 0.6)
    draws = law.draws(2_000, np.random.default_rng(seed), so_far)
    again = law.draws(2_000, np.random.default_rng(seed), so_far)
    assert np.array_equal(draws, again)
    assert float(np.mean(draws < law.quantile(0.9, so_far))) == pytest.approx(0.9, abs=0.05)


def test_the_quantiles_of_many_are_those_of_each_to_the_last_bits():
    p = np.concatenate([np.linspace(1e-9, 1.0 - 1e-9, 4_001), np.logspace(-300, -1, 900)])
    each = np.array([NormalDist().inv_cdf(one) for one in p])
    assert inv_cdf(p) == pytest.approx(each, rel=4e-16, abs=1e-15)
