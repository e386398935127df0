"""Metrics against brute force, paired intervals, and what the gate lets through."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.models.evaluate import (
    NAMES,
    OVERALL,
    Held,
    compare,
    coverage,
    evaluate,
    pinball,
    ranks,
    recall,
    spearman,
)
from heddle.models.gate import judge

values = st.lists(st.integers(0, 9), min_size=3, max_size=12).map(lambda v: np.array(v, float))


def held_out(groups: int = 60, samples: int = 4, seed: int = 0) -> tuple[Held, np.ndarray]:
    """Log-normal remaining tokens at k = 0 and 1, and the quantiles of one who knows the group."""
    rng = np.random.default_rng(seed)
    means = np.repeat(rng.normal(7.0, 0.8, groups), samples)
    group, k = np.repeat(np.arange(groups), samples), np.zeros(groups * samples, int)
    y = rng.normal(means, 0.4)
    q = means[:, None] + 0.4 * np.array([-1.2816, 0.0, 1.2816])
    held = Held(
        np.tile(group, 2),
        np.concatenate([k, k + 1]),
        np.exp(np.tile(y, 2)),
        np.zeros(len(y) * 2, bool),
    )
    return held, np.tile(q, (2, 1))


@given(values)
def test_ranks_are_the_mean_place_over_all_ways_to_break_ties(v):
    below = (v[None] < v[:, None]).sum(1)
    tied = (v[None] == v[:, None]).sum(1)
    assert ranks(v) == pytest.approx(below + (tied - 1) / 2)


@given(values, st.randoms())
def test_spearman_is_one_for_any_increasing_map_and_minus_one_for_its_mirror(v, random):
    if len(set(v)) < 2:
        assert spearman(v, v) == 0.0
        return
    assert spearman(np.exp(v / 3), v) == pytest.approx(1.0)
    assert spearman(-v, v) == pytest.approx(-1.0)


@given(values, values, st.floats(0.05, 0.6))
def test_recall_is_the_mean_over_all_fair_choices_among_ties(predicted, truth, share):
    n = min(len(predicted), len(truth), 7)
    predicted, truth = predicted[:n], truth[:n]
    top = max(int(np.ceil(share * n)), 1)
    longest = set(np.argsort(-truth, kind="stable")[:top].tolist())
    best = np.sort(predicted)[-top:].sum()
    choices = [
        len(longest & set(c)) / top
        for c in itertools.combinations(range(n), top)
        if predicted[list(c)].sum() == best
    ]
    assert recall(predicted, truth, share) == pytest.approx(float(np.mean(choices)))


def test_the_true_quantiles_have_the_least_pinball_loss_and_cover_four_in_five():
    held, q = held_out(groups=400)
    best = pinball(q, held.remaining, held.censored)
    for shift, stretch in ((0.1, 1.0), (-0.1, 1.0), (0.0, 1.5), (0.0, 0.6)):
        other = q[:, [1]] + shift + stretch * (q - q[:, [1]])
        assert pinball(other, held.remaining, held.censored) > best
    assert coverage(q, held.remaining) == pytest.approx(0.8, abs=0.03)


def test_a_truncated_row_is_not_punished_for_a_longer_prediction():
    q = np.log([[10.0, 20.0, 40.0]])
    assert pinball(q, np.array([5.0]), np.array([True])) == 0.0
    assert pinball(q, np.array([5.0]), np.array([False])) > 0.0


def test_comparing_a_predictor_with_itself_finds_exactly_nothing():
    held, q = held_out()
    table = compare(q, q, held, rounds=20)
    assert table.select(pl.col("difference", "low", "high").abs().max()).row(0) == (0.0, 0.0, 0.0)
    assert table["k"].unique().to_list() == [OVERALL, 0, 1]
    assert table["metric"].unique(maintain_order=True).to_list() == list(NAMES)
    assert evaluate(q, held).columns == ["k", "n", "metric", "value"]


def test_the_interval_of_a_real_improvement_excludes_zero_and_of_noise_does_not():
    held, q = held_out()
    rng = np.random.default_rng(1)
    blurred = q + np.repeat(rng.normal(0.0, 0.6, len(q)), 3).reshape(q.shape)
    cell = pl.col("metric") == "pinball", pl.col("k") == OVERALL
    real = compare(q, blurred, held, rounds=60).filter(*cell).row(0, named=True)
    jitter = q + rng.normal(0.0, 0.01, (len(q), 1))
    noise = compare(q, jitter, held, rounds=60).filter(*cell).row(0, named=True)
    assert real["high"] < 0
    assert abs(noise["difference"]) < 0.001


def test_steps_with_too_few_trajectories_are_not_scored():
    held, q = held_out(groups=4, samples=4)
    assert compare(q, q, held, rounds=0).is_empty()
    assert not judge({"group history": compare(q, q, held, rounds=0)}).accepted


def test_the_gate_takes_a_clear_winner_and_says_by_how_much():
    held, q = held_out()
    flat = np.full_like(q, 7.0) + 0.9 * np.array([-1.28, 0.0, 1.28])
    verdict = judge({"group history": compare(q, flat, held, rounds=60)})
    assert verdict.accepted
    assert "against group history" in verdict.because


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (lambda q: q, "not clearly better"),
        (lambda q: np.full_like(q, 7.0) + np.array([-1.0, 0.0, 1.0]), "Spearman -"),
        (lambda q: q[:, [1]] + 0.2 * (q - q[:, [1]]), "80 % interval holds"),
        (lambda q: q + 0.15, "pinball loss +"),
    ],
)
def test_the_gate_refuses_and_says_which_number_it_was(candidate, reason):
    held, q = held_out(groups=150)
    verdict = judge({"group history": compare(candidate(q), q, held, rounds=60)})
    assert not verdict.accepted
    assert reason in verdict.because


def test_beating_history_is_not_enough_when_the_serving_version_is_better():
    held, q = held_out()
    rng = np.random.default_rng(2)
    blurred = q[:, [1]] + rng.normal(0.0, 0.3, (len(q), 1)) + 1.25 * (q - q[:, [1]])
    flat = np.full_like(q, 7.0) + 0.9 * np.array([-1.28, 0.0, 1.28])
    tables = {
        "group history": compare(blurred, flat, held, rounds=60),
        "length-old": compare(blurred, q, held, rounds=60),
    }
    verdict = judge(tables)
    assert not verdict.accepted
    assert "length-old" in verdict.because
    assert set(verdict.table["against"]) == set(tables)
