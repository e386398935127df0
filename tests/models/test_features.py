"""What is known after step k: nothing that happens later may change it."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.models.dataset import STEP_COLUMNS, ask
from heddle.models.features import (
    COLUMNS,
    FEATURES,
    PRIOR,
    TOOL_BUCKETS,
    columns_of,
    documented,
    matrix,
    tool_bucket,
)
from heddle.models.priors import features as feature_matrix
from heddle.models.types import Query

step = st.fixed_dictionaries(
    {
        "input_tokens": st.integers(0, 100_000),
        "output_tokens": st.integers(0, 20_000),
        "tool_name": st.sampled_from([None, "bash", "edit"]),
        "tool_s": st.one_of(st.none(), st.floats(0, 1_000)),
        "tool_calls": st.integers(0, 3),
        "tool_errors": st.integers(0, 2),
    }
)


def frame_of(steps: list[dict[str, object]]) -> pl.DataFrame:
    whose = {"run_id": "r", "rollout_id": "a", "task": "t", "group_id": "g", "truncated": False}
    rows = [
        whose | {"trajectory_id": "x", "step_index": i, "start_ns": i} | s
        for i, s in enumerate(steps)
    ]
    return pl.DataFrame(rows, schema=STEP_COLUMNS)


def known_at(steps: list[dict[str, object]], k: int) -> np.ndarray:
    rows = ask(frame_of(steps)).rows.filter(pl.col("step_index") == k)
    flat = {name: pl.lit(1.0) for name in PRIOR}
    return feature_matrix(rows.with_columns(**flat))


@settings(deadline=None, max_examples=60)
@given(st.lists(step, min_size=2, max_size=6), st.lists(step, min_size=1, max_size=6), st.data())
def test_whatever_happens_from_step_k_on_changes_no_feature_at_k(steps, later, data):
    k = data.draw(st.integers(1, len(steps) - 1))
    # The call after step k - 1 has been made, and neither ended nor failed yet.
    called = steps[k - 1] | {"tool_s": 999.0, "tool_errors": 9, "tool_calls": 7}
    other = [*steps[: k - 1], called, *later]
    assert np.array_equal(known_at(steps, k), known_at(other, k))


@settings(deadline=None, max_examples=30)
@given(st.lists(step, min_size=1, max_size=5))
def test_the_remaining_tokens_are_the_outputs_of_step_k_and_later(steps):
    rows = ask(frame_of(steps)).rows
    outputs = [s["output_tokens"] for s in steps]
    wanted = [sum(outputs[k:]) for k in range(len(steps))]
    assert rows["remaining_tokens"].to_list() == wanted
    assert rows["tokens_so_far"].to_list() == [sum(outputs[:k]) for k in range(len(steps))]


def test_queries_and_recorded_rows_of_the_same_trajectory_give_the_same_features():
    steps: list[dict[str, object]] = [
        {"input_tokens": 100, "output_tokens": 40, "tool_name": "bash", "tool_s": 2.0,
         "tool_calls": 1, "tool_errors": 1},
        {"input_tokens": 190, "output_tokens": 10, "tool_name": "edit", "tool_s": 5.0,
         "tool_calls": 1, "tool_errors": 0},
        {"input_tokens": 260, "output_tokens": 70, "tool_name": None, "tool_s": None,
         "tool_calls": 0, "tool_errors": 0},
    ]  # fmt: skip
    asked = Query(
        group="g",
        prompt_tokens=100,
        context_tokens=200,
        tokens_so_far=50,
        steps_so_far=2,
        last_output_tokens=10,
        max_output_tokens=40,
        last_observation_tokens=50,
        tool_calls_so_far=1,
        tool_s_so_far=2.0,
        last_tool="edit",
        last_tool_s=2.0,
        errors_so_far=1,
        last_error=True,
    )
    columns = columns_of([asked]) | {name: np.ones(1) for name in PRIOR}
    assert np.array_equal(matrix(columns), known_at(steps, 2))


def test_the_answer_is_no_feature_and_every_feature_is_documented():
    names = [feature.name for feature in FEATURES]
    assert not {"n_steps", "truncated", "outcome", "reward", "total_tokens"} & set(names)
    assert len(set(names)) == len(names)
    assert documented().count("\n| ") == len(FEATURES)
    assert set(COLUMNS) <= set(Query._fields)


@pytest.mark.parametrize("name", [None, ""])
def test_an_unknown_tool_falls_in_no_bucket(name):
    assert tool_bucket(name) == -1
    assert 0 <= tool_bucket("bash") < TOOL_BUCKETS


MIDDLE = 8.5


def survived(so_far: int, k: int, *, steps: float = 4.0) -> float:
    """ln of what remains by `prior_steps_survived`, in a group of that many steps."""
    known = {"prior_steps": steps, "prior_log_p50": MIDDLE, "prior_mu": 9.0, "prior_sigma": 0.5}
    asked = Query(group="g", tokens_so_far=so_far, steps_so_far=k)
    x = matrix(columns_of([asked]) | {n: np.array([known.get(n, 1.0)]) for n in PRIOR})
    names = [feature.name for feature in FEATURES]
    return MIDDLE + float(x[0, names.index("prior_steps_survived")])


def left_beyond(least: float, so_far: float) -> float:
    """The same by drawing: the middle of what remains of those that get beyond `least`."""
    totals = np.random.default_rng(0).lognormal(9.0, 0.5, 2_000_000)
    return float(np.log(np.median(totals[totals > least]) - so_far))


def test_six_short_steps_in_a_group_of_long_ones_are_more_than_their_tokens_say():
    usual = np.exp(9.0 + 0.5**2 / 2) / 4
    # At 6 of 10 parts its own pace, and half a step more is written at least.
    least = 6.5 * usual * (500 / usual) ** 0.6
    assert survived(3_000, 6) == pytest.approx(left_beyond(least, 3_000), abs=0.01)
    assert survived(3_000, 6) > left_beyond(3_000, 3_000) + 0.02


def test_at_admission_no_step_has_been_survived_and_history_alone_speaks():
    assert survived(0, 0) == pytest.approx(9.0, abs=1e-9)


def test_steps_say_nothing_where_the_tokens_are_beyond_them_or_nobody_knows_a_pace():
    assert survived(30_000, 2) == pytest.approx(left_beyond(30_000, 30_000), abs=0.05)
    assert survived(3_000, 6, steps=0.0) == MIDDLE


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -5.0])
@pytest.mark.parametrize("field", ["tool_s_so_far", "last_tool_s", "tokens_so_far", "steps_so_far"])
def test_a_number_that_is_none_is_a_number_to_the_network_and_spares_its_neighbour(field, odd):
    plain, spoilt = Query("g", last_tool="\ud800"), Query("g")._replace(**{field: odd})
    ones = {name: np.ones(2) for name in PRIOR}
    x = matrix(columns_of([plain, spoilt]) | ones)
    assert np.isfinite(x).all()
    assert np.array_equal(x[0], matrix(columns_of([plain, plain]) | ones)[0])
