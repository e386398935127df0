"""Training end to end on rollouts with a known law."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pytest
import torch
from rich.console import Console

from heddle.models import crossfit
from heddle.models.card import NOT_FOR
from heddle.models.dataset import Dataset, from_collector
from heddle.models.errors import DatasetError, ModelsError
from heddle.models.evaluate import OVERALL
from heddle.models.folds import folds_of
from heddle.models.length import Examples, clearly_saves
from heddle.models.priors import history_of
from heddle.models.registry import Registry, load_active
from heddle.models.train import Args, TrainResult, run, train
from heddle.models.types import Query

QUICK = Args(folds=3, epochs=20, patience=3, hidden=8, learning_rate=6e-3, rounds=25)
SHORT = replace(QUICK, epochs=2, rounds=5)


@dataclass(frozen=True)
class Trained:
    """One training that the tests of this module share; they change nothing in it."""

    dataset: Dataset
    registry: Registry
    result: TrainResult
    heard: list[float]


@pytest.fixture(scope="module")
def won(recorded, tmp_path_factory) -> Trained:
    registry, heard = Registry(tmp_path_factory.mktemp("won")), []
    dataset = recorded(groups=40, samples=5)
    result = train(dataset, QUICK, registry, lambda part, _: heard.append(part))
    registry.promote(result.version.version)
    return Trained(dataset, registry, result, heard)


def test_where_one_step_tells_the_length_the_learned_one_wins(won):
    assert won.result.verdict.accepted, won.result.verdict.because
    assert won.heard == sorted(won.heard)
    assert won.heard[-1] == 1.0
    after = won.result.verdict.table.filter(pl.col("metric") == "spearman", pl.col("k") == 2)
    assert after["candidate"].item() > 0.9 > after["baseline"].item()
    covered = won.result.version.metrics["coverage80"]
    assert 0.72 <= covered <= 0.88


def test_the_winner_serves_and_one_step_moves_it_by_the_law(won):
    predictor = load_active(won.registry, history_of(won.dataset.rows))
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
        for tokens in (100, 500)
    )
    assert 200 < short.p50 < 800
    assert 1_300 < long.p50 < 3_000


def test_a_label_shuffled_training_set_is_refused(recorded, tmp_path, monkeypatch):
    rng, honest = np.random.default_rng(0), crossfit.examples

    def shuffled(rows: pl.DataFrame) -> Examples:
        made = honest(rows)
        return replace(made, y=rng.permutation(made.y))

    monkeypatch.setattr(crossfit, "examples", shuffled)
    result = train(recorded(groups=30, samples=4), QUICK, Registry(tmp_path))
    assert not result.verdict.accepted
    assert result.verdict.because.startswith("refused")


def test_where_only_the_group_tells_history_keeps_its_place(recorded, tmp_path):
    result = train(recorded(steps=1, groups=40, samples=5), QUICK, Registry(tmp_path))
    assert not result.verdict.accepted
    table = result.verdict.table.filter(pl.col("k") == OVERALL)
    rank = table.filter(pl.col("metric") == "spearman").row(0, named=True)
    assert rank["candidate"] > 0.3
    assert rank["difference"] == pytest.approx(0.0, abs=0.02)


def test_savings_by_chance_are_kept_as_rarely_as_the_rule_says():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(16), 5)
    chance = [
        clearly_saves(rng.normal(0.0, 1.0, 16)[group] + rng.normal(0.0, 1.0, 80), group)
        for _ in range(400)
    ]
    assert 0.01 < np.mean(chance) < 0.11
    real = [
        clearly_saves(1.0 + rng.normal(0.0, 1.0, 16)[group] + rng.normal(0.0, 1.0, 80), group)
        for _ in range(100)
    ]
    assert np.mean(real) > 0.9
    assert not clearly_saves(np.ones(20), np.arange(20) % 4)
    assert not clearly_saves(np.zeros(0), np.zeros(0, int))


def test_the_same_seed_gives_the_same_version_and_another_seed_another(recorded, tmp_path):
    registry, dataset = Registry(tmp_path), recorded(groups=12, samples=4)
    versions = [
        train(dataset, replace(SHORT, seed=seed), registry).version.version for seed in (0, 0, 1)
    ]
    assert versions[0] == versions[1] != versions[2]


def test_a_candidate_is_also_compared_with_what_serves(won):
    first = won.result.version.version
    second = train(won.dataset, replace(SHORT, seed=3), won.registry)
    assert set(second.verdict.table["against"]) == {"group history", first}
    assert not second.verdict.accepted


def test_what_serves_is_judged_on_rollouts_it_has_not_learned_from(frames, tmp_path):
    registry, everything = Registry(tmp_path), frames(groups=40, samples=6)
    earlier = [frame.filter(pl.col("rollout_id") != "r2") for frame in everything]
    first = train(from_collector(*earlier), SHORT, registry).version.version
    registry.promote(first, force=True)
    again = train(from_collector(*earlier), replace(SHORT, seed=1), registry)
    second = train(from_collector(*everything), replace(SHORT, seed=1), registry)

    def rows(result, against):
        return dict(result.verdict.table.filter(against=against).select("k", "n").iter_rows())

    whole, new = rows(second, "group history"), rows(second, first)
    assert {k: 3 * n for k, n in new.items()} == whole
    assert rows(again, first) == rows(again, "group history"), "nothing is new to it"


def test_the_last_line_says_how_good_it_is_and_where_it_was_saved(recorded, tmp_path):
    console = Console(record=True, width=300)
    registry = Registry(tmp_path)
    result = run(recorded(groups=15, samples=4), SHORT, registry, console)
    last = console.export_text().strip().splitlines()[-1].strip()
    assert last == result.last_line
    assert last.endswith(result.version.version)
    assert "(group history 0." in last


def test_the_card_names_its_data_its_split_its_metrics_per_step_and_what_it_is_not_for(won):
    card = won.registry.card(won.result.version.version)
    assert f"- data {won.dataset.fingerprint}: 200 trajectories in 40 groups" in card
    assert "split by group into 3 folds, seed 0" in card
    steps = sorted(set(won.result.verdict.table["k"]) - {OVERALL})
    assert len(steps) > 1
    for k in ("all", *steps):
        assert f"| group history | {k} | " in card
    assert card.endswith("## Not for\n\n" + "\n".join(f"- {one}" for one in NOT_FOR) + "\n")


def test_a_store_that_also_holds_nameless_trajectories_trains_and_says_so(frames, tmp_path):
    trajectories, steps, tools = frames(groups=14, samples=4)
    nameless = pl.col("trajectory_id").is_in(["t0-0", "t5-1", "t5-2"])
    steps = steps.with_columns(group_id=pl.when(~nameless).then("group_id"))
    console, registry = Console(record=True, width=300), Registry(tmp_path)
    result = run(from_collector(trajectories, steps, tools), SHORT, registry, console)
    assert "3 of 56 trajectories name no group" in console.export_text()
    assert "(3 trajectories name none" in registry.card(result.version.version)


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


def test_where_all_were_cut_off_it_says_that_nobody_knows_a_length(frames, tmp_path):
    trajectories, steps, tools = frames(groups=20, samples=3)
    cut = trajectories.with_columns(truncated=pl.lit(value=True))
    with pytest.raises(DatasetError, match="all 60 trajectories were cut off"):
        train(from_collector(cut, steps, tools), SHORT, Registry(tmp_path))


@pytest.mark.parametrize("newest", [20, 4])
def test_by_time_three_rollouts_are_enough_and_one_of_four_is_refused(frames, tmp_path, newest):
    trajectories, steps, tools = frames(groups=20, samples=3)
    begun = pl.col("start_ns") + pl.col("rollout_id").str.slice(1).cast(pl.Int64) * 10**12
    # Of the newest rollout so many groups.
    few = (pl.col("rollout_id") != "r2") | (pl.col("group_id").str.slice(1).cast(pl.Int64) < newest)
    dataset = from_collector(trajectories.filter(few), steps.with_columns(start_ns=begun), tools)
    result = train(dataset, replace(SHORT, split="time"), Registry(tmp_path))
    table = result.verdict.table
    assert (newest, not table.is_empty()) in ((20, True), (4, False))
    if newest == 4:
        assert "too few held-out trajectories" in result.verdict.because
        assert "nothing could be compared" in result.last_line
    else:
        assert set(table["n"].to_list()) <= {20, 20 * (table["k"].n_unique() - 1)}


def test_a_gpu_that_is_not_there_is_one_sentence(recorded, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelsError, match=r"sees no GPU to fit on here .*leave the device at cpu"):
        train(recorded(groups=20, samples=4), replace(QUICK, device="cuda"), Registry(tmp_path))


def test_by_time_a_rollout_is_judged_by_earlier_ones_alone(recorded, monkeypatch):
    rows = recorded(groups=40, samples=6).rows
    began = pl.col("rollout_id").str.slice(1).cast(pl.Int64)
    rows = pl.concat(
        [
            rows.with_columns(
                rollout_id=pl.format("r{}", began + 3 * late),
                trajectory_id=pl.format("{}-{}", "trajectory_id", pl.lit(late)),
                start_ns=10**9 * (began + 3 * late),
            )
            for late in (0, 1)
        ]
    )
    heard, honest = [], crossfit.history_of

    def noted(known: pl.DataFrame) -> object:
        heard.append(int(known["start_ns"].max() // 10**9))
        return honest(known)

    monkeypatch.setattr(crossfit, "history_of", noted)
    fitted = crossfit.crossfit(rows, "time", 6, SHORT.fit(), lambda _part, _sentence: None)
    assert heard == [0, 1, 2, 3]
    assert sorted(fitted.rows["rollout_id"].unique()) == ["r2", "r3", "r4", "r5"]
    assert fitted.rows.height == len(fitted.learned) == len(fitted.fold)
