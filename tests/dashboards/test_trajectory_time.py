"""A trajectory's time: its parts sum to the whole, and say what the collector's accounts say."""

from __future__ import annotations

from typing import Any

import pytest
from browser.fake_rollouts import frame
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.collector.decompose import decompose
from heddle.collector.facts import gather
from heddle.dashboards import facts
from heddle.dashboards.figures import progress, waterfall

SECOND = 1_000_000_000
END = 120
WHOSE = {"run_id": "run", "rollout_id": "ro", "trajectory_id": "t"}
PHASES = ("held", "queue", "prefill", "decode")
COLLECTORS = {
    "held": ("held_ns",),
    "queue": ("queued_ns",),
    "prefill": ("prefill_ns", "recompute_ns"),
    "decode": ("base_ns", "context_ns", "interference_ns", "unsplit_ns"),
    "tool": ("tool_ns",),
    "move": ("move_ns",),
    "rest": ("orchestrator_ns",),
    "unknown": ("unknown_ns",),
}
"""The report's phases, and what the collector's decomposition calls them."""

instants = st.integers(0, END - 20)
lengths = st.integers(0, 20)
maybe = st.one_of(st.none(), st.integers(0, 9))


@st.composite
def _steps(draw: st.DrawFn) -> list[dict[str, Any]]:
    starts = sorted(draw(st.sets(instants, max_size=5)))
    indices = sorted(draw(st.sets(st.integers(0, 8), min_size=len(starts), max_size=len(starts))))
    rows: list[dict[str, Any]] = []
    for at, index in zip(starts, indices, strict=True):
        told = {f"{phase}_ns": draw(maybe) for phase in PHASES}
        rows.append({"step_index": index, "start_ns": at, "end_ns": at + draw(lengths), **told})
    return rows


def _spans(**more: Any) -> Any:
    made = st.builds(
        lambda at, took, said: {"start_ns": at, "end_ns": at + took, **said},
        instants, lengths, st.fixed_dictionaries(more),
    )  # fmt: skip
    return st.lists(made, max_size=4)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """In seconds as drawn, in nanoseconds as kept."""
    times = {k: v and v * SECOND for k, v in row.items() if k.endswith("_ns")}
    home = {"worker_id": "w0", "degree": 1, "state": "finished", "move_target": "w0"}
    return {**WHOSE, **home, **row, **times}


@settings(deadline=None)
@given(_steps(), _spans(tool_name=st.just("bash")), _spans(hidden_s=maybe, exposed_s=maybe))
def test_parts_sum_to_the_whole_and_are_what_the_collector_accounts(
    steps: list[dict[str, Any]], tools: list[dict[str, Any]], moves: list[dict[str, Any]]
) -> None:
    whole = [{**WHOSE, "start_ns": 0, "end_ns": END * SECOND, "state": "finished"}]
    frames = {
        "steps": frame("steps", [_row(row) for row in steps]),
        "tool_calls": frame("tool_calls", [_row(row) for row in tools]),
        "moves": frame("moves", [_row(row) for row in moves]),
    }
    found = waterfall.pieces(*frames.values(), now_ns=0)
    parts = waterfall.parts(found, 0, END * SECOND)
    assert sum(parts.values()) == END * SECOND
    accounted = gather(
        {"start_ns": 0, "end_ns": END * SECOND, "gpus": 1},
        **frames,
        workers=frame("workers", []),
        trajectories=frame("trajectories", whole),
        now_ns=END * SECOND,
    )
    (theirs,) = decompose(accounted, frames["steps"], {}).iter_rows(named=True)
    said = {phase: sum(theirs[name] for name in names) for phase, names in COLLECTORS.items()}
    assert parts == {phase: ns for phase, ns in said.items() if ns}


@settings(deadline=None)
@given(_steps(), instants, lengths)
def test_parts_of_any_window_sum_to_it(
    steps: list[dict[str, Any]], start: int, length: int
) -> None:
    rows = [{**_row(row), "end_ns": None} for row in steps]
    nothing = frame("tool_calls", []), frame("moves", [])
    found = waterfall.pieces(frame("steps", rows), *nothing, now_ns=END * SECOND)
    end = start + length
    assert sum(waterfall.parts(found, start * SECOND, end * SECOND).values()) == length * SECOND


def test_a_step_that_never_came_is_unknown_between_its_neighbours() -> None:
    told = {"prefill_ns": 1, "decode_ns": 1}
    rows = [
        {"step_index": n, "start_ns": at, "end_ns": at + 2, **told} for n, at in ((0, 0), (2, 9))
    ]
    nothing = frame("tool_calls", []), frame("moves", [])
    found = waterfall.pieces(frame("steps", [_row(row) for row in rows]), *nothing, now_ns=0)
    (lost,) = [piece for piece in found if piece.phase == "unknown"]
    assert (lost.start_ns, lost.end_ns) == (2 * SECOND, 9 * SECOND)
    assert lost.said == "step 1 never came"
    assert not waterfall.gaps(found)


def test_a_step_whose_end_never_came_is_not_running() -> None:
    row = {"step_index": 0, "start_ns": 1, "end_ns": None}
    steps = frame("steps", [{**_row(row), "state": "abandoned"}])
    nothing = frame("tool_calls", []), frame("moves", [])
    found = waterfall.pieces(steps, *nothing, now_ns=5 * SECOND)
    assert [(piece.phase, piece.end_ns) for piece in found] == [("unknown", 5 * SECOND)]


def test_only_what_was_waited_for_of_a_move_is_exposed() -> None:
    moves = frame("moves", [_row({"start_ns": 1, "end_ns": 6, "hidden_s": 4.0})])
    nothing = frame("steps", []), frame("tool_calls", [])
    found = waterfall.pieces(*nothing, moves, now_ns=0)
    assert [(one.phase, one.end_ns // SECOND) for one in found] == [("hidden", 5), ("move", 6)]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"tool_s": 9.0, "unknown_s": 18.0}, "unknown 60 %, no phases"),
        ({"tool_s": 9.0, "unknown_s": 0.0, "tool_calls": 3}, "orchestrator 70 %"),
        ({"tool_s": 21.0, "unknown_s": 9.0, "tool_calls": 3}, "tools 70 %, 3 calls"),
        ({"decode_s": 40.0, "tool_s": 10.0}, "decode 80 %, – tokens"),
        ({"steps": 0}, "no step has ended yet"),
    ],
)
def test_the_cause_is_a_share_of_the_whole_time(row: dict[str, Any], said: str) -> None:
    assert facts.cause({"duration_s": 30.0, "steps": 3, **row}) == said


def test_what_was_left_is_not_known_before_a_step_that_says_nothing() -> None:
    rows = [
        {"step_index": n, "start_ns": n, "output_tokens": out, "predicted_p50": 1.0}
        for n, out in enumerate((5, None, 7, 8))
    ]
    figure = progress.predictions(frame("steps", rows), "light")
    (left,) = [trace for trace in figure.to_plotly_json()["data"] if trace.get("name") == "actual"]
    assert list(left["y"]) == [None, None, 15, 8]


def test_a_count_that_no_step_told_has_no_line() -> None:
    rows = [{"step_index": 0, "start_ns": 0, "input_tokens": 9, "output_tokens": 0}]
    figure = progress.tokens(frame("steps", rows), "light")
    assert [trace["name"] for trace in figure.to_plotly_json()["data"]] == ["prompt", "output"]
