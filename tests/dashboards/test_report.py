"""A trajectory's report: integers kept, text never markup, nothing fetched."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import polars as pl
import pytest
from browser.fake_rollouts import HOSTILE, RUN, Story

from heddle.dashboards.reports.trajectory import NoSuchTrajectory, trajectory_report


@pytest.fixture(scope="module")
def story() -> Story:
    return Story(("heddle",), trajectories=16, hostile=True)


def _longest(story: Story) -> str:
    return story.query("trajectories").sort("steps")["trajectory_id"][-1]


class Tags(HTMLParser):
    """Every tag and attribute name the page really has."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_json_keeps_nanoseconds_as_integers(story: Story) -> None:
    name = _longest(story)
    body = json.loads(trajectory_report(story, RUN, name).to_json())
    steps = story.query("steps", trajectory=name)
    assert [row["start_ns"] for row in body["steps"]] == steps.sort("start_ns")[
        "start_ns"
    ].to_list()
    assert all(isinstance(ns, int) for ns in body["parts_ns"].values())


def test_parts_sum_to_the_whole_of_every_trajectory(story: Story) -> None:
    for row in story.query("trajectories").iter_rows(named=True):
        report = trajectory_report(story, RUN, row["trajectory_id"])
        assert sum(report.parts_ns.values()) == round(row["duration_s"] * 1e9)


def test_what_no_step_told_is_not_told_as_zero() -> None:
    story = Story(("verl",), trajectories=1)
    name = _longest(story)
    asked = ("output_tokens", "cached_tokens", "looked_up_tokens", "retractions", "held_s")
    for row in story.rows["trajectories"]:
        row.update(dict.fromkeys(asked))
    report = trajectory_report(story, RUN, name)
    assert report.cached_share is None
    page = report.to_html()
    for said in ("Output tokens", "Prompt cached", "Retractions"):
        assert f"<dt>{said}</dt><dd>–</dd>" in page
    summary = json.loads(report.to_json())["summary"]
    assert {name: summary[name] for name in asked} == dict.fromkeys(asked)


@pytest.mark.parametrize(
    "text", [HOSTILE, "</script><script>alert(1)</script>", '"><svg onload=x>']
)
def test_hostile_text_is_text_in_the_page(text: str) -> None:
    story = Story(("heddle",), trajectories=4)
    for row in story.rows["steps"]:
        row["because"], row["worker_id"] = text, text
    for row in story.rows["trajectories"]:
        row["group_id"] = text
    html = trajectory_report(story, RUN, _longest(story)).to_html()
    parsed = Tags()
    parsed.feed(html)
    assert not parsed.tags & {"script", "img", "a", "iframe", "link"}
    assert not [name for name in parsed.attributes if name.startswith("on")]


def test_the_page_asks_the_network_for_nothing(story: Story) -> None:
    html = trajectory_report(Story(("verl",), trajectories=4), RUN, "rollout-1-g00-s0").to_html()
    assert not re.findall(r"(?:https?:)?//|url\(|@import|src=|href=", html)


def test_paper_is_white_whatever_the_screen() -> None:
    html = trajectory_report(Story(("verl",), trajectories=1), RUN, "rollout-1-g00-s0").to_html()
    dark = re.findall(r"@media ([^{]*prefers-color-scheme[^{]*)", html)
    assert len(dark) == 2
    assert set(dark) == {"screen and (prefers-color-scheme:dark)"}


def test_paper_has_margins_of_its_own_and_no_heading_is_left_at_a_pages_end() -> None:
    html = trajectory_report(Story(("verl",), trajectories=1), RUN, "rollout-1-g00-s0").to_html()
    assert "@page{margin:14mm}" in html
    assert "details::details-content{content-visibility:visible" in html, "folded rows print too"
    paper = html.split("@media print", 1)[1]
    assert "h1,h2,summary{break-after:avoid}" in paper
    assert "thead{display:table-header-group}" in paper


def test_an_unknown_trajectory_is_a_sentence(story: Story) -> None:
    with pytest.raises(NoSuchTrajectory, match="has no trajectory 'nobody'"):
        trajectory_report(story, RUN, "nobody")


def test_a_bare_trajectory_still_has_a_report() -> None:
    story = Story(("verl",), trajectories=1)
    keep = {"run_id", "rollout_id", "trajectory_id", "state", "start_ns"}
    for table in ("trajectories", "steps", "tool_calls", "moves"):
        story.rows[table] = [
            {name: value for name, value in row.items() if name in keep}
            for row in story.rows[table]
        ]
    report = trajectory_report(story, RUN, "rollout-1-g00-s0")
    assert "<table>" in report.to_html()
    assert json.loads(report.to_json())["summary"]["end_ns"] is None


def test_a_trajectory_that_names_no_rollout_has_a_report_without_a_warning(story: Story) -> None:
    class Unnamed:
        url = "nowhere"

        def query(self, name: str, **asked: Any) -> Any:
            found = story.query(name, **asked)
            if name == "trajectories":
                found = found.with_columns(pl.lit(None, pl.String).alias("rollout_id"))
            return found

    assert trajectory_report(Unnamed(), RUN, _longest(story)).to_json()


def test_file_names_cannot_leave_their_folder(story: Story) -> None:
    report = trajectory_report(story, RUN, _longest(story))
    hostile = type(report)("../..", "/etc/x y", *list(_rest(report)))
    assert re.fullmatch(r"[A-Za-z0-9._-]+", hostile.file_stem)
    assert "/" not in hostile.file_stem


def _rest(report: Any) -> list[Any]:
    names = ("summary", "steps", "tools", "moves", "pieces", "decisions")
    return [getattr(report, name) for name in names]


@pytest.mark.parametrize("speed", [20.0, 1.0, None])
def test_the_report_of_an_emulated_fleet_says_that_its_times_are_fleet_time(
    speed: float | None,
) -> None:
    story = Story(("heddle",), trajectories=2)
    for row in story.rows["rollouts"]:
        row["clock_speed"] = speed
    report = trajectory_report(story, RUN, _longest(story))
    assert json.loads(report.to_json())["clock_speed"] == speed
    shown = "emulated fleet, x20: times are fleet time" in report.to_html()
    assert shown == (speed == 20.0)
