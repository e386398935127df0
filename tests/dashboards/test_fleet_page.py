"""The fleet's page: who serves, what is missing, which lever works, and a layout planned first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from browser.apptest import opened, said
from browser.fake_rollouts import HOSTILE, START_NS, Story

from heddle.controller.client import ControllerRefused, ControllerUnreachable
from heddle.controller.wire_fleet import FleetPlanState, FleetState
from heddle.dashboards import control, engines

Answering = Callable[[Any], None]


def worker(name: str, **told: Any) -> dict[str, Any]:
    kept: dict[str, Any] = {"worker_id": name, "url": f"http://{name}", "degree": 1, "alive": True}
    kept |= {"running": 2, "trajectories": 3, "kv_tokens": 9_000, "launched": True, "takes": True}
    kept |= {"state": "serving", "queued": 1, "engine_running": 2, "kv_used_tokens": 4_500}
    kept |= {"place": {"node": 0, "first": int(name[1:]), "degree": 1}, "kv_usage": 0.5}
    kept |= {"context_tokens": 4_000, "restarts": 0, "said": "", "node": "a", "can": {}}
    return {**kept, "sleep": "", "missing": ["no metrics: counters stay empty"], **told}


def change() -> dict[str, Any]:
    kept: dict[str, Any] = {"id": "1", "state": "done", "error": "", "before": [1, 1], "after": [2]}
    kept |= {"wanted": [2], "because": "longer lengths", "who": "ada", "waves": 1}
    kept |= {"start_ns": START_NS, "end_ns": START_NS + 12_000_000_000, "expected_s": 10.0}
    kept |= {"gain_s": 30.0, "floor_gpus": 1, "lowest_gpus": 1, "moved": 4, "phases": []}
    return {**kept, "longest_s": {"drain": 3.0, "launch": 9.0}}


def state(*workers: dict[str, Any], **told: Any) -> dict[str, Any]:
    kept: dict[str, Any] = {"launcher": "local", "nodes": [2], "gpus": 2, "layout": [1, 1]}
    kept |= {"serving_gpus": 2, "unavailable": "", "asleep": [], "reallocations": [change()]}
    kept |= {"weights": {"owner": "engine", "path": "", "version": "", "unavailable": ""}}
    kept |= {"costs": [{"degree": 2, "method": "launch", "seconds": 9.0, "measured": 3}]}
    levers = [
        {"trainer": t, "lever": lever, "works": works, "because": f"{t} may"}
        for t in ("verl", "slime")
        for lever, works in (("order", "yes"), ("reallocation", "with consent"))
    ]
    return FleetState.model_validate(
        {**kept, "levers": levers, "workers": list(workers), **told}
    ).model_dump()


def plan(**told: Any) -> dict[str, Any]:
    kept: dict[str, Any] = {"before": [1, 1], "layout": [2], "available": True, "unavailable": ""}
    kept |= {"change": True, "because": "TP2 is quicker", "stays": [], "floor_gpus": 1}
    start = {"node": 0, "first": 0, "degree": 2, "method": "launch"}
    kept |= {"waves": [[{"drains": ["w0", "w1"], "starts": [start]}]], "lowest_gpus": 1}
    kept |= {"cost_s": 12.0, "gain_s": 30.0, "makespan_s": 100.0}
    return FleetPlanState.model_validate({**kept, **told}).model_dump()


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch, answering: Answering) -> dict[str, Any]:
    """What the controller says; tests change it in place."""
    answering(Story(("verl",), trajectories=2))
    told = {"fleet": state(worker("w0"), worker("w1", state="draining", takes=False))}
    monkeypatch.setenv("HEDDLE_TOKEN", "secret")
    monkeypatch.setattr(control, "clock_speed", lambda: 20.0)
    monkeypatch.setattr(engines, "fleet", lambda: told["fleet"])
    return told


def test_workers_that_do_not_serve_come_first(fleet: dict[str, Any]) -> None:
    at = opened("fleet")
    workers = at.dataframe[0].value
    assert workers["worker_id"].tolist() == ["w1", "w0"]
    assert workers["kv"].tolist() == [50.0, 50.0]
    shown = {metric.label: metric.value for metric in at.metric}
    assert (shown["Layout"], shown["Live"], shown["Queued"]) == ("2 x TP1", "6", "2")


def test_what_is_missing_is_said_once_with_its_workers(fleet: dict[str, Any]) -> None:
    at = opened("fleet")
    assert at.dataframe[1].value.values.tolist() == [["no metrics: counters stay empty", "all"]]


def test_levers_are_a_table_by_trainer_and_changes_tell_their_phases(fleet: dict[str, Any]) -> None:
    at = opened("fleet")
    levers, changes = at.dataframe[2].value, at.dataframe[3].value
    assert levers["slime"].tolist() == ["yes", "with consent"]
    assert changes["longest"].tolist() == ["drain 3.0 s, launch 9.0 s"]
    assert (changes["before"][0], changes["after"][0]) == ("2 x TP1", "1 x TP2")


def test_a_worker_is_drained_with_a_reason(
    fleet: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    monkeypatch.setattr(engines, "drain", lambda *a, **k: done.append(("drain", *a, k["token"])))
    monkeypatch.setattr(engines, "resume", lambda *a, **k: done.append(("resume", *a)))
    at = opened("fleet", worker="w0")
    assert at.button(key="fleet_drain").disabled
    at.text_input(key="drain_who").input("ada")
    at.text_input(key="drain_why").input("new driver").run()
    at.button(key="fleet_drain").click().run()
    at = opened("fleet", worker="w1")
    assert at.button(key="fleet_drain").label == "Resume"
    assert done == [("drain", "w0", "ada", "new driver", "secret")]


def test_a_layout_is_planned_and_then_applied(
    fleet: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(engines, "plan_fleet", lambda one: asked.append(one) or plan())
    monkeypatch.setattr(engines, "apply_fleet", lambda one, *a, **_: asked.append((one, *a)))
    at = opened("fleet", run="qwen3-14b-coder", rollout="rollout-1")
    at.text_input(key="relayout_layout").input("2")
    at.button(key="FormSubmitter:relayout-Plan").click().run()
    assert at.query_params["layout"] == "2"
    assert "wave 1: w0, w1 drain; starts TP2 (launch)" in said(at)
    at.text_input(key="relayout_who").input("ada")
    at.text_input(key="relayout_why").input("long tail").run()
    at.button(key="relayout_apply").click().run()
    wanted = {"run": "qwen3-14b-coder", "layout": [2]}
    assert asked == [wanted, (wanted, "ada", "long tail")]


def test_a_layout_that_is_none_is_refused_here(fleet: dict[str, Any]) -> None:
    at = opened("fleet")
    at.text_input(key="relayout_layout").input("1,x")
    at.button(key="FormSubmitter:relayout-Plan").click().run()
    assert "whole numbers" in at.error[0].value


def test_a_plan_that_cannot_be_applied_says_why(
    fleet: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = plan(available=False, unavailable=f"weights: {HOSTILE}")
    monkeypatch.setattr(engines, "plan_fleet", lambda _: refused)
    at = opened("fleet")
    at.button(key="FormSubmitter:relayout-Plan").click().run()
    assert "**bold**" not in at.warning[0].value
    with pytest.raises(KeyError):
        at.button(key="relayout_apply")


def test_a_refusal_is_the_controllers_own_sentence(
    fleet: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Any) -> Any:
        raise ControllerRefused(409, "a change is under way")

    monkeypatch.setattr(engines, "plan_fleet", refuse)
    at = opened("fleet")
    at.button(key="FormSubmitter:relayout-Plan").click().run()
    assert "under way" in at.error[0].value


def test_many_workers_and_none_are_pages(fleet: dict[str, Any]) -> None:
    fleet["fleet"] = state(*(worker(f"w{i}") for i in range(1_500)))
    assert len(opened("fleet").dataframe[0].value) == 1_500
    fleet["fleet"] = state(reallocations=[], costs=[], levers=[])
    assert "No worker has joined" in said(opened("fleet"))


def test_missing_answers_of_an_engine_leave_dashes(fleet: dict[str, Any]) -> None:
    silent = {"queued": None, "engine_running": None, "kv_usage": None, "place": None}
    fleet["fleet"] = state(worker("w0", alive=False, state="down", **silent))
    shown = {metric.label: metric.value for metric in opened("fleet").metric}
    assert (shown["Queued"], shown["Fullest KV"]) == ("–", "–")


def test_a_controller_that_is_gone_names_its_command(
    fleet: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> Any:
        message = "no controller answers"
        raise ControllerUnreachable(message)

    monkeypatch.setattr(engines, "fleet", gone)
    assert opened("fleet").code[0].value == "heddle control"
