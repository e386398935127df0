"""From frames to questions with answers."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from heddle.models.dataset import from_collector, from_traces
from heddle.models.errors import DatasetError
from heddle.models.evaluate import Held
from heddle.models.priors import features, history_of, with_priors


def test_every_step_of_a_finished_trajectory_is_one_question(frames):
    trajectories, steps, tools = frames(groups=4, samples=3)
    dataset = from_collector(trajectories, steps, tools)
    assert dataset.rows.height == steps.height
    assert dataset.trajectories == 12
    whole = dataset.rows.filter(pl.col("steps_so_far") == 0)
    assert whole["remaining_tokens"].sum() == steps["output_tokens"].sum()


def test_a_trajectory_still_running_answers_nothing_yet(frames):
    trajectories, steps, tools = frames(groups=2, samples=2)
    running = trajectories.with_columns(
        state=pl.when(pl.col("trajectory_id") == "t0-0").then(pl.lit("running")).otherwise("state")
    )
    rows = from_collector(running, steps, tools).rows
    assert "t0-0" not in rows["trajectory_id"].to_list()


def test_equal_trajectory_ids_of_two_runs_stay_apart(frames):
    made = frames(groups=2, samples=2)
    twice = [pl.concat([f, f.with_columns(run_id=pl.lit("other"))]) for f in made]
    once, both = from_collector(*made), from_collector(twice[0], twice[1], twice[2])
    assert both.trajectories == 2 * once.trajectories
    assert both.rows["remaining_tokens"].max() == once.rows["remaining_tokens"].max()


def test_the_tool_seconds_of_calls_that_ended_two_steps_back_are_summed(frames):
    trajectories, steps, tools = frames(groups=1, samples=1)
    again = pl.concat([tools, tools.with_columns(tool_name=pl.lit("more"))])
    rows = from_collector(trajectories, steps, again).rows.sort("step_index")
    first, second = tools["duration_s"].to_list()[:2]
    assert rows["tool_s_so_far"].to_list()[:4] == pytest.approx(
        [0.0, 0.0, 2 * first, 2 * (first + second)]
    )
    assert rows["tool_calls_so_far"].to_list()[:4] == [0, 0, 2, 4]


def test_the_fingerprint_changes_with_any_value_and_not_with_the_order_of_rows(frames):
    trajectories, steps, tools = frames(groups=3, samples=2)
    print_of = from_collector(trajectories, steps, tools).fingerprint
    assert from_collector(trajectories, steps.reverse(), tools.reverse()).fingerprint == print_of
    longer = steps.with_columns(pl.col("output_tokens") + (pl.int_range(pl.len()) == 5))
    assert from_collector(trajectories, longer, tools).fingerprint != print_of


def test_a_missing_column_and_an_empty_store_are_one_sentence_each(frames):
    trajectories, steps, tools = frames(groups=1, samples=1)
    with pytest.raises(DatasetError, match="steps frame lacks output_tokens"):
        from_collector(trajectories, steps.drop("output_tokens"), tools)
    with pytest.raises(DatasetError, match="record a rollout first"):
        from_collector(trajectories.clear(), steps, tools)
    with pytest.raises(DatasetError, match="traces frame lacks source"):
        from_traces(steps)


def test_a_trajectory_is_never_its_own_prior(frames):
    trajectories, steps, tools = frames(groups=30, samples=4)
    rows = from_collector(trajectories, steps, tools).rows
    changed = rows.with_columns(
        total_tokens=pl.when(pl.col("trajectory_id") == "t3-1")
        .then(pl.col("total_tokens") * 50)
        .otherwise("total_tokens")
    )
    history = history_of(rows)
    before, after = with_priors(rows, history), with_priors(changed, history)
    own = pl.col("trajectory_id") == "t3-1"
    sibling = pl.col("trajectory_id") == "t3-2"
    assert before.filter(own)["prior_mu"].equals(after.filter(own)["prior_mu"])
    assert (after.filter(sibling)["prior_mu"] > before.filter(sibling)["prior_mu"]).all()


def test_truncated_siblings_raise_the_prior_and_count_as_no_sample(frames):
    trajectories, steps, tools = frames(groups=10, samples=4)
    cut = trajectories.with_columns(truncated=pl.col("trajectory_id") == "t3-1")
    rows = from_collector(cut, steps, tools).rows
    asked = with_priors(rows, history_of(rows)).filter(pl.col("trajectory_id") == "t3-2")
    assert asked["prior_samples"].unique().to_list() == [2]
    assert rows.filter(pl.col("truncated"))["trajectory_id"].unique().to_list() == ["t3-1"]


def test_hidden_siblings_repeat_under_a_seed(frames):
    rows = from_collector(*frames(groups=20, samples=5)).rows
    history = history_of(rows)
    once, twice = (with_priors(rows, history, np.random.default_rng(4)) for _ in range(2))
    assert once.equals(twice)
    assert once["prior_samples"].min() == 0
    assert once["prior_samples"].max() == 4


def test_a_trajectory_without_a_group_is_a_group_of_its_own_and_is_counted(frames):
    trajectories, steps, tools = frames(groups=3, samples=2)
    bare = pl.col("trajectory_id").is_in(["t0-0", "t0-1", "t1-0"])
    nameless = pl.when(bare).then(pl.when(pl.col("trajectory_id") == "t1-0").then(pl.lit("")))
    steps = steps.with_columns(group_id=nameless.otherwise("group_id"))
    dataset = from_collector(trajectories, steps, tools)
    assert dataset.ungrouped == 3
    whose = dataset.rows.group_by("trajectory_id").agg(pl.col("group_id").unique())
    groups = whose["group_id"].explode()
    assert groups.null_count() == 0
    assert groups.n_unique() == 5
    asked = with_priors(dataset.rows, history_of(dataset.rows))
    assert asked.filter(bare)["prior_samples"].unique().to_list() == [0]
    held = Held.from_rows(dataset.rows)
    assert sorted(set(held.group.tolist())) == list(range(5))


OPTIONAL = ("run_id", "rollout_id", "group_id", "step_index", "start_ns", "input_tokens")


@pytest.mark.parametrize("column", [*OPTIONAL, "task", "tool_name", "duration_s", "error_type"])
@pytest.mark.parametrize("every", [True, False])
def test_nulls_in_any_column_leave_numbers_a_network_can_read(frames, column, every):
    made = list(frames(groups=6, samples=3))
    for at, frame in enumerate(made):
        if column in frame.columns:
            gone = pl.lit(value=True) if every else pl.col("trajectory_id") == "t2-1"
            made[at] = frame.with_columns(pl.when(~gone).then(column).alias(column))
    rows = from_collector(*made).rows
    assert rows["trajectory_id"].n_unique() == made[0].height
    x = features(with_priors(rows, history_of(rows)))
    assert np.isfinite(x).all()
    assert len(Held.from_rows(rows).group) == rows.height


@pytest.mark.parametrize("column", ["input_tokens", "output_tokens", "duration_s"])
def test_counts_below_zero_are_none_and_leave_numbers_a_network_can_read(frames, column):
    made = [
        frame.with_columns(pl.col(column) * -1) if column in frame.columns else frame
        for frame in frames(groups=6, samples=3)
    ]
    rows = from_collector(*made).rows
    assert rows["remaining_tokens"].min() >= 0
    x = features(with_priors(rows, history_of(rows)))
    assert np.isfinite(x).all()


def test_a_trace_file_with_nan_and_nameless_rows_is_read_without_them():
    traces = pl.DataFrame(
        {
            "source": ["s", None, "s"],
            "group_id": ["g", None, "g"],
            "trajectory_id": ["a", "b", None],
            "step_index": [0, 0, 0],
            "input_tokens": [float("nan"), 5.0, 5.0],
            "output_tokens": [7.0, 8.0, 9.0],
            "tool_name": ["t", None, None],
            "tool_seconds": [float("nan"), None, None],
            "error_flag": [None, True, None],
            "truncated": [None, False, None],
        }
    )
    rows = from_traces(traces).rows
    assert rows["total_tokens"].to_list() == [8, 7]
    assert np.isfinite(features(with_priors(rows, history_of(rows)))).all()
