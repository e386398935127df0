"""Numbers along axes: enough of them, none between two counts, no two that read alike."""

from __future__ import annotations

import re
from itertools import pairwise
from math import log10
from typing import Any

import polars as pl
import pytest
from browser.fake_rollouts import frame
from hypothesis import example, given
from hypothesis import strategies as st

from heddle.dashboards import theme
from heddle.dashboards.figures import base, chart, progress, tail, ticks
from heddle.dashboards.reports import drawing

LENGTHS = st.floats(1e-3, 1e7)


def _layout(figure: Any) -> Any:
    return figure.layout


@example(low=7_222_223.0, times=1.0)
@example(low=9_007_200.1, times=1 + 2**-52)
@example(low=1.0, times=1 + 2e-6)
@given(LENGTHS, st.floats(1.0, 1e5))
def test_a_logarithmic_axis_has_three_numbers_or_more_that_read_apart(
    low: float, times: float
) -> None:
    axis = base.log_ticks(low, low * times)
    assert 3 <= len(axis["tickvals"]) <= 14
    assert len(set(axis["ticktext"])) == len(axis["ticktext"])
    assert all(a < b for a, b in pairwise(axis["tickvals"]))


@example(low=123.0, times=1.0)
@example(low=30.0, times=1 + 1e-5)
@given(LENGTHS, st.floats(1.0, 1.05))
def test_numbers_of_lengths_that_are_one_stand_across_the_axis_and_not_in_each_other(
    low: float, times: float
) -> None:
    """Plotly fits an axis to bars and lines, and draws two decades around one value."""
    values = {"a": [low, low * times]}
    spread = log10(low * times) - log10(low)
    told = _layout(tail.ccdf(values, "light", unit="s")).xaxis
    seen = told.range[1] - told.range[0] if told.range else spread
    assert log10(told.tickvals[-1]) - log10(told.tickvals[0]) >= 0.3 * seen
    histogram = tail.histogram(values, "light", unit="s")
    edges = histogram.data[0].x[0], histogram.data[0].x[-1]
    numbers = [at for at in _layout(histogram).xaxis.tickvals if edges[0] <= at <= edges[1]]
    assert sum(histogram.data[0].y) == len(values["a"])
    assert len(numbers) >= 2
    assert log10(numbers[-1]) - log10(numbers[0]) >= 0.3 * (log10(edges[1]) - log10(edges[0]))


@given(st.integers(1, 10**7), st.integers(0, 10**6))
def test_a_logarithmic_axis_of_counts_has_whole_numbers_alone(low: int, more: int) -> None:
    axis = base.log_ticks(low, low + more, whole=True)
    assert axis["tickvals"]
    assert all(value >= 1 and value == round(value) for value in axis["tickvals"])
    assert len(set(axis["ticktext"])) == len(axis["ticktext"])
    if more >= 3:
        assert sum(low <= value <= low + more for value in axis["tickvals"]) >= 2


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=5))
def test_an_axis_of_counts_steps_by_whole_numbers_and_not_by_too_many(values: list[int]) -> None:
    step = base.whole_ticks(values)["dtick"]
    assert step >= 1
    assert step == round(step)
    assert max(values) / step <= ticks.MOST + 1e-6


def test_narrow_and_wide_axes_are_told_by_what_fits_them() -> None:
    assert ticks.logarithmic(30.05, 30.35) == [30.05, 30.1, 30.15, 30.2, 30.25, 30.3, 30.35]
    assert ticks.logarithmic(3, 6, whole=True) == [3.0, 4.0, 5.0, 6.0]
    assert ticks.logarithmic(2, 40) == [2, 5, 10, 20, 50]
    assert ticks.logarithmic(1, 1e5) == [1, 10, 100, 1_000, 10_000, 100_000]
    assert ticks.logarithmic(7, 7, whole=True) == [7.0]


def test_lengths_that_differ_by_milliseconds_are_not_written_alike_in_the_report() -> None:
    drawn = drawing.survival([(30.05, 1.0), (30.1, 0.5), (30.12, 0.25)])
    said = re.findall(r'class="tick"[^>]*>([^<]*)<', drawn)
    assert len(said) >= 3
    assert len(set(said)) == len(said)
    assert all(text.endswith(" s") for text in said)


@pytest.mark.parametrize("size", [2, 5, 30, 96, 5_000])
def test_the_reports_shares_have_three_numbers_or_more(size: int) -> None:
    points = [(1.0 + n, 1 - n / size) for n in range(size)]
    said = re.findall(r'class="lane"[^>]*>([^<]*)<', drawing.survival(points))
    assert 3 <= len(said) <= 12
    assert said[-1] == "100 %"
    assert all(100 / size <= float(text.removesuffix(" %")) <= 100 for text in said)


def test_one_length_alone_is_a_dot_and_a_number() -> None:
    drawn = drawing.survival([(30.1, 1.0)])
    assert "<circle" in drawn
    assert "30.1 s" in drawn
    (trace,) = tail.ccdf({"a": [30.1]}, "light", unit="s").to_plotly_json()["data"]
    assert trace["mode"] == "markers"


@pytest.mark.parametrize("measure", theme.WHOLE)
def test_figures_of_counted_measures_have_whole_numbers(measure: str) -> None:
    values = {"a": [3.0, 4.0, 6.0]}
    for figure in (
        tail.ccdf(values, "light", unit=measure, whole=True),
        tail.histogram(values, "light", unit=measure, whole=True),
        tail.spread(_groups(measure), measure, "light", unit=measure),
    ):
        assert list(_layout(figure).xaxis.tickvals) == [3.0, 4.0, 5.0, 6.0]


def _groups(measure: str) -> pl.DataFrame:
    rows = [{"trajectory_id": f"t{n}", "group_id": f"g{n % 2}", measure: n} for n in (3, 4, 6)]
    return frame("trajectories", rows)


def test_trajectories_steps_and_tokens_are_never_split() -> None:
    histogram = tail.histogram({"a": [1.0, 2.0]}, "light", unit="s")
    assert _layout(histogram).yaxis.dtick == 1
    rows = [
        {
            "step_index": n,
            "start_ns": n,
            "input_tokens": 1,
            "output_tokens": 2,
            "predicted_p50": 1.0,
        }
        for n in range(3)
    ]
    for drawn in (progress.tokens, progress.predictions):
        layout = _layout(drawn(frame("steps", rows), "light"))
        assert (layout.xaxis.dtick, layout.yaxis.dtick) == (1, 1)


@pytest.mark.parametrize("kind", chart.KINDS)
def test_a_chart_of_integers_has_integers_along_its_axes(kind: str) -> None:
    counted = pl.DataFrame({"step": [0, 1, 2], "calls": [1, 2, 3], "took_s": [0.1, 0.2, 0.3]})
    layout = _layout(chart.chart(counted, "step", "calls", kind, "light"))
    assert layout.xaxis.dtick == 1
    assert layout.yaxis.dtick == 1
    measured = _layout(chart.chart(counted, "step", "took_s", kind, "light"))
    upright = measured.xaxis if kind == "histogram" else measured.yaxis
    assert upright.dtick is None
