"""What the predictor's bench holds it against: ceilings, intervals, the same tokens, a second."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest
from predictor_weights import saved

from heddle.app.bench.predict_ceiling import interval, oracle_of, parts_of, siblings_of
from heddle.app.bench.predict_pairs import more_is_known
from heddle.app.bench.predict_sets import KS, Judged, steps_of
from heddle.app.bench.predict_speed import TIMES, promotions
from heddle.controller.emulator.workload import generate
from heddle.models.crossfit import Crossfit, together
from heddle.models.dataset import ask
from heddle.models.evaluate import groups_of, spearman
from heddle.models.features import FEATURES
from heddle.models.length import LengthNet, export
from heddle.models.registry import Registry
from heddle.models.types import Query

GROUPS = 24


@dataclass(frozen=True)
class Asked:
    """Rows of the generated workload with both ceilings."""

    rows: pl.DataFrame
    oracle: np.ndarray
    siblings: np.ndarray

    def judged(self, chosen: np.ndarray) -> Judged:
        """As if that had been predicted, held out."""
        nothing = np.zeros((self.rows.height, len(FEATURES)))
        weights = together([export([LengthNet(nothing, 2)])])
        fold = groups_of(self.rows) % 3
        return Judged(Crossfit(self.rows, nothing, chosen, chosen, weights, fold, {}), chosen, True)


@pytest.fixture(scope="module")
def asked():
    rows = ask(steps_of(generate("math", groups=GROUPS))).rows
    return Asked(rows, oracle_of("math", GROUPS, rows), siblings_of("math", rows))


def test_siblings_tell_nearly_what_the_prompts_latents_do_and_no_more(asked):
    found = asked.judged(asked.siblings)
    scored = asked.rows["steps_so_far"].is_in(KS) & ~asked.rows["truncated"]
    assert np.isfinite(asked.siblings[scored.to_numpy()]).all()
    assert np.isnan(asked.siblings[asked.rows["steps_so_far"].to_numpy() == 3]).all()
    for k in (0, 2):
        at = found.at(k)
        theirs, best = (
            spearman(told[at, 1], found.truth[at]) for told in (asked.siblings, asked.oracle)
        )
        assert 0.8 * best < theirs < best + 0.01


def test_who_answers_as_the_oracle_reaches_all_of_it_however_the_groups_are_drawn(asked):
    found = asked.judged(asked.oracle)
    parts = parts_of(found, (asked.oracle, asked.siblings), found.at(2))
    assert parts.spearman == parts.recall20 == 1.0
    assert "1.000 [1.00, 1.00] of it" in parts.told
    assert parts.siblings < 1.01


def test_each_step_is_held_against_the_tokens_left_after_two_of_the_same_trajectories(asked):
    left = pl.col("remaining_tokens").filter(pl.col("steps_so_far") == 2).first()
    after = asked.rows.select(left.over("run_id", "trajectory_id").fill_null(1)).to_series()
    known = np.log(after.cast(pl.Float64).to_numpy())
    # Whoever knows at step 1 what is left after two, and answers the contrary at step 2.
    sign = np.where(asked.rows["steps_so_far"].to_numpy() == 2, -1.0, 1.0)
    found = asked.judged(np.stack([known * sign] * 3, axis=1))
    figures = more_is_known("math", found, asked.oracle)
    assert figures["math_heddle2_over_heddle1"].value == pytest.approx(-2.0)
    assert "interval -2.000 to -2.000" in figures["math_heddle2_over_heddle1"].note
    assert "Heddle-1 1.000, Heddle-2 -1.000" in figures["math_heddle1_over_prompt"].note
    assert f"{len(found.at(2))} trajectories" in figures["math_heddle1_over_prompt"].note


def test_an_interval_is_as_wide_as_whole_groups_differ():
    group = np.repeat(["a", "b", "c", "d"], 25)
    alike = np.tile(np.arange(25.0), 4)
    assert interval(lambda at: float(alike[at].mean()), group) == (12.0, 12.0)
    apart = np.repeat([0.0, 0.0, 0.0, 1.0], 25)
    low, high = interval(lambda at: float(apart[at].mean()), group)
    assert (low, high) == (0.0, 0.5)


def test_promotions_are_timed_there_and_back_each_until_the_other_answers(tmp_path):
    version = saved(tmp_path, 0.25, accepted=False)
    registry = Registry(tmp_path / "predictors")
    figure = promotions(registry, Query(group="g"))["promote_s"]
    assert figure.note.startswith(f"the slowest of {2 * TIMES}, ")
    deeds = [(deed["deed"], deed["version"]) for deed in registry.audit()[1:]]
    assert [deed for deed, _ in deeds] == ["promote-forced", "rollback"] * TIMES
    assert deeds[0] == ("promote-forced", version)
    assert registry.active() is None
