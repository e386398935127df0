"""Switching from the page: what is sent, what is refused, what the trail shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from browser.apptest import opened, said
from browser.fake_rollouts import HOSTILE, Story
from browser.fake_services import HEDDLE, Switchboard

from heddle.controller.errors import ControllerError
from heddle.dashboards import control


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch, answering: Callable[[Any], None]) -> Switchboard:
    answering(Story(("verl",), trajectories=2))
    board = Switchboard()

    def switch(
        run: str | None, asked: dict[str, str], *, who: str, why: str, token: str | None
    ) -> dict[str, Any]:
        if why == "refuse":
            message = f"no order policy called {HOSTILE}"
            raise ControllerError(message)
        return board.change({**asked, "who": who, "why": why})

    monkeypatch.setenv("HEDDLE_TOKEN", "secret")
    monkeypatch.setattr(control, "clock_speed", lambda: 20.0)
    monkeypatch.setattr(control, "switches", lambda run: board.read())
    monkeypatch.setattr(control, "audit", lambda run: board.audit)
    monkeypatch.setattr(control, "switch", switch)
    return board


def _give(at: Any, why: str) -> Any:
    at.text_input(key="policies_who").input("ada")
    at.text_input(key="policies_why").input(why)
    at.run()
    return at.button(key="policies_apply").click().run()


def test_a_preset_fills_the_choices_and_changes_nothing_yet(board: Switchboard) -> None:
    at = opened("policies")
    at.button(key="policies_preset_heddle").click().run()
    assert at.selectbox(key="policies_order").value == "longest-first"
    assert board.switches["order"] == "fcfs"
    assert "order: fcfs → longest-first" in said(at)


def test_applying_sends_who_and_why_and_the_trail_shows_them(board: Switchboard) -> None:
    at = opened("policies")
    at.button(key="policies_preset_heddle").click().run()
    at = _give(at, "the tail is long")
    assert board.switches == HEDDLE
    assert not at.exception
    trail = at.dataframe[0].value
    assert "ada" in trail["who"].tolist()
    assert "the tail is long" in trail["why"].tolist()


def test_one_choice_alone_can_change(board: Switchboard) -> None:
    at = opened("policies")
    at.selectbox(key="policies_migration").select("rebalance").run()
    _give(at, "moves pay")
    assert board.switches["migration"] == "rebalance"
    assert board.switches["order"] == "fcfs"


def test_a_change_without_a_reason_cannot_be_applied(board: Switchboard) -> None:
    at = opened("policies")
    at.selectbox(key="policies_order").select("longest-first").run()
    assert at.button(key="policies_apply").disabled


def test_a_refusal_is_shown_as_the_services_own_text(board: Switchboard) -> None:
    at = opened("policies")
    at.selectbox(key="policies_order").select("longest-first").run()
    at = _give(at, "refuse")
    assert "no order policy called" in at.error[0].value
    assert "**bold**" not in at.error[0].value
    assert board.switches["order"] == "fcfs"


def test_a_controller_that_is_gone_names_its_command(
    monkeypatch: pytest.MonkeyPatch, answering: Callable[[Any], None]
) -> None:
    answering(Story(("verl",), trajectories=2))

    def gone(*_: Any, **__: Any) -> Any:
        message = "no controller answers at http://127.0.0.1:8600"
        raise ControllerError(message)

    monkeypatch.setattr(control, "controller", gone)
    assert opened("policies").code[0].value == "heddle control"
