"""Which groups ended sooner, one rollout or policy against another? No Streamlit."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go
import polars as pl

from heddle.dashboards import theme
from heddle.dashboards.figures import base


def scatter(
    this: Mapping[str, float],
    other: Mapping[str, float],
    mode: theme.Mode,
    *,
    names: tuple[str, str],
    unit: str,
) -> go.Figure:
    """One point a group that both have; below the line, *this* (names[0]) was the shorter one."""
    both = [(name, other[name], this[name]) for name in this if name in other]
    rows = pl.DataFrame(both, schema=["group", "x", "y"], orient="row")
    rows = base.thinned(rows, "y")
    figure = base.blank(
        mode,
        height=380,
        x=f"{base.short(names[1], 36)}: {unit}",
        y=f"{base.short(names[0], 36)}: {unit}",
    )
    longest = max((max(x, y) for _, x, y in both), default=1.0) * 1.04
    figure.add_trace(
        go.Scatter(
            x=[0, longest],
            y=[0, longest],
            mode="lines",
            line={"color": theme.INK[mode].soft, "width": 1, "dash": "dot"},
            hoverinfo="skip",
        )
    )
    figure.add_trace(
        go.Scatter(
            x=rows["x"].to_list(),
            y=rows["y"].to_list(),
            mode="markers",
            marker={"size": 8, "color": theme.series(0, mode), "opacity": 0.75},
            customdata=[base.short(name, 48) for name in rows["group"]],
            hovertemplate="%{customdata}<br>%{x:.4g} → %{y:.4g}<extra></extra>",
        )
    )
    figure.update_layout(showlegend=False)
    figure.update_xaxes(range=[0, longest])
    figure.update_yaxes(range=[0, longest])
    return figure


def won(this: Mapping[str, float], other: Mapping[str, float]) -> tuple[int, int]:
    """In how many of the groups that both have *this* was the shorter one, and how many."""
    both = [name for name in this if name in other]
    return sum(this[name] < other[name] for name in both), len(both)
