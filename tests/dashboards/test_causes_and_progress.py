"""Figures and panels of the tail, the idle page and the trajectory: exact, bounded, marked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from browser.apptest import opened, said
from browser.fake_explained import explain
from browser.fake_rollouts import RUN, SECOND, START_NS, Story, frame

from heddle.dashboards import facts, theme
from heddle.dashboards.figures import base, causes, predictor, progress, strip, waterfall
from heddle.dashboards.figures.waterfall import GAP_NS, Piece
from heddle.dashboards.reports.trajectory import trajectory_report

Answering = Callable[[Any], None]


def _decomposition(count: int) -> pl.DataFrame:
    rows = [
        {"trajectory_id": f"t{i}", "duration_ns": 3 * SECOND * (i + 1), "base_ns": SECOND * (i + 1)}
        | {"tool_ns": 2 * SECOND * (i + 1)}
        for i in range(count)
    ]
    return frame("decomposition", rows)


def test_every_part_of_a_decomposition_has_a_colour_of_its_own() -> None:
    assert {part.removesuffix("_ns") for part in causes.PARTS} == set(theme.PARTS)
    for mode in ("light", "dark"):
        looks = [(of.colour(mode), of.pattern) for of in theme.PARTS.values()]
        assert len(set(looks)) == len(looks)


def test_parts_of_a_bar_sum_to_the_trajectorys_time() -> None:
    figure = causes.parts(_decomposition(3), "light")
    sums = [sum(values) for values in zip(*(trace.x for trace in figure.data), strict=True)]
    assert sums == [3.0, 6.0, 9.0]
    assert [trace.name for trace in figure.data] == ["decode", "tool wait"]


def test_predicted_and_actual_keep_the_longest_of_many() -> None:
    rows = [
        {"trajectory_id": f"t{i}", "predicted_p50": 100.0, "output_tokens": i + 1}
        for i in range(20_000)
    ]
    figure = causes.predicted(frame("trajectories", rows), "dark")
    drawn = figure.data[1].y
    assert len(drawn) <= base.MARKS
    assert set(range(19_801, 20_001)) <= set(drawn)


def test_a_source_that_saved_time_is_drawn_below_nothing() -> None:
    rows = [
        {"source": "token length", "time_ns": 9 * SECOND, "share": 1.2},
        {"source": "transfer and sync", "time_ns": -SECOND, "share": -0.2},
    ]
    figure = causes.sources(frame("tail_sources", rows), "light")
    assert list(figure.data[0].x) == [-20.0, 120.0]
    assert figure.layout.xaxis.range[0] < -20


def test_what_was_left_counts_down_to_nothing() -> None:
    rows = [
        {"step_index": i, "start_ns": i, "output_tokens": 10, "predicted_p50": 5.0}
        | {"predicted_p10": 1.0, "predicted_p90": 9.0}
        for i in range(4)
    ]
    figure = progress.predictions(frame("steps", rows), "light")
    assert list(figure.data[-1].y) == [40, 30, 20, 10]
    assert figure.data[-1].name == "actual"


def test_fifty_thousand_steps_are_a_figure_of_two_thousand_marks() -> None:
    count = 50_000
    steps = frame(
        "steps",
        [
            {"step_index": i, "start_ns": START_NS + i * SECOND, "worker_id": "w0"}
            | {"end_ns": START_NS + i * SECOND + SECOND // 2, "decode_ns": SECOND // 4 + i}
            | {"input_tokens": i, "output_tokens": 1, "cached_tokens": 0}
            for i in range(count)
        ],
    )
    empty = frame("tool_calls", []), frame("moves", [])
    found = waterfall.pieces(steps, *empty, now_ns=START_NS)
    figure = waterfall.waterfall(found, "light", start_ns=START_NS)
    assert sum(len(trace.x) for trace in figure.data) <= base.MARKS
    lines = progress.tokens(steps, "light")
    assert sum(len(trace.x) for trace in lines.data) <= base.MARKS
    assert max(lines.data[0].y) == count - 1


def test_gaps_are_what_no_piece_covers() -> None:
    second = GAP_NS * 2
    found = [
        Piece("decode", "w0", 0, 3 * second, "a"),
        Piece("tool", "tools", second, 2 * second, "b"),
        Piece("decode", "w0", 4 * second, 5 * second, "c"),
        Piece("decode", "w0", 5 * second + 1, 6 * second, "d"),
    ]
    assert [(one.start_ns, one.end_ns) for one in waterfall.gaps(found)] == [
        (3 * second, 4 * second)
    ]
    assert waterfall.lanes_of(found + waterfall.gaps(found)) == ["w0", "tools", "gaps"]


def test_lanes_of_workers_and_degrees_sum_to_the_same() -> None:
    rows = [
        {"worker_id": worker, "degree": degree, "state": "busy_decode", "gpu_ns": ns}
        for worker, degree, ns in (("w10", 2, 5), ("w9", 1, 7), (None, None, 3), ("w2", 2, 11))
    ]
    parts = frame("partition", rows)
    workers, degrees = facts.lanes(parts, "worker"), facts.lanes(parts, "degree")
    assert list(workers) == ["w2 · TP2", "w9 · TP1", "w10 · TP2", "no worker"]
    assert {lane: states["busy_decode"] for lane, states in degrees.items()} == {
        "TP1": 7,
        "TP2": 16,
        "no worker": 3,
    }


def test_the_critical_path_lies_on_the_lanes_it_was_on() -> None:
    story = explain(Story(("verl",), trajectories=8))
    strips, path = story.query("strips"), story.query("critical_path")
    figure = strip.strip(strips, "light", start_ns=START_NS)
    line = strip.with_path(figure, path, START_NS).data[-1]
    assert line.name == "critical path"
    assert set(line.y) == {"w0 · TP1"}
    assert line.x[0] == pytest.approx((path["start_ns"][0] - START_NS) / 1e9)


def test_a_versions_coverage_is_a_line_of_its_own() -> None:
    rows = [
        {"rollout_id": f"r{i}", "predictor_version": version, "covered": 0.7 + i / 10}
        for i in range(2)
        for version in ("a", "b")
    ]
    figure = predictor.coverage(frame("calibration", rows), "dark")
    assert [(trace.name, list(trace.y)) for trace in figure.data] == [
        ("a", [pytest.approx(70), pytest.approx(80)]),
        ("b", [pytest.approx(70), pytest.approx(80)]),
    ]


def _failing(story: Story) -> str:
    """The longest trajectory, its first and last tool calls failed."""
    name = story.query("trajectories").sort("steps")["trajectory_id"][-1]
    mine = [row for row in story.rows["tool_calls"] if row["trajectory_id"] == name]
    for row in mine:
        row["error_type"] = None
    mine[0]["error_type"], mine[-1]["error_type"] = "timeout", "exit 1"
    return name


def test_the_next_error_is_jumped_to_and_then_the_one_after(answering: Answering) -> None:
    story = Story(("verl",), trajectories=12)
    name = _failing(story)
    answering(story)
    report = trajectory_report(story, RUN, name)
    begin = report.pieces[0].start_ns
    at = opened("trajectory", run=RUN, trajectory=name)
    for at_ns, _ in [*report.errors, report.errors[0]]:
        at.button(key="trajectory_error").click().run()
        assert float(at.query_params["at"]) == pytest.approx((at_ns - begin) / 1e9, abs=1e-3)
    assert at.query_params["window"] == "60"


def test_a_trajectory_names_its_groups_others_and_its_cost(answering: Answering) -> None:
    story = Story(("verl",), trajectories=16)
    name = "rollout-1-g01-s2"
    costs = {"run_id": RUN, "rollout_id": "rollout-1", "trajectory_id": name}
    story.rows["cost"] = [{**costs, "used_gpu_ns": 7 * SECOND, "caused_gpu_ns": 2 * SECOND}]
    answering(story)
    at = opened("trajectory", run=RUN, trajectory=name)
    neighbours = at.dataframe[-1].value["trajectory_id"].tolist()
    assert sorted(neighbours) == [f"rollout-1-g01-s{i}" for i in range(8) if i != 2]
    shown = {metric.label: metric.value for metric in at.metric}
    assert (shown["Used"], shown["Idle caused"]) == ("7 GPU-s", "2 GPU-s")


def test_the_tail_shows_its_sources_and_what_was_predicted(answering: Answering) -> None:
    story = Story(("verl", "heddle"), trajectories=24)
    rows = _decomposition(24).to_dicts()
    names = story.query("trajectories", rollout="rollout-2")["trajectory_id"]
    key = {"run_id": RUN, "rollout_id": "rollout-2", "by": "trajectory"}
    story.rows["decomposition"] = [
        {**row, **key, "trajectory_id": name} for row, name in zip(rows, names, strict=True)
    ]
    story.rows["tail_sources"] = [
        {**key, "source": "token length", "time_ns": SECOND, "share": 1.0}
    ]
    answering(story)
    at = opened("tail", rollout="rollout-2")
    titles = [block.value for block in at.subheader]
    assert {"What made the slowest tenth slow", "Predicted and actual"} <= set(titles)
    assert "The slowest 20 of 24" in said(at)
    assert at.selectbox(key="tail_open").options[0] == names[-1]
