"""Two rollouts, or two policies replayed: groups are matched, choices are taken back one by one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from browser.apptest import opened, said
from browser.fake_rollouts import RUN, Story
from browser.fake_services import FCFS, HEDDLE, Switchboard

from heddle.dashboards import control, facts
from heddle.dashboards import jobs as running
from heddle.dashboards.figures import base, paired
from heddle.dashboards.views import ablation, replayed

Answering = Callable[[Any], None]


class Done:
    """Jobs whose every command has ended already with what `answer` gives."""

    def running(self, command: str) -> None:
        """None is."""

    def __init__(self, answer: Callable[[list[str]], Any]) -> None:
        self.asked: list[list[str]] = []
        self._answer = answer

    def find(self, words: list[str]) -> Any:
        self.asked.append(words)
        ended = {"is_running": False, "failed": "", "took_s": 1.0}
        return SimpleNamespace(**ended, result=self._answer(words))


def replay(words: list[str]) -> dict[str, Any]:
    """What `heddle replay --json` prints: the policies one second apart."""
    policies = words[words.index("--policies") + 1].split(",")
    rows = [
        {
            "policy": policy,
            "makespan_s": 10.0 + place,
            "decode_gpu_s": 40.0,
            "prefill_gpu_s": 4.0,
            "idle_gpu_s": 36.0 + 8 * place,
            "lengths_s": [9.0 + place, 3.0, 1.0],
            "group_s": {"g0": 9.0 + place, "g1": 5.0},
            "layout": "1+1",
        }
        for place, policy in enumerate(policies)
    ]
    kept = ("policy", "makespan_s", "idle_gpu_s")
    return {"rows": rows, "summary": [{k: row[k] for k in kept} for row in rows]}


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [((100.0, 100.2), "as fast as"), ((100.0, 150.0), "1.50x"), ((150.0, 100.0), "1.50x")],
)
def test_equal_makespans_are_as_fast_as_each_other(
    answering: Answering, seconds: tuple[float, float], verdict: str
) -> None:
    story = Story(("verl", "heddle"), trajectories=4)
    for row, makespan_s in zip(story.rows["rollouts"], seconds, strict=True):
        row["makespan_s"] = makespan_s
    answering(story)
    words = said(opened("compare"))
    assert f"**{verdict}" in words
    assert "1.00x faster" not in words


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Done:
    jobs = Done(replay)
    monkeypatch.setattr(replayed, "jobs", lambda: jobs)
    monkeypatch.setattr(control, "switches", lambda run: Switchboard().read())
    return jobs


def test_groups_are_paired_by_name_and_the_shorter_is_counted() -> None:
    this, other = {"a": 1.0, "b": 5.0, "c": 2.0}, {"a": 2.0, "b": 4.0, "d": 9.0}
    assert paired.won(this, other) == (1, 2)
    figure = paired.scatter(this, other, "light", names=("x", "y"), unit="s")
    assert list(zip(figure.data[1].x, figure.data[1].y, strict=True)) == [(2.0, 1.0), (4.0, 5.0)]


def test_many_groups_are_thinned_and_the_longest_stays() -> None:
    many = {f"g{i}": float(i) for i in range(5_000)}
    figure = paired.scatter(many, many, "dark", names=("x", "y"), unit="s")
    assert len(figure.data[1].x) <= base.MARKS
    assert max(figure.data[1].y) == 4_999.0


def test_a_group_is_as_long_as_its_longest_sample() -> None:
    rows = [("g", "t0", 1.0), ("g", "t1", 3.0), (None, "t2", 2.0), ("h", "t3", None)]
    frame = pl.DataFrame(rows, ["group_id", "trajectory_id", "duration_s"], orient="row")
    assert facts.longest_by_group(frame, "duration_s") == {"g": 3.0, "t2": 2.0}


def test_the_ablation_takes_back_one_choice_at_a_time() -> None:
    policies = replayed.ablation({"heddle": HEDDLE, "verl": FCFS}, "heddle", "verl")
    assert (policies[0], policies[-1]) == ("heddle", "verl")
    assert policies[1:-1] == [f"heddle/{choice}={FCFS[choice]}" for choice in FCFS]


def test_what_changed_is_said_by_choice() -> None:
    assert (
        facts.changed("order=fcfs,placement=mix", "order=fcfs,placement=sticky") == "placement=mix"
    )
    assert facts.changed(None, "order=fcfs") == facts.changed("order=fcfs", "order=fcfs")


def test_two_rollouts_share_a_scatter_and_the_run_is_an_ablation(answering: Answering) -> None:
    story = Story(("verl", "heddle"), trajectories=24)
    for table in ("trajectories",):
        for row in story.rows[table]:
            row["group_id"] = row["group_id"] or "g"
    answering(story)
    at = opened("compare", rollout="rollout-2")
    assert "Group by group" in [one.value for one in at.subheader]
    every = at.dataframe[1].value
    assert every["rollout"].tolist() == ["rollout-2 · heddle", "rollout-1 · verl"]


def test_policies_are_replayed_on_the_chosen_rollout(answering: Answering, done: Done) -> None:
    answering(Story(("verl", "heddle"), trajectories=4))
    at = opened("compare", what="policies", run=RUN, rollout="rollout-1")
    words = done.asked[-1]
    assert words[words.index("--rollout") + 1] == f"{RUN}/rollout-1"
    assert words[words.index("--policies") + 1].startswith("heddle,heddle/order=fcfs,")
    shown = at.dataframe[0].value
    assert shown["policy"].tolist()[0] == "heddle"
    assert shown["policy"].tolist()[-1] == "verl"
    assert "not a measurement of GPUs" in said(at)
    assert "1 of 2 sooner under heddle" in said(at)


def test_the_difference_of_two_policies_is_what_gpus_did() -> None:
    mine, theirs = replay(["--policies", "a,b"])["rows"]
    assert ablation.spent(mine, theirs).rows()[0] == ("idle", 36.0, 44.0, -8.0)


def test_the_policies_page_previews_the_plan_and_replays_the_last_rollout(
    answering: Answering, done: Done, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(Story(("verl", "heddle"), trajectories=4))
    monkeypatch.setattr(control, "audit", lambda run: [])
    plan = [
        {"allocation": "exact", "layout": "4+4", "predicted_makespan_s": 9.0, "because": "least"},
        {"allocation": "fixed-1", "layout": "1+1", "predicted_makespan_s": 12.0, "because": "-"},
    ]
    done._answer = lambda words: plan if words[0] == "plan" else replay(words)
    at = opened("policies", whatif="verl")
    replays = [words for words in done.asked if words[0] == "replay"]
    assert replays[-1][replays[-1].index("--policies") + 1] == "verl"
    assert replays[-1][replays[-1].index("--rollout") + 1] == f"{RUN}/rollout-2"
    assert {"2 x TP4"} <= {metric.value for metric in at.metric}
    tables = [list(frame.value.columns) for frame in at.dataframe]
    assert any("allocation" in columns for columns in tables)


def test_a_failed_command_is_said_and_can_be_started_again(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(Story(("verl",), trajectories=2))
    failed = SimpleNamespace(
        is_running=False, failed="no <b>rollout</b>", took_s=1.0, result=None, words=()
    )
    jobs = SimpleNamespace(running=lambda _: None, find=lambda words: failed)
    monkeypatch.setattr(replayed, "jobs", lambda: jobs)
    monkeypatch.setattr(control, "switches", lambda run: Switchboard().read())
    at = opened("compare", what="policies")
    assert "no \\<b\\>rollout" in at.error[0].value
    assert at.button(key="compare_replay_start").label.startswith("Replay")
    assert running.KEPT > 0
