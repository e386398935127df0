"""Pages that show what the controller says, beside any store: empty, one, bare, 1,500."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from browser.apptest import opened
from browser.fake_rollouts import Story
from browser.fake_services import Switchboard

from heddle.dashboards import control, engines

Answering = Callable[[Any], None]
PAGES = ("policies", "predictor", "fleet", "ask")
KEPT = {"run_id", "rollout_id", "trajectory_id", "state", "start_ns"}


@functools.cache
def _story(kind: str) -> Story:
    if kind == "empty":
        story = Story(())
        story.rows["runs"] = []
        return story
    story = Story(("verl", "heddle"), trajectories={"one": 1, "bare": 3, "many": 1_500}[kind])
    if kind == "bare":
        for table in ("trajectories", "steps", "tool_calls", "rollouts", "plans"):
            story.rows[table] = [
                {k: row[k] for k in KEPT & row.keys()} for row in story.rows[table]
            ]
    return story


@pytest.fixture
def bare_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has seen nothing yet."""
    fleet: dict[str, Any] = {"launcher": "static", "gpus": 0, "layout": [], "serving_gpus": 0}
    lists = ("nodes", "workers", "asleep", "reallocations", "costs", "levers")
    fleet |= {name: list[Any]() for name in lists}
    fleet |= {"unavailable": "no worker has joined", "weights": {}}
    none = {"version": "group-history", "known": [], "refused": [], "versions": []}
    monkeypatch.setattr(control, "clock_speed", lambda: None)
    monkeypatch.setattr(control, "switches", lambda run: Switchboard().read())
    monkeypatch.setattr(control, "audit", lambda run: [])
    monkeypatch.setattr(control, "predictor", lambda: none)
    monkeypatch.setattr(control, "predictor_audit", list)
    monkeypatch.setattr(control, "jobs", list)
    monkeypatch.setattr(engines, "fleet", lambda: fleet)


@pytest.mark.usefixtures("bare_controller")
@pytest.mark.parametrize("kind", ["empty", "one", "bare", "many"])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_stands_whatever_the_store_holds(page: str, kind: str, answering: Answering) -> None:
    answering(_story(kind))
    at = opened(page)
    assert at.title[0].value
    assert not at.error
