"""How good is a predictor after k steps, beside what it must beat? No Streamlit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import plotly.graph_objects as go
import polars as pl

from heddle.dashboards import theme
from heddle.dashboards.figures import base

COVERED: Final = 0.8
"""What an interval from p10 to p90 should hold."""
SLACK: Final = 0.05
"""Issue 9 takes 75 to 85 % for calibrated."""
OVERALL: Final = -1
"""In the gate's table: the mean over the steps."""


def quality(
    rows: Sequence[Mapping[str, Any]], metric: str, mode: theme.Mode, *, target: float | None = None
) -> go.Figure:
    """*metric* over the steps done: the candidate, each baseline, and a *target* where one is."""
    figure = base.blank(mode, height=330, x="steps done when it was asked (k)", y=base.text(metric))
    per_k = [row for row in rows if row["metric"] == metric and row["k"] != OVERALL]
    against = list(dict.fromkeys(row["against"] for row in per_k))
    first = [row for row in per_k if against and row["against"] == against[0]]
    figure.add_trace(_line("candidate", first, "candidate", theme.series(0, mode), "solid"))
    for place, name in enumerate(against, start=1):
        mine = [row for row in per_k if row["against"] == name]
        figure.add_trace(_line(name, mine, "baseline", theme.series(place, mode), "dash"))
    if target is not None:
        figure.add_hline(y=target, line={"color": theme.INK[mode].soft, "width": 1, "dash": "dot"})
    figure.update_xaxes(type="category")
    figure.update_layout(showlegend=True)
    return figure


def _line(
    name: str, rows: Sequence[Mapping[str, Any]], which: str, colour: str, dash: str
) -> go.Scatter:
    return go.Scatter(
        name=base.short(name, 32),
        x=[str(row["k"]) for row in rows],
        y=[row[which] for row in rows],
        mode="lines+markers",
        line={"color": colour, "width": 2.2, "dash": dash},
        marker={"size": 7, "color": colour},
        customdata=[row["n"] for row in rows],
        hovertemplate="k=%{x}: %{y:.4g}, n=%{customdata}<extra>%{fullData.name}</extra>",
    )


def coverage(rows: pl.DataFrame, mode: theme.Mode) -> go.Figure:
    """Share between p10 and p90, rollout by rollout, one line a version; the band is the goal."""
    figure = base.blank(mode, height=280, x="rollout", y="between p10 and p90 (%)")
    versions = rows["predictor_version"].unique(maintain_order=True).to_list()
    for place, version in enumerate(versions):
        mine = rows.filter(pl.col("predictor_version") == version).tail(base.MARKS // len(versions))
        figure.add_trace(
            go.Scatter(
                name=base.short(version, 32),
                x=[base.short(one) for one in mine["rollout_id"]],
                y=[None if one is None else 100 * one for one in mine["covered"]],
                mode="lines+markers",
                line={"color": theme.series(place, mode), "width": 2},
                hovertemplate="%{x}: %{y:.1f} %<extra>%{fullData.name}</extra>",
            )
        )
    low, high = 100 * (COVERED - SLACK), 100 * (COVERED + SLACK)
    figure.add_hrect(y0=low, y1=high, line_width=0, fillcolor=theme.INK[mode].grid, layer="below")
    figure.update_yaxes(range=[0, 104])
    figure.update_xaxes(type="category", nticks=base.NAMES)
    figure.update_layout(showlegend=True)
    return figure


def metrics(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """In the order of the table."""
    return list(dict.fromkeys(str(row["metric"]) for row in rows))
