"""Whose clock the pages show, what they leave out of pickers and cells, and the findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from browser.apptest import opened, said
from browser.fake_explained import explain
from browser.fake_rollouts import HOSTILE, RUN, Story, frame

from heddle.controller.wire import Health
from heddle.dashboards import client, control, facts

Answering = Callable[[Any], None]
PAGES = ("overview", "tail", "trajectory", "compare", "idle")


@pytest.mark.parametrize("page", [*PAGES, "policies"])
@pytest.mark.parametrize("speed", [20.0, 1.0, None])
def test_an_emulated_fleets_times_are_called_fleet_time_on_every_page(
    page: str, speed: float | None, answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(("verl", "heddle"), trajectories=3)
    for row in story.rows["rollouts"]:
        row["clock_speed"] = speed
    answering(story)
    monkeypatch.setattr(control, "clock_speed", lambda: speed)
    shown = "emulated fleet, x20: times are fleet time" in said(opened(page)).replace("\\", "")
    assert shown == (speed == 20.0)


def test_several_speeds_are_all_named() -> None:
    assert facts.fleet_time([1.0, None, 20.0, 5.5, 20.0]) == (
        "emulated fleet, x5.5, x20: times are fleet time"
    )
    assert facts.fleet_time([]) is None


def test_a_run_without_rollouts_is_offered_only_where_there_is_no_other(
    answering: Answering,
) -> None:
    story = Story(("verl",), trajectories=3)
    inner = {"run_id": "heddle-controller", "rollouts": 0, "last_ns": 2**62}
    story.rows["runs"].append(inner)
    answering(story)
    assert opened("overview").selectbox(key="choose_run").options == ["qwen3-14b-coder"]
    assert facts.recorded_runs(frame("runs", [inner])) == ["heddle-controller"]


def test_findings_and_blame_stand_on_the_overview_and_on_their_own_page(
    answering: Answering,
) -> None:
    story = explain(Story(("verl",), trajectories=12))
    answering(story)
    for page in ("overview", "idle"):
        words = said(opened(page)).replace("\\", "")
        assert "after every other trajectory had ended" in words
        assert "Change: order=longest-first" in words
    at = opened("idle")
    longest = story.query("trajectories").sort("duration_s")["trajectory_id"][-1]
    blamed = at.dataframe[0].value
    assert (blamed["key"].tolist()[0], blamed["percent"].tolist()[0]) == (longest, 50.0)
    split = story.query("efficiency").row(0, named=True)
    shown = {metric.label: metric.value for metric in at.metric}
    assert shown["Busy"] == f"{100 * split['busy_gpu_ns'] / split['total_gpu_ns']:.1f} %"
    assert "decode 50 %" in said(at).replace("\\", "")


@pytest.mark.parametrize("page", ["overview", "idle"])
def test_hostile_findings_and_names_reach_markdown_only_escaped(
    page: str, answering: Answering
) -> None:
    story = explain(Story(("verl",), trajectories=3))
    for table in ("findings", "blame", "critical_path"):
        for row in story.rows[table]:
            row.update(title=HOSTILE, knob=HOSTILE, key=HOSTILE, trajectory_id=HOSTILE)
    answering(story)
    at = opened(page)
    for block in [*at.markdown, *at.caption]:
        assert "**bold**" not in block.value
        assert "](javascript" not in block.value


def test_a_collector_without_findings_leaves_the_overview(answering: Answering) -> None:
    story = Story(("verl",), trajectories=3)
    answering(story)
    assert "No rule found anything wrong" in said(opened("overview"))


def test_each_worker_is_a_bar_that_keeps_its_gpu_time_and_gpus_in_none_come_last() -> None:
    rows = [
        {"worker_id": None, "state": "unallocated", "gpu_ns": 5},
        {"worker_id": "w10", "degree": 1, "state": "queued", "gpu_ns": 7},
        {"worker_id": "w2", "degree": 4, "state": "queued", "gpu_ns": 3},
        {"worker_id": "w2", "degree": 4, "state": "tool_wait", "gpu_ns": 4},
    ]
    found = facts.lanes(frame("partition", rows), "worker")
    assert list(found) == ["w2 · TP4", "w10 · TP1", "no worker"]
    assert found["w2 · TP4"] == {"queued": 3, "tool_wait": 4}


def test_a_finished_rollout_is_asked_about_once_however_often_the_page_refreshes(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    story, asked = Story(("verl", "heddle"), trajectories=4, running=True), []
    answer = story.query

    def counted(name: str, **filters: Any) -> pl.DataFrame:
        asked.append((name, filters.get("rollout")))
        return answer(name, **filters)

    monkeypatch.setattr(story, "query", counted)
    answering(story)
    at = opened("overview")
    client._fresh.clear()
    at.run()
    assert asked.count(("partition", "rollout-1")) == 1
    assert asked.count(("partition", "rollout-2")) == 2


def test_the_headline_and_numbers_are_asked_before_anything_long(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    story, asked = Story(("verl", "heddle"), trajectories=4), []
    answer = story.query

    def noted(name: str, **filters: Any) -> pl.DataFrame:
        asked.append(name)
        return answer(name, **filters)

    monkeypatch.setattr(story, "query", noted)
    answering(story)
    opened("overview")
    assert asked[:4] == ["runs", "rollouts", "partition", "accounts"]
    assert asked.index("tail") < asked.index("trajectories") < asked.index("strips")
    assert asked[-2:] == ["findings", "blame"]


def test_a_controller_that_says_nothing_of_its_clock_leaves_the_page(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Old:
        def health(self) -> Any:
            return Health.model_validate({"ok": True})

    answering(Story(("verl",), trajectories=2))
    monkeypatch.setattr(control, "controller", Old)
    assert control.clock_speed() is None


def test_the_fullest_kv_of_an_engine_is_shown_of_a_hundred(answering: Answering) -> None:
    story = explain(Story(("verl",), trajectories=3))
    told = {
        "degree": 1,
        "samples": 4,
        "forward_ns": 10**9,
        "run_id": RUN,
        "rollout_id": "rollout-1",
    }
    story.rows["counters"] = [
        {"worker_id": "w0", "kv_usage": 0.8751, **told},
        {"worker_id": "w1", "kv_usage": None, **told},
    ]
    answering(story)
    polled = next(t.value for t in opened("idle").dataframe if "kv_usage" in t.value)
    assert polled["kv_usage"].fillna(-1).tolist() == [pytest.approx(87.51), -1]
