"""Is a claimed spread that the rollout refutes widened, and one that holds left alone?"""

from __future__ import annotations

import numpy as np
import pytest

from heddle.controller.beliefs import Beliefs
from heddle.controller.calibration import MOST, Calibration
from heddle.controller.core.types import Length
from heddle.controller.live import LiveTrajectory
from heddle.models.lognormal import Lognormal


def rollout(claimed: float, true: float, seed: int, finish: float = 1.0, n: int = 300):
    """`finish`: the share that finishes, the shortest first; the rest has passed as much."""
    rng = np.random.default_rng(seed)
    known = Calibration()
    middles = np.exp(rng.normal(8.5, 0.5, n))
    totals = middles * np.exp(true * rng.standard_normal(n))
    for i in range(n):
        law = Lognormal(float(np.log(middles[i])), claimed).remaining()
        known.predicted(f"t{i}", Length(p10=law.p10, p50=law.p50, p90=law.p90, mean=law.mean))
    order = np.argsort(totals)
    now = totals[order[int(n * finish) - 1]]
    for i in order:
        known.survives(f"t{i}", float(min(totals[i], now)))
    for i in order[: int(n * finish)]:
        known.ended(f"t{i}", float(totals[i]), truncated=False)
    return known


@pytest.mark.parametrize("finish", [0.3, 0.6, 1.0])
def test_a_claim_that_holds_is_left_alone_also_while_only_the_short_have_finished(finish):
    factors = [rollout(0.6, 0.6, seed, finish).factor for seed in range(5)]
    assert np.median(factors) <= 1.1
    assert max(factors) <= 1.2


@pytest.mark.parametrize("finish", [0.3, 1.0])
def test_a_claim_three_times_too_sure_is_widened_about_threefold(finish):
    factors = [rollout(0.3, 0.9, seed, finish).factor for seed in range(5)]
    assert 2.3 <= np.median(factors) <= 3.4


def test_too_wide_a_claim_is_not_narrowed_and_widening_is_bounded():
    assert rollout(1.0, 0.3, 0).factor == 1.0
    assert rollout(0.05, 1.5, 0).factor == MOST


def test_widening_keeps_the_middle_and_is_the_wider_law():
    known = Calibration(factor=2.0)
    law, wide = Lognormal(8.0, 0.4).remaining(), Lognormal(8.0, 0.8).remaining()
    told = known.widened(Length(p10=law.p10, p50=law.p50, p90=law.p90, mean=law.mean))
    assert told.p50 == law.p50
    assert (told.p10, told.p90, told.mean) == pytest.approx((wide.p10, wide.p90, wide.mean))


@pytest.mark.parametrize("policy", ["group-history", "learned"])
def test_what_decisions_and_plans_are_told_is_as_wide_as_the_rollout_shows(policy):
    beliefs, waits = Beliefs(), LiveTrajectory(run="r", id="t", number=0, group="g")
    own, _ = beliefs.predict(policy, waits)
    beliefs.calibrations["r"].factor = 2.0
    told, _ = beliefs.predict(policy, waits)
    assert (told.p50, told.p90 / told.p50) == pytest.approx((own.p50, (own.p90 / own.p50) ** 2))
