"""Nothing there, nothing accounted, nothing wrong: each page says the one it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from browser.apptest import opened, said
from browser.fake_explained import explain
from browser.fake_rollouts import Story

from heddle.dashboards import facts

Answering = Callable[[Any], None]
PAGES = ("overview", "idle")
UNSEEN = "Nothing of this rollout has been seen yet."
NO_GPUS = "no span says of how many GPUs its workers are made"
NO_PHASES = "What the GPUs of this rollout did is unknown"
NO_FAULT = "No rule found anything wrong"
FALSE = ("No worker has been seen", "No GPU was idle", NO_FAULT)


def _words(page: str) -> str:
    return said(opened(page)).replace("\\", "")


@pytest.fixture
def story() -> Story:
    """Finished, its GPU time accounted, and nothing wrong with it."""
    made = explain(Story(("verl",), trajectories=6))
    made.rows["findings"] = []
    return made


def _unaccounted(story: Story) -> None:
    """As a sender without degrees leaves it: workers on steps, and no GPU of them known."""
    for table in ("partition", "strips", "blame", "critical_path"):
        story.rows[table] = []
    for row in story.rows["efficiency"]:
        row.update({name: 0 for name in row if name.endswith("_gpu_ns")})


@pytest.mark.parametrize("page", PAGES)
def test_nothing_there(page: str, answering: Answering) -> None:
    story = Story(("verl",), trajectories=0)
    answering(story)
    words = _words(page)
    assert UNSEEN in words
    assert not [false for false in (*FALSE, NO_GPUS, NO_PHASES) if false in words]


@pytest.mark.parametrize("page", PAGES)
def test_nothing_accounted_below_a_table_that_names_workers(
    page: str, story: Story, answering: Answering
) -> None:
    _unaccounted(story)
    answering(story)
    words = _words(page)
    assert NO_GPUS in words
    assert not [false for false in (*FALSE, UNSEEN) if false in words]
    if page == "overview":
        listed = opened(page).dataframe[0].value
        assert set(listed["worker_id"]) <= {f"w{n}" for n in range(8)}
        assert "Last to finish" in words


@pytest.mark.parametrize("page", PAGES)
def test_nobody_told_what_the_gpus_did(page: str, story: Story, answering: Answering) -> None:
    for table in ("partition", "strips"):
        for row in story.rows[table]:
            row["state"] = "unknown"
    story.rows["blame"] = []
    answering(story)
    at = opened(page)
    words = said(at).replace("\\", "")
    assert NO_PHASES in words
    assert not [false for false in (*FALSE, UNSEEN) if false in words]
    assert "0% busy" not in words
    assert {metric.value for metric in at.metric if metric.label in ("Busy", "Tail bubble")} <= {
        "–"
    }


@pytest.mark.parametrize("page", PAGES)
def test_accounted_and_nothing_wrong(page: str, story: Story, answering: Answering) -> None:
    answering(story)
    words = _words(page)
    assert NO_FAULT in words
    assert not [false for false in (UNSEEN, NO_GPUS, NO_PHASES) if false in words]


def test_unknown_time_is_no_share_of_anything() -> None:
    nothing: list[dict[str, int]] = [{}, {"unknown": 5}, {"unknown": 5, "unallocated": 1}]
    for states in nothing:
        assert facts.busy_share(states) is None
        assert facts.share(states, "tail_bubble") is None
        assert facts.untold(states, has_begun=True)
    assert facts.busy_share({"unknown": 5, "tail_bubble": 5}) == 0.0
    assert facts.untold({"unknown": 5, "busy_decode": 5}, has_begun=True) is None


def test_a_trajectory_without_tool_spans_is_not_said_to_have_called_none(
    answering: Answering,
) -> None:
    story = Story(("verl",), trajectories=1)
    story.rows["tool_calls"], story.rows["moves"] = [], []
    for row in story.rows["trajectories"]:
        row["group_id"] = None
    answering(story)
    words = said(opened("trajectory", tab="Tools and moves"))
    assert "No tool call and no move of it has been seen." in words
    assert "It names no group." in words


def test_busy_is_said_to_be_a_least_where_much_is_unknown(
    story: Story, answering: Answering
) -> None:
    for row in story.rows["partition"]:
        if row["state"] != "tail_bubble":
            row["state"] = "unknown"
    answering(story)
    at = opened("overview")
    words = said(at).replace("\\", "")
    assert "**0% busy** and **" in words
    assert "% unknown** over" in words
    assert next(metric.value for metric in at.metric if metric.label == "Busy") == "≥ 0.0 %"
    split = {metric.label: metric.value for metric in opened("idle").metric}
    assert {"Busy", "Effective", "Recoverable", "Unavoidable"} <= split.keys()
    assert all(value.startswith("≥ ") for value in split.values())


def test_what_no_step_told_is_said_and_not_drawn_as_an_empty_figure(
    story: Story, answering: Answering
) -> None:
    untold = ("output_tokens", "cached_tokens", "input_tokens", "looked_up_tokens")
    phases = [f"{phase}{unit}" for phase in ("prefill", "decode") for unit in ("_s", "_ns")]
    for row in [*story.rows["steps"], *story.rows["trajectories"]]:
        row.update({name: None for name in (*untold, *phases) if name in row})
    story.rows["cost"] = [
        {**row, "used_gpu_ns": 0, "caused_gpu_ns": 5} for row in story.rows["trajectories"]
    ]
    answering(story)
    at = opened("trajectory")
    shown = {metric.label: metric.value for metric in at.metric}
    assert [shown[name] for name in ("Output tokens", "Cache hits", "Used")] == ["–"] * 3
    assert "No step of it told its tokens." in said(at)
    tail = opened("tail", measure="output_tokens")
    assert "No trajectory here tells its output tokens." in said(tail).replace("\\", "")
    assert "Median" not in {metric.label for metric in tail.metric}
    assert "Median" in {metric.label for metric in opened("tail", measure="steps").metric}
