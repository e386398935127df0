"""Claims about recorded files: exactly their steps are sent, and every change is said."""

from __future__ import annotations

import polars as pl
import pytest

from heddle.app.driver import Context
from heddle.app.errors import AppError
from heddle.app.recorded import TOOL_LAW, Limits, load

ROWS = {
    "trajectory_id": ["a", "a", "a", "b", "b"],
    "group_id": ["g", "g", "g", "h", "h"],
    "step_index": [0, 1, 2, 0, 1],
    "input_tokens": [100, 180, 60, 50, 52],
    "output_tokens": [20, 0, 5, 30, 4],
    "tool_name": ["bash", "bash", None, "user", "user"],
    "tool_seconds": [2.0, 500.0, None, None, 1.0],
    "sample_index": [0, 0, 0, None, None],
    "truncated": [False, False, False, True, True],
}


def written(tmp_path, rows=None, **changes):
    path = tmp_path / "f.parquet"
    pl.DataFrame({**(rows or ROWS), **changes}).write_parquet(path)
    return path


def contexts(trajectory):
    context = Context(trajectory)
    sizes = []
    for index, step in enumerate(trajectory.steps):
        context.observe(index, step)
        sizes.append(context.tokens)
        context.append([1] * step.output_tokens)
    return sizes


def test_every_step_is_sent_with_the_context_and_output_of_its_row(tmp_path):
    recording = load(written(tmp_path), Limits())

    first, second = recording.trajectories
    assert contexts(first) == [100, 180, 60]
    assert contexts(second) == [50, 52]
    assert [s.output_tokens for s in first.steps] == [20, 0, 5]
    assert (first.truncated, second.truncated) == (False, True)
    assert recording.counts == {
        "trajectories": 2,
        "steps": 5,
        "tool_calls": 4,
        "output_tokens": 59,
    }


def test_only_a_context_below_the_last_prompt_is_a_reset(tmp_path):
    recording = load(written(tmp_path), Limits())

    first, second = recording.trajectories
    assert [s.reset for s in first.steps] == [False, False, True]
    # 52 < 50 + 30: the agent left most of its output out of the next prompt, but kept the prompt.
    assert [s.reset for s in second.steps] == [False, False]
    assert second.steps[1].observation_tokens == -28
    assert any("1 steps shrink their context" in note for note in recording.notes)
    assert any("1 steps have no output" in note for note in recording.notes)


def test_missing_tool_times_come_from_the_named_law_under_the_seed(tmp_path):
    path = written(tmp_path)

    one, same, other = (load(path, Limits(seed=seed)) for seed in (1, 1, 2))

    drawn = one.trajectories[1].steps[0]
    assert drawn.tool_synthetic
    assert drawn.tool_s > 0
    assert not one.trajectories[0].steps[0].tool_synthetic
    assert one.trajectories == same.trajectories
    assert other.trajectories[1].steps[0].tool_s != drawn.tool_s
    assert any(TOOL_LAW in note and "seed 1" in note for note in one.notes)


def test_limits_change_what_they_say_and_nothing_else(tmp_path):
    path = written(tmp_path)
    whole = load(path, Limits())

    cut = load(path, Limits(trajectories=1, context_tokens=110, tool_wait_s=60))

    (only,) = cut.trajectories
    assert contexts(only) == [90, 110, 60]
    assert [s.output_tokens for s in only.steps] == [20, 0, 5]
    assert [s.tool_s for s in only.steps] == [2.0, 60.0, 0.0]
    assert [s.tool_name for s in only.steps] == [s.tool_name for s in whole.trajectories[0].steps]
    assert any("first 1 of 2 trajectories, 3 of 5 steps" in note for note in cut.notes)
    assert any("2 steps of 1 trajectories" in note for note in cut.notes)
    assert any("1 tool calls cut, 0.1 h" in note for note in cut.notes)


@pytest.mark.parametrize(
    ("dropped", "names"),
    [
        (["group_id"], "lacks the columns group_id"),
        (["step_index", "input_tokens"], "step_index, "),
    ],
)
def test_missing_columns_are_named(tmp_path, dropped, names):
    rows = {name: values for name, values in ROWS.items() if name not in dropped}

    with pytest.raises(AppError, match=names):
        load(written(tmp_path, rows), Limits())


def test_optional_columns_may_be_missing(tmp_path):
    rows = {name: ROWS[name] for name in list(ROWS)[:5]}

    recording = load(written(tmp_path, rows), Limits())

    assert recording.counts["tool_calls"] == 0
    assert recording.trajectories[0].task == "recorded"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"output_tokens": [20, None, 5, 30, 4]}, "1 rows without output_tokens"),
        ({"output_tokens": [20, -1, 5, 30, 4]}, "negative"),
    ],
)
def test_rows_that_cannot_be_sent_are_refused(tmp_path, changes, says):
    with pytest.raises(AppError, match=says):
        load(written(tmp_path, **changes), Limits())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"output_tokens": list("12345")},
            "column output_tokens .* String; .* whole numbers",
        ),
        ({"input_tokens": [1.5] * 5}, "column input_tokens .* holds Float64"),
        ({"step_index": [True] * 5}, "column step_index .* holds Boolean"),
        ({"group_id": [[1]] * 5}, "column group_id .* holds List"),
        ({"tool_name": [1] * 5}, "column tool_name .* holds Int64; .* text"),
        ({"tool_seconds": ["1"] * 5}, "column tool_seconds .* holds String; .* numbers"),
        ({"sample_index": ["1"] * 5}, "column sample_index .* holds String"),
        ({"truncated": ["no"] * 5}, "column truncated .* holds String; .* booleans"),
        ({"source": [2.5] * 5}, "column source .* holds Float64"),
        ({"tool_seconds": [1.0, -2.0, None, None, 1.0]}, "negative or infinite"),
        ({"tool_seconds": [1.0, float("inf"), None, None, 1.0]}, "negative or infinite"),
        ({"step_index": [0, 1, 1, 0, 1]}, "2 rows that share .* as step 1 of 'a'"),
        ({"group_id": ["g", "g", "x", "h", "h"]}, "trajectory 'a' in more than one group_id"),
    ],
)
def test_a_column_of_another_type_or_a_step_that_is_there_twice_is_one_sentence(
    tmp_path, changes, says
):
    with pytest.raises(AppError, match=says) as said:
        load(written(tmp_path, **changes), Limits())

    assert "\n" not in str(said.value)


def test_ids_may_be_numbers_and_numbers_with_gaps_may_be_floats(tmp_path):
    gaps = [0.0, 0.0, 0.0, float("nan"), None]
    waits = [2.0, 500.0, None, float("nan"), 1.0]
    unsigned = pl.Series([100, 180, 60, 50, 52], dtype=pl.UInt32)
    ids = {"trajectory_id": [7, 7, 7, 8, 8], "group_id": pl.Series([1] * 5, dtype=pl.UInt8)}
    path = written(
        tmp_path,
        **ids,
        input_tokens=unsigned,
        sample_index=gaps,
        tool_seconds=waits,
        truncated=None,
    )

    first, second = load(path, Limits()).trajectories

    assert (first.trajectory_id, first.group_id, second.sample_index) == ("7", "1", 0)
    assert contexts(first) == [100, 180, 60]
    assert second.steps[0].tool_synthetic


def test_a_file_that_is_no_parquet_or_not_there_is_one_sentence(tmp_path):
    path = tmp_path / "x.parquet"
    with pytest.raises(AppError, match="there is no file"):
        load(path, Limits())
    path.write_text("hello")
    with pytest.raises(AppError, match="not a readable parquet file"):
        load(path, Limits())


def test_a_context_limit_below_an_output_is_refused(tmp_path):
    with pytest.raises(AppError, match="no room for a step of 30 output tokens"):
        load(written(tmp_path), Limits(context_tokens=30))
