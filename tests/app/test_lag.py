"""Claims about host lag: where the machine could not keep up, nobody has won."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest

from heddle.app import lag
from heddle.app.commands import demo as command
from heddle.app.demo import winner
from heddle.app.driver import DriveResult


class Store:
    """Answers the one query with these nanoseconds."""

    def __init__(self, duration_ns, orchestrator_ns):
        row = {"duration_ns": duration_ns, "orchestrator_ns": orchestrator_ns}
        self._frame = pl.DataFrame([row] if duration_ns is not None else [], schema=list(row))

    def query(self, name, **filters):
        if name == "critical_path":
            pieces = [("decode", 0, 7), ("orchestrator", 7, 9), ("tool", 9, 12)]
            rows = [(doing, start * 10**9, end * 10**9) for doing, start, end in pieces]
            return pl.DataFrame(rows, schema=["doing", "start_ns", "end_ns"], orient="row")
        assert (name, filters["by"]) == ("decomposition", "rollout")
        return self._frame


@pytest.mark.parametrize(
    ("duration_ns", "orchestrator_ns", "late_s", "share", "trusted"),
    [
        (100_000_000_000, 4_000_000_000, 0.0, 0.04, True),
        (100_000_000_000, 4_000_000_000, 5.0, 0.09, True),
        (100_000_000_000, 10_000_000_000, 0.0, 0.1, True),
        (100_000_000_000, 4_000_000_000, 7.0, 0.11, False),
        (100_000_000_000, 68_000_000_000, 0.0, 0.68, False),
        (100_000_000_000, 90_000_000_000, 99.0, 1.0, False),
    ],
)
def test_lag_is_the_orchestrators_share_and_what_tool_waits_came_back_late(
    duration_ns, orchestrator_ns, late_s, share, trusted
):
    said = lag.host_lag(
        Store(duration_ns, orchestrator_ns), "r", "o", DriveResult(late_s=late_s, trajectories=1)
    )

    assert said == {
        "share": pytest.approx(share),
        "critical_s": 2.0 + late_s,
        "limit": lag.LIMIT,
        "trustworthy": trusted,
    }


def test_what_could_not_be_measured_is_not_trusted():
    said = lag.host_lag(Store(None, None), "r", "o", DriveResult())

    assert said["share"] is None
    assert not said["trustworthy"]
    assert "could not be measured" in lag.sentence(said, "the figures do")


def test_one_rollout_that_lagged_spoils_the_comparison():
    good, bad, unknown = lag.judged(0.02), lag.judged(0.5), lag.judged(None)

    assert lag.worst([good, good]) == good
    assert lag.worst([good, bad]) == bad
    assert not lag.worst([good, unknown])["trustworthy"]


def test_the_sentence_says_how_much_that_it_does_not_count_and_what_to_do():
    said = lag.sentence(lag.judged(0.68), "the comparison does")

    assert lag.sentence(lag.judged(0.03), "the comparison does") is None
    for part in ("ran behind", "68%", "comparison does not count", "fewer traj", "lower --speed"):
        assert part in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("critical_s", "won"), [((0.0, 50.0), "heddle"), ((99.0, 0.0), "heddle"), ((101.0, 0.0), None)]
)
def test_a_lead_that_the_other_ones_lag_cannot_explain_stands(critical_s, won):
    took_s = {"verl": 400.0, "heddle": 300.0}
    presets = {
        name: {"makespan_s": took_s[name], "host_lag": lag.judged(0.4, lost_s)}
        for name, lost_s in zip(took_s, critical_s, strict=True)
    }

    assert winner(presets) == won


def test_a_lag_that_nobody_measured_decides_nothing():
    presets = {
        name: {"makespan_s": took_s, "host_lag": lag.judged(None)}
        for name, took_s in (("verl", 400.0), ("heddle", 300.0))
    }

    assert winner(presets) is None


def result(share, makespans=(365.0, 358.0)):
    sides = {}
    for name, makespan_s in zip(("verl", "heddle"), makespans, strict=True):
        sides[name] = {
            "makespan_s": makespan_s,
            "predicted_makespan_s": 350.0,
            "layout": "1+1",
            **dict.fromkeys(("trajectories", "steps", "tool_calls", "moves", "gpus"), 2),
            "gpu_ns": {"busy_decode": 10**9},
            "lower_bounds_s": {"work": 100.0},
            "host_lag": lag.judged(share, 100.0 * share),
        }
    whole = lag.judged(share, 100.0 * share)
    return {
        "run": "demo-1",
        "emulated": {"model": "m", "system": "s", "speed": 20.0},
        "host_lag": whole,
        "winner": winner(sides),
        "presets": sides,
    }


class NoPages:
    has_dashboard = False


class Pages:
    has_dashboard = True
    settings = SimpleNamespace(dashboard_url="http://127.0.0.1:8501")


def printed(capsys, monkeypatch, told, stack=NoPages, *, once=False):
    from rich.console import Console

    from heddle.app import show

    monkeypatch.setattr(show, "OUT", Console(width=100, highlight=False))
    command._print(told, stack(), once=once)
    return capsys.readouterr().out


def test_a_demo_on_a_machine_that_kept_up_names_the_winner(capsys, monkeypatch):
    said = printed(capsys, monkeypatch, result(0.03))

    assert "1.02x (heddle won)" in said
    assert "ran behind" not in said


def test_a_demo_that_ends_says_how_its_pages_come_back(capsys, monkeypatch):
    stays = printed(capsys, monkeypatch, result(0.03), Pages)
    ends = printed(capsys, monkeypatch, result(0.03), Pages, once=True)

    assert "Dashboard: http://127.0.0.1:8501" in stays
    assert "Dashboard: heddle up shows it again at http://127.0.0.1:8501" in ends


def test_a_demo_that_is_won_all_the_same_says_so(capsys, monkeypatch):
    said = printed(capsys, monkeypatch, result(0.3, makespans=(365.0, 250.0)))

    assert "1.46x (heddle won)" in said
    assert "up to 30.0 s of the slower makespan" in said
    assert "does not count" not in said


def test_a_demo_on_a_machine_that_ran_behind_names_none(capsys, monkeypatch):
    said = printed(capsys, monkeypatch, result(0.68))

    assert "(no winner)" in said
    assert "won" not in said.replace("no winner", "")
    assert "68% of the trajectories' time was its own lag" in said
    assert "host lag" in said
    assert "68.0%" in said


def test_a_shorter_makespan_wins_and_equal_ones_are_a_draw():
    def sides(verl, heddle):
        kept_up = lag.judged(0.01, 0.5)
        took_s = {"verl": verl, "heddle": heddle}
        return {p: {"makespan_s": s, "host_lag": kept_up} for p, s in took_s.items()}

    assert winner(sides(2.0, 1.0)) == "heddle"
    assert winner(sides(1.0, 2.0)) == "verl"
    assert winner(sides(1.0, 1.0)) == "draw"


@pytest.mark.parametrize(("share", "told"), [(0.04, False), (0.4, True), (None, True)])
def test_a_replay_says_when_its_figures_do_not_count(capsys, monkeypatch, share, told):
    from rich.console import Console

    from heddle.app import show
    from heddle.app.commands import replay

    monkeypatch.setattr(show, "OUT", Console(width=100, highlight=False))
    counts = dict.fromkeys(("trajectories", "steps", "tool_calls", "output_tokens"), 3)
    held = {
        "run": "r",
        "makespan_s": 9.0,
        "host_lag": lag.judged(share),
        "errors": {},
        **counts,
    }

    replay._report(held, counts, json=False)

    assert ("these figures do not count" in capsys.readouterr().out) == told
