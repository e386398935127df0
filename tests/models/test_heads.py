"""The heads for steps and tool seconds learn a known law, and yield where they know no better."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from heddle.models import heads
from heddle.models.crossfit import crossfit
from heddle.models.dataset import from_collector
from heddle.models.history import GroupHistory
from heddle.models.priors import history_of
from heddle.models.serve import Learned, simple_outlook
from heddle.models.train import Args
from heddle.models.types import Query

QUICK = Args(folds=3, epochs=2, hidden=4)


@pytest.fixture(scope="module")
def told(frames):
    """Five steps each; `slow` tools take 8 s and `fast` ones 0.1 s, called at random."""
    trajectories, steps, tools = frames(groups=24, samples=4)
    rng = np.random.default_rng(5)
    slow = rng.random(tools.height) < 0.5
    tools = tools.with_columns(
        tool_name=pl.Series(np.where(slow, "slow", "fast")),
        duration_s=pl.Series(np.where(slow, 8.0, 0.1) * rng.lognormal(0.0, 0.1, tools.height)),
    )
    rows = from_collector(trajectories, steps, tools).rows
    fitted = crossfit(rows, "group", 3, QUICK.fit(), lambda _part, _sentence: None)
    return rows, fitted


def test_the_running_tool_is_told_by_its_name_and_the_steps_by_the_count_so_far(told):
    rows, fitted = told
    assert fitted.outlook["tool_s_log_error"] < 0.8 * fitted.outlook["tool_s_log_error_simple"]
    served = Learned(fitted.weights, history_of(rows), "v")
    asked = [
        Query(group="g1", task="toy", steps_so_far=2, tokens_so_far=500, last_tool=name)
        for name in ("slow", "fast")
    ]
    slow, fast = served.outlook_many(asked)
    assert slow.tool_s > 2 * fast.tool_s
    assert slow.length == served.predict(asked[0])
    first, late = served.outlook_many(
        [Query(group="g1", task="toy"), Query(group="g1", task="toy", steps_so_far=4)]
    )
    assert first.tool_s == 0.0
    assert first.steps == pytest.approx(5, rel=0.3)
    assert late.steps == pytest.approx(1, rel=0.3)


def test_a_head_that_knows_no_better_is_not_served(told):
    rows, fitted = told
    y = heads.targets(rows)
    censored = np.zeros(rows.height)
    trust, metrics = heads.trusted(y + 9.0, fitted.x, y, censored)
    assert trust[:2].tolist() == [0.0, 0.0]
    assert metrics["steps_log_error"] == pytest.approx(9.0)
    trust, _ = heads.trusted(y, fitted.x, y, censored)
    assert trust[1] == 1.0


def test_the_running_tool_is_an_answer_and_the_steps_of_a_truncated_one_a_lower_bound(told):
    rows, _ = told
    one = rows.filter(pl.col("trajectory_id") == "t0-0").sort("steps_so_far")
    assert one["running_tool_s"].to_list()[0] is None
    assert one["running_tool_s"].to_list()[1:] != one["last_tool_s"].to_list()[1:]
    y = heads.targets(one)
    assert np.exp(y[:, 0]) == pytest.approx([5, 4, 3, 2, 1])
    assert np.isnan(y[0, 1])
    assert np.isnan(heads.errors(y, y, np.ones(one.height))[0])


def test_without_a_network_history_tells_steps_and_tools():
    history = GroupHistory.from_frame(
        pl.DataFrame([{
            "run_id": "r", "task": "t", "group_id": "g", "trajectories": 4, "mean_log_tokens": 6.0,
            "var_log_tokens": 0.1, "mean_steps": 6.0, "mean_tool_s": 20.0,
        }])
    )  # fmt: skip
    (outlook,) = history.outlook_many([Query(group="g", task="t", steps_so_far=2)])
    assert (outlook.steps, outlook.tool_s) == (4.0, 4.0)
    x = np.zeros((1, 30))
    assert simple_outlook(x, 0.5)[0].tolist() == [0.0, 0.5]
