"""What is the tail made of, was it foreseen, and does it grow? No Streamlit."""

from __future__ import annotations

from typing import Final

import plotly.graph_objects as go
import polars as pl

from heddle.collector.records import FRAMES
from heddle.dashboards import theme
from heddle.dashboards.figures import base

PARTS: Final = [
    column.name
    for column in FRAMES["decomposition"]
    if column.name.endswith("_ns") and column.name not in ("duration_ns", "rewritten_ns")
]
"""Of a trajectory's time; they sum to all of it."""


def sources(found: pl.DataFrame, mode: theme.Mode) -> go.Figure:
    """One bar a source: its share of what the slowest took beyond the median."""
    rows = found.sort("time_ns")
    names = [base.text(name) for name in rows["source"]]
    figure = base.blank(mode, height=250, x="share of the excess (%)", names=names)
    figure.add_trace(
        go.Bar(
            orientation="h",
            x=[100 * (share or 0) for share in rows["share"]],
            y=names,
            marker={"color": theme.series(1, mode)},
            text=[theme.nanoseconds(ns) for ns in rows["time_ns"]],
            textposition="outside",
            cliponaxis=False,
            hovertemplate="%{y}: %{x:.1f} %, %{text}<extra></extra>",
        )
    )
    longest = max([1.0, *(100 * (share or 0) for share in rows["share"])])
    shortest = min([0.0, *(100 * (share or 0) for share in rows["share"])])
    figure.update_xaxes(range=[shortest * 1.25, longest * 1.25])
    figure.update_yaxes(showgrid=False)
    return figure


def predicted(known: pl.DataFrame, mode: theme.Mode) -> go.Figure:
    """One point a trajectory: predicted at its first step, and what it became; log-log."""
    rows = base.thinned(known, "output_tokens", base.CLOUD)
    xs, ys = rows["predicted_p50"].to_list(), rows["output_tokens"].to_list()
    figure = base.blank(mode, height=250, x="predicted (tokens)", y="actual (tokens)")
    low, high = min([*xs, *ys]), max([*xs, *ys])
    figure.add_trace(
        go.Scatter(
            x=[low, high],
            y=[low, high],
            mode="lines",
            line={"color": theme.INK[mode].soft, "width": 1, "dash": "dot"},
            hoverinfo="skip",
        )
    )
    figure.add_trace(
        go.Scatter(
            x=xs,
            y=ys,
            mode="markers",
            marker={"size": 6, "color": theme.series(0, mode), "opacity": 0.6},
            customdata=[base.short(name, 48) for name in rows["trajectory_id"]],
            hovertemplate="%{customdata}<br>%{x:.0f} predicted, %{y:.0f} came<extra></extra>",
        )
    )
    figure.update_xaxes(base.log_ticks(low, high, whole=True))
    figure.update_yaxes(base.log_ticks(low, high, whole=True))
    figure.update_layout(showlegend=False)
    return figure


def parts(top: pl.DataFrame, mode: theme.Mode) -> go.Figure:
    """One bar a trajectory, the slowest on top, cut into the parts of its time."""
    names = [base.short(name, 30) for name in top["trajectory_id"]]
    figure = base.blank(mode, height=110 + 22 * len(names), x="time (s)", names=names)
    for part in PARTS:
        values = [(value or 0) / 1e9 for value in top[part]]
        if not any(values):
            continue
        of = theme.PARTS.get(part.removesuffix("_ns"), theme.OTHER)
        figure.add_trace(
            go.Bar(
                name=of.label,
                orientation="h",
                x=values,
                y=names,
                marker=base.marker(of, mode),
                customdata=[theme.seconds(value) for value in values],
                hovertemplate="%{fullData.name}: %{customdata}<extra>%{y}</extra>",
            )
        )
    figure.update_layout(barmode="stack")
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    return figure


def drift(found: pl.DataFrame, mode: theme.Mode, *, unit: str, whole: bool = False) -> go.Figure:
    """Median, p99 and the longest of each rollout in their order, upright logarithmic."""
    rows = found.sort("start_ns").tail(base.MARKS // 3)
    figure = base.blank(mode, height=280, x="rollout", y=unit)
    for place, (column, name) in enumerate((("p50", "median"), ("p99", "p99"), ("max", "longest"))):
        figure.add_trace(
            go.Scatter(
                name=name,
                x=[base.short(one) for one in rows["rollout_id"]],
                y=rows[column].to_list(),
                mode="lines+markers",
                line={"color": theme.series(place, mode), "width": 2},
                customdata=(rows[column] / rows["p50"]).to_list(),
                hovertemplate=(
                    "%{x}: %{y:.4g}, %{customdata:.1f}x the median<extra>%{fullData.name}</extra>"
                ),
            )
        )
    values = [v for name in ("p50", "p99", "max") for v in rows[name].drop_nulls() if v > 0]
    if values:
        figure.update_yaxes(base.log_ticks(min(values), max(values), whole=whole))
    figure.update_xaxes(type="category", nticks=base.NAMES)
    return figure
