"""Training end to end on rollouts with a known law."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from heddle.models import crossfit
from heddle.models.crossfit import folds_of
from heddle.models.errors import DatasetError
from heddle.models.evaluate import OVERALL
from heddle.models.length import Examples
from heddle.models.priors import history_of
from heddle.models.registry import Registry, load_active
from heddle.models.train import Args, run, train
from heddle.models.types import Query

QUICK = Args(folds=3, epochs=40, patience=4, hidden=8, rounds=25)


def test_where_one_step_tells_the_length_the_learned_one_wins_and_serves(recorded, tmp_path):
    registry, heard = Registry(tmp_path), []
    dataset = recorded(groups=40, samples=6)
    result = train(dataset, QUICK, registry, lambda part, _: heard.append(part))
    assert result.verdict.accepted, result.verdict.because
    assert heard == sorted(heard)
    assert heard[-1] == 1.0
    after = result.verdict.table.filter(pl.col("metric") == "spearman", pl.col("k") == 2)
    assert after["candidate"].item() > 0.9 > after["baseline"].item()
    covered = result.version.metrics["coverage80"]
    assert 0.72 <= covered <= 0.88
    registry.promote(result.version.version)
    predictor = load_active(registry, history_of(dataset.rows))
    short, long = (
        predictor.predict(
            Query(
                group="new",
                task="toy",
                prompt_tokens=200,
                steps_so_far=1,
                context_tokens=200 + tokens,
                tokens_so_far=tokens,
                last_output_tokens=tokens,
                max_output_tokens=tokens,
            )
        )
        for tokens in (100, 1_000)
    )
    assert 200 < short.p50 < 800
    assert 2_500 < long.p50 < 6_500


def test_a_label_shuffled_training_set_is_refused(recorded, tmp_path, monkeypatch):
    rng, honest = np.random.default_rng(0), crossfit.examples

    def shuffled(rows: pl.DataFrame) -> Examples:
        made = honest(rows)
        return replace(made, y=rng.permutation(made.y))

    monkeypatch.setattr(crossfit, "examples", shuffled)
    result = train(recorded(groups=40, samples=6), QUICK, Registry(tmp_path))
    assert not result.verdict.accepted
    assert result.verdict.because.startswith("refused")


def test_where_only_the_group_tells_history_keeps_its_place(recorded, tmp_path):
    result = train(recorded(telling=False, groups=40, samples=6), QUICK, Registry(tmp_path))
    if result.verdict.accepted:
        cell = pl.col("metric") == "pinball", pl.col("k") == OVERALL
        assert result.verdict.table.filter(*cell)["difference"].item() < 0


def test_the_same_seed_gives_the_same_version_and_another_seed_another(recorded, tmp_path):
    registry, dataset = Registry(tmp_path), recorded(groups=15, samples=4)
    short = replace(QUICK, epochs=3)
    versions = [
        train(dataset, replace(short, seed=seed), registry).version.version for seed in (0, 0, 1)
    ]
    assert versions[0] == versions[1] != versions[2]


def test_a_candidate_is_also_compared_with_what_serves(recorded, tmp_path):
    registry, dataset = Registry(tmp_path), recorded(groups=30, samples=5)
    first = train(dataset, QUICK, registry).version.version
    registry.promote(first, force=True)
    second = train(dataset, replace(QUICK, seed=3), registry)
    assert set(second.verdict.table["against"]) == {"group history", first}
    assert not second.verdict.accepted


def test_the_last_line_says_how_good_it_is_and_where_it_was_saved(recorded, tmp_path):
    console = Console(record=True, width=300)
    registry = Registry(tmp_path)
    result = run(recorded(groups=15, samples=4), replace(QUICK, epochs=3), registry, console)
    last = console.export_text().strip().splitlines()[-1].strip()
    assert last == result.last_line
    assert last.endswith(result.version.version)
    assert "(group history 0." in last
    card = registry.card(result.version.version)
    assert "## Not for" in card
    assert "| group history | all |" in card


@pytest.mark.parametrize("split", ["group", "rollout"])
def test_folds_keep_what_belongs_together(recorded, split):
    rows = recorded(groups=12, samples=3).rows
    fold = folds_of(rows, split, 3, seed=0)
    column = {"group": "group_id", "rollout": "rollout_id"}[split]
    spread = rows.with_columns(fold=fold).group_by(column).agg(pl.col("fold").n_unique())
    assert spread["fold"].to_list() == [1] * spread.height
    assert len(set(fold.tolist())) == 3


def test_too_little_data_is_one_sentence(recorded, tmp_path):
    with pytest.raises(DatasetError, match="12 finished trajectories are too few"):
        train(recorded(groups=4, samples=3), QUICK, Registry(tmp_path))
    with pytest.raises(DatasetError, match="cannot make 3 folds"):
        train(recorded(groups=20, samples=3), replace(QUICK, split="task"), Registry(tmp_path))
