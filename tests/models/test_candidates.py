"""The simplest guesses are fitted held out, rank as they should, and are on every card."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from heddle.models.candidates import SIMPLE, guesses, sibling_means, standing
from heddle.models.folds import folds_of


def test_a_guess_is_fitted_without_the_fold_it_answers_for(recorded):
    rows = recorded(groups=20, samples=4).rows
    fold = folds_of(rows, "group", 5, 0)
    before = guesses(rows, fold)
    longer = pl.when(pl.Series(fold == 2)).then(pl.col("remaining_tokens") * 50)
    changed = rows.with_columns(remaining_tokens=longer.otherwise(pl.col("remaining_tokens")))
    after = guesses(changed, fold)
    for name in SIMPLE:
        assert after[name][fold == 2] == pytest.approx(before[name][fold == 2])
        assert not np.allclose(after[name][fold == 1], before[name][fold == 1])


def test_where_steps_share_the_total_evenly_tokens_so_far_tell_it_and_a_constant_does_not(recorded):
    rows = recorded(groups=30, samples=4).rows
    fold = folds_of(rows, "group", 5, 0)
    table = standing(guesses(rows, fold), rows)
    rank = table.filter(pl.col("metric") == "spearman")
    by_name = dict(zip(rank["candidate"], rank["value"], strict=True))
    assert by_name["tokens so far"] > 0.6
    assert abs(by_name["constant"]) < 0.3
    covered = table.filter(pl.col("metric") == "coverage80")["value"]
    assert covered.is_between(0.6, 0.95).all()


def test_the_sibling_mean_leaves_the_trajectory_itself_out(recorded):
    rows = recorded(groups=6, samples=3).rows
    means = rows.with_columns(siblings=sibling_means(rows))
    group = means.filter(pl.col("group_id") == "g0").unique("trajectory_id")
    logs = dict(zip(group["trajectory_id"], group["total_tokens"].log(), strict=True))
    for name, told in group.select("trajectory_id", "siblings").iter_rows():
        others = [log for other, log in logs.items() if other != name]
        assert told == pytest.approx(np.mean(others))
