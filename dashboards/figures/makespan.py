"""Which rollout finished sooner, and did the plan foresee it? No Streamlit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import plotly.graph_objects as go

from heddle.dashboards import theme
from heddle.dashboards.figures import base

WORDS: Final = 0.2
"""Of the longest makespan: what the words at a bar's end take of a narrow page, and a diamond."""
BEFORE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Bar:
    """One rollout of the comparison; a running one's makespan is what has passed so far."""

    label: str
    makespan_s: float
    predicted_s: float | None = None
    running: bool = False


def comparison(bars: Sequence[Bar], mode: theme.Mode) -> go.Figure:
    """Bars in the order given, each against the first; a diamond where the plan said."""
    names = [base.short(bar.label, 40) for bar in bars]
    figure = base.blank(mode, height=84 + 40 * max(len(bars), 1), x="makespan (s)", names=names)
    longest = max((max(bar.makespan_s, bar.predicted_s or 0) for bar in bars), default=1)
    figure.add_trace(_made(bars, mode))
    figure.add_trace(_ends(bars, longest))
    foreseen = [bar for bar in bars if bar.predicted_s is not None]
    if foreseen:
        figure.add_trace(_foreseen(foreseen, mode))
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(range=[0, longest * 1.22])
    figure.update_layout(showlegend=bool(foreseen))
    return figure


def _made(bars: Sequence[Bar], mode: theme.Mode) -> go.Bar:
    return go.Bar(
        name="makespan",
        orientation="h",
        y=[base.short(bar.label, 40) for bar in bars],
        x=[bar.makespan_s for bar in bars],
        marker={
            "color": theme.series(0, mode),
            "opacity": [0.5 if b.running else 0.95 for b in bars],
        },
        customdata=[_said(bar, bars[0]) for bar in bars],
        hovertemplate="%{customdata}<extra>%{y}</extra>",
    )


def _ends(bars: Sequence[Bar], longest_s: float) -> go.Scatter:
    """What each took, right of its bar, and of its diamond where that would stand in the words."""
    return go.Scatter(
        x=[_right_of(bar, longest_s) for bar in bars],
        y=[base.short(bar.label, 40) for bar in bars],
        mode="text",
        text=[f"   {_said(bar, bars[0])}" for bar in bars],
        textposition="middle right",
        cliponaxis=False,
        hoverinfo="skip",
        showlegend=False,
    )


def _right_of(bar: Bar, longest_s: float) -> float:
    before_s, behind_s = BEFORE * longest_s, WORDS * longest_s
    at_s = bar.predicted_s
    is_among = at_s is not None and -before_s <= at_s - bar.makespan_s <= behind_s
    return max(bar.makespan_s, at_s) if is_among and at_s is not None else bar.makespan_s


def _said(bar: Bar, first: Bar) -> str:
    said = theme.seconds(bar.makespan_s)
    if bar.running:
        return f"{said} so far"
    if bar is first or first.running or not bar.makespan_s:
        return said
    return f"{said}  ({first.makespan_s / bar.makespan_s:.2f}x)"


def _foreseen(bars: Sequence[Bar], mode: theme.Mode) -> go.Scatter:
    return go.Scatter(
        name="as planned",
        x=[bar.predicted_s for bar in bars],
        y=[base.short(bar.label, 40) for bar in bars],
        mode="markers",
        marker={"symbol": "diamond", "size": 10, "color": theme.series(1, mode)},
        customdata=[theme.seconds(bar.predicted_s) for bar in bars],
        hovertemplate="planned: %{customdata}<extra>%{y}</extra>",
    )
