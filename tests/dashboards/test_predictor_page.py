"""The predictor's page: what serves, how versions did, retraining and what the gate says of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from browser.apptest import opened, said
from browser.fake_rollouts import RUN, START_NS, Story

from heddle.controller.client import ControllerRefused, ControllerUnreachable
from heddle.dashboards import control
from heddle.dashboards.figures import predictor as drawn

Answering = Callable[[Any], None]


def gate_rows() -> list[dict[str, Any]]:
    """A candidate that is a little better at every step."""
    return [
        {
            "against": against,
            "k": k,
            "n": 120 - k,
            "metric": metric,
            "baseline": 0.5,
            "candidate": 0.6,
            "difference": 0.1,
            "low": 0.05,
            "high": 0.15,
        }
        for against in ("group history", "constant")
        for metric in ("spearman", "coverage")
        for k in (-1, 0, 1, 4)
    ]


class Registry:
    """What the controller would answer; deeds change it."""

    def __init__(self) -> None:
        self.serving = "good"
        self.accepted = {"good": True, "bad": False}
        self.jobs: list[dict[str, Any]] = []
        self.deeds: list[tuple[Any, ...]] = []

    def version(self, name: str) -> dict[str, Any]:
        ok = self.accepted[name]
        why = "accepted: better at k=4" if ok else "refused: not better than group history"
        kept = {"version": name, "accepted": ok, "because": why, "fingerprint": "f"}
        return {**kept, "created_ns": START_NS, "metrics": {"spearman": 0.61}}

    def state(self) -> dict[str, Any]:
        versions = [self.version(name) for name in self.accepted]
        return {"version": self.serving, "known": [], "refused": [], "versions": versions}

    def card(self, name: str) -> dict[str, Any]:
        more = {"card": "# made <b>here</b>", "table": gate_rows(), "trained": {}}
        return {**self.version(name), "serving": name == self.serving, **more}

    def job(self, **told: Any) -> dict[str, Any]:
        kept: dict[str, Any] = {"id": "1", "kind": "train", "state": "done", "progress": 1.0}
        kept |= {"sentence": "scored", "version": "bad", "accepted": None, "promoted": False}
        kept |= {"table": [], "started_ns": START_NS, "ended_ns": START_NS + 9_000_000_000}
        self.jobs.insert(0, kept | told)
        return self.jobs[0]

    def promote(self, version: str, *_: Any, **how: Any) -> dict[str, Any]:
        if not (self.accepted[version] or how["force"]):
            raise ControllerRefused(409, f"{version} may not serve")
        self.serving = version
        self.deeds.append(("promote", version, how["force"]))
        return self.state()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, answering: Answering) -> Registry:
    answering(Story(("verl",), trajectories=2))
    registry = Registry()
    monkeypatch.setenv("HEDDLE_TOKEN", "secret")
    monkeypatch.setattr(control, "predictor", registry.state)
    monkeypatch.setattr(control, "predictor_card", registry.card)
    monkeypatch.setattr(control, "predictor_audit", list)
    monkeypatch.setattr(control, "jobs", lambda: registry.jobs)
    monkeypatch.setattr(control, "job", lambda _: registry.jobs[0])
    monkeypatch.setattr(control, "promote", registry.promote)
    return registry


def test_what_serves_is_said_and_its_quality_drawn(registry: Registry) -> None:
    at = opened("predictor")
    assert "**good** serves" in said(at)
    assert "The gate accepted it: better at k=4" in said(at)
    assert len(at.get("plotly_chart")) == 1
    assert at.dataframe[0].value["says"].tolist() == ["serves", "refused"]


@pytest.mark.parametrize(("covered", "calm"), [(0.8503, True), (0.7496, True), (0.853, False)])
def test_the_verdict_on_coverage_is_of_the_share_as_it_is_read(
    registry: Registry, answering: Answering, covered: float, calm: bool
) -> None:
    story = Story(("verl",), trajectories=2)
    row = {"run_id": RUN, "rollout_id": "rollout-1", "steps": 9, "covered": covered}
    story.rows["calibration"] = [row]
    answering(story)
    at = opened("predictor")
    assert ("As it should be" in said(at)) == calm
    shown = next(t.value for t in at.dataframe if "covered" in t.value)
    assert shown["covered"].tolist() == [pytest.approx(100 * covered)]


def test_the_version_of_the_address_is_shown_with_its_refusal(registry: Registry) -> None:
    at = opened("predictor", version="bad")
    assert "The gate refused it: not better than group history" in said(at)
    assert at.button(key="promote_go").disabled


def test_a_version_that_is_not_there_can_be_cleared(registry: Registry) -> None:
    at = opened("predictor", version="gone")
    assert "There is no version gone" in said(at)
    at.button(key="empty_clear").click().run()
    assert at.get("plotly_chart")


def test_a_refused_version_is_promoted_only_by_force(registry: Registry) -> None:
    at = opened("predictor", version="bad")
    at.text_input(key="promote_who").input("ada")
    at.text_input(key="promote_why").input("to compare").run()
    at.button(key="promote_go").click().run()
    assert registry.deeds == [("promote", "bad", True)]
    assert "**bad** serves" in said(at)


def test_a_training_starts_with_its_reason_and_shows_progress(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def begin(job: dict[str, Any], who: str, why: str, *, token: str) -> dict[str, Any]:
        asked.append((job, who, why, token))
        return registry.job(state="running", progress=0.4, sentence="epoch 4 of 10")

    monkeypatch.setattr(control, "begin_job", begin)
    at = opened("predictor")
    at.button(key="FormSubmitter:retrain-Train").click().run()
    assert "name and a reason" in at.error[0].value
    at.text_input(key="retrain_who").input("ada")
    at.text_input(key="retrain_why").input("more data")
    at.button(key="FormSubmitter:retrain-Train").click().run()
    job, *rest = asked[0]
    assert job == {"kind": "train", "run": RUN, "split": "group", "promote": True}
    assert rest == ["ada", "more data", "secret"]
    assert at.button(key="retrain_cancel")


def test_a_refusal_shows_the_gates_table(registry: Registry) -> None:
    registry.job(accepted=False, table=gate_rows(), sentence="not better at k=0")
    at = opened("predictor")
    assert "was refused by the gate" in at.warning[0].value
    assert at.dataframe[0].value["difference"].tolist()[0] == pytest.approx(0.1)
    assert at.dataframe[0].value["k"].tolist()[0] == "all"


def test_a_promotion_and_a_failure_are_told_apart(registry: Registry) -> None:
    registry.job(accepted=True, promoted=True)
    assert "serves now" in opened("predictor").success[0].value
    registry.job(state="failed", sentence="no <b>rows</b>")
    assert "no \\<b\\>rows" in opened("predictor").error[0].value


def test_no_version_yet_says_what_would_train_one(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        control, "predictor", lambda: {"version": "history", "refused": [], "versions": []}
    )
    assert "heddle train" in said(opened("predictor"))


def test_a_controller_that_is_gone_names_its_command(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> Any:
        message = "no controller answers at http://127.0.0.1:8600"
        raise ControllerUnreachable(message)

    monkeypatch.setattr(control, "predictor", gone)
    assert opened("predictor").code[0].value == "heddle control"


def test_the_figure_has_a_line_for_the_candidate_and_for_each_baseline() -> None:
    figure = drawn.quality(gate_rows(), "coverage", "dark", target=0.8)
    assert [trace.name for trace in figure.data] == ["candidate", "group history", "constant"]
    assert [list(trace.x) for trace in figure.data] == [["0", "1", "4"]] * 3
    assert drawn.metrics(gate_rows()) == ["spearman", "coverage"]
