"""Every page: empty, one trajectory, nothing optional, many, gone; and text stays text."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from browser.apptest import Gone, opened, said
from browser.fake_rollouts import HOSTILE, RUN, Story

from heddle.dashboards import cards, client
from heddle.dashboards.figures import base
from heddle.dashboards.views import compare, trajectory

Answering = Callable[[Any], None]
PAGES = ("overview", "tail", "trajectory", "compare", "idle")
TABLES = (("prefill_s",), ("what",), ("tool_name",), ("service", "attrs"))
"""A column or two that only the table of each tab of a trajectory has."""


@functools.cache
def _many() -> Story:
    return Story(("verl", "heddle"), trajectories=1_500)


@pytest.mark.parametrize("page", PAGES)
def test_a_store_without_rollouts_says_what_would_fill_it(page: str, answering: Answering) -> None:
    story = Story(())
    story.rows["runs"] = []
    answering(story)
    at = opened(page)
    assert "heddle demo" in said(at)


@pytest.mark.parametrize("page", PAGES)
def test_a_rollout_without_trajectories_is_a_page(page: str, answering: Answering) -> None:
    answering(Story(("verl",), trajectories=0))
    opened(page)


@pytest.mark.parametrize("page", PAGES)
def test_one_trajectory_is_a_page(page: str, answering: Answering) -> None:
    answering(Story(("verl", "heddle"), trajectories=1))
    at = opened(page)
    assert at.get("plotly_chart")


@pytest.mark.parametrize("page", PAGES)
def test_missing_optional_attributes_leave_a_page(page: str, answering: Answering) -> None:
    answering(_bare())
    opened(page)


@pytest.mark.parametrize("bare", [True, False])
def test_every_tab_of_a_trajectory_stands_and_is_the_addresss(
    bare: bool,
    answering: Answering,
) -> None:
    story = _bare() if bare else Story(("verl", "heddle"), trajectories=6)
    answering(story)
    for tab, columns in zip(trajectory.TABS, TABLES, strict=True):
        at = opened("trajectory", tab=tab)
        others = {name for other in TABLES for name in other} - set(columns)
        shown = [set(one.value.columns) for one in at.dataframe]
        assert bare or any(set(columns) <= names for names in shown)
        assert not any(others & names for names in shown)


def _bare() -> Story:
    story = Story(("verl", "heddle"), trajectories=6)
    keep = {"run_id", "rollout_id", "trajectory_id", "state", "start_ns", "metric", "gpu_ns"}
    for table in ("trajectories", "steps", "tool_calls", "moves", "rollouts", "tail", "plans"):
        story.rows[table] = [{k: row[k] for k in keep & row.keys()} for row in story.rows[table]]
    return story


@pytest.mark.parametrize(
    ("name", "column", "one"),
    [("task", "task", "coding"), ("worker", "worker_id", "w3"), ("group", "group_id", "g01")],
)
def test_the_tail_of_a_slice_is_counted_over_that_slice_alone(
    name: str, column: str, one: str, answering: Answering
) -> None:
    story = Story(("verl", "heddle"), trajectories=48)
    answering(story)
    mine = story.query("trajectories", rollout="rollout-2").filter(pl.col(column) == one)
    at = opened("tail", rollout="rollout-2", measure="steps", **{name: one})
    shown = {metric.label: metric.value for metric in at.metric}
    assert shown["Longest"] == f"{mine['steps'].max()}"
    assert shown["Median"] == f"{mine['steps'].median():.0f}"
    assert f"of {mine.height} trajectories" in said(at)
    assert set(at.dataframe[0].value["trajectory_id"]) <= set(mine["trajectory_id"])
    at.selectbox(key=f"choose_{name}").select("").run()
    assert "of 48 trajectories" in said(at)


@pytest.mark.parametrize("page", PAGES)
def test_many_trajectories_are_a_page(page: str, answering: Answering) -> None:
    answering(_many())
    at = opened(page)
    figures = [json.loads(one.proto.spec) for one in at.get("plotly_chart")]
    assert figures
    for figure in figures:
        assert sum(len(trace.get("x", ())) for trace in figure["data"]) <= 1.1 * base.MARKS
    sent = sum(block.proto.ByteSize() for block in at.main if block.proto is not None)
    assert 5_000 < sent < 1_000_000


@pytest.mark.parametrize("page", PAGES)
def test_a_collector_that_is_gone_names_the_command(page: str, answering: Answering) -> None:
    answering(Gone())
    at = opened(page)
    assert at.code[0].value == "heddle collect"


@pytest.mark.parametrize("page", PAGES)
def test_a_selection_that_matches_nothing_can_be_cleared(page: str, answering: Answering) -> None:
    answering(Story(("verl", "heddle"), trajectories=2))
    at = opened(page, rollout="rollout-99")
    assert "rollout\\-99" in said(at)
    at.button(key="empty_clear").click().run()
    assert at.get("plotly_chart")


@pytest.mark.parametrize("page", PAGES)
def test_a_collector_that_goes_away_leaves_the_page_and_a_banner(
    page: str, answering: Answering
) -> None:
    answering(Story(("verl", "heddle"), trajectories=4))
    at = opened(page)
    answering(Gone())
    at.run()
    assert not at.exception
    assert at.get("plotly_chart")
    assert "out of date" in at.warning[0].value


def test_a_dead_collector_shows_within_five_seconds_by_arithmetic() -> None:
    assert cards.PULSE_S + client.HEALTH_S + client.ALIVE_S <= 5.0


def test_numbers_on_the_first_screen_equal_the_accounts(answering: Answering) -> None:
    story = Story(("verl", "heddle"), trajectories=24)
    answering(story)
    at = opened("overview", rollout="rollout-2")
    parts = story.query("partition", rollout="rollout-2")
    busy = parts.filter(parts["state"].str.starts_with("busy"))["gpu_ns"].sum()
    share = 100 * int(busy) / int(parts["gpu_ns"].sum())
    shown = {metric.label: metric.value for metric in at.metric}
    assert shown["Busy"] == f"{share:.1f} %"
    assert shown["Live / done"] == "0 / 24"


def test_the_last_to_finish_is_named_first(answering: Answering) -> None:
    story = Story(("verl",), trajectories=40)
    answering(story)
    at = opened("overview")
    last = story.query("trajectories").sort("end_ns")["trajectory_id"][-1]
    assert at.dataframe[0].value["trajectory_id"][0] == last
    assert last.replace("-", "\\-") in said(at)


def test_running_trajectories_are_shown_as_running(answering: Answering) -> None:
    story = Story(("verl",), trajectories=24, running=True)
    answering(story)
    at = opened("overview")
    assert "still running" in said(at)
    running = story.query("trajectories").filter(story.query("trajectories")["end_ns"].is_null())
    at = opened("trajectory", trajectory=running["trajectory_id"][0])
    assert "still running" in said(at)


def test_the_trajectory_of_the_address_is_the_one_shown(answering: Answering) -> None:
    answering(Story(("verl",), trajectories=12))
    at = opened("trajectory", run=RUN, trajectory="rollout-1-g00-s3")
    assert at.selectbox(key="choose_trajectory").value == "rollout-1-g00-s3"


def test_a_choice_is_written_to_the_address(answering: Answering) -> None:
    answering(Story(("verl", "heddle"), trajectories=4))
    at = opened("overview")
    at.selectbox(key="choose_rollout").select("rollout-1").run()
    assert at.query_params["rollout"] == "rollout-1"


def test_times_are_in_utc_until_another_zone_is_chosen_and_the_address_keeps_it(
    answering: Answering,
) -> None:
    answering(Story(("verl",), trajectories=4))
    at = opened("overview")
    assert " UTC" in said(at)
    assert " JST" not in said(at)
    at.selectbox(key="choose_tz").select("Asia/Tokyo").run()
    assert " JST" in said(at)
    assert at.query_params["tz"] == "Asia/Tokyo"


@pytest.mark.parametrize("page", PAGES)
def test_hostile_names_reach_markdown_only_escaped(page: str, answering: Answering) -> None:
    story = Story(("verl",), trajectories=3)
    for table in ("trajectories", "steps", "tool_calls", "moves", "spans"):
        for row in story.rows[table]:
            row.update(trajectory_id=HOSTILE, group_id=HOSTILE, tool_name=HOSTILE)
    answering(story)
    at = opened(page)
    for block in [*at.markdown, *at.caption]:
        assert "**bold**" not in block.value
        assert "](javascript" not in block.value
        assert ":red[" not in block.value


def test_the_difference_lists_what_changed_most_first() -> None:
    found = compare.difference(
        {"queued": 3_000_000_000, "busy_decode": 5_000_000_000},
        {"queued": 9_000_000_000, "tail_bubble": 1_000_000_000},
    )
    assert found.rows() == [
        ("queued", 3.0, 9.0, -6.0),
        ("decode", 5.0, 0.0, 5.0),
        ("tail bubble", 0.0, 1.0, -1.0),
    ]


def test_comparing_one_rollout_says_it_is_alone(answering: Answering) -> None:
    answering(Story(("verl",), trajectories=3))
    assert "one rollout" in said(opened("compare"))
