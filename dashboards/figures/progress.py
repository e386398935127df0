"""How did one trajectory's tokens and predictions change, step by step? No Streamlit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import plotly.graph_objects as go
import polars as pl

from heddle.dashboards import theme
from heddle.dashboards.figures import base

COUNTED: Final = ("input_tokens", "cached_tokens", "output_tokens")
LINES: Final = base.MARKS // 4
"""Steps drawn of one line; a figure has up to four."""


def tokens(steps: pl.DataFrame, mode: theme.Mode) -> go.Figure:
    """Prompt, the part of it found cached, and output of each step."""
    rows = base.thinned(steps.sort("step_index", "start_ns"), "input_tokens", LINES)
    figure = base.blank(mode, height=260, x="step", y="tokens")
    named = tuple(zip(COUNTED, ("prompt", "cached", "output"), strict=True))
    for place, (column, name) in enumerate(named):
        if rows[column].null_count() == rows.height:
            continue
        figure.add_trace(
            go.Scatter(
                name=name,
                x=rows["step_index"].to_list(),
                y=rows[column].to_list(),
                mode="lines+markers" if rows.height < 60 else "lines",
                line={"color": theme.series(place, mode), "width": 2},
                hovertemplate="step %{x}: %{y:,} tokens<extra>%{fullData.name}</extra>",
            )
        )
    return _counted(figure, rows, [column for column, _ in named])


def _counted(figure: go.Figure, rows: pl.DataFrame, columns: Iterable[str]) -> go.Figure:
    """Steps and tokens are counted."""
    figure.update_xaxes(base.whole_ticks(rows["step_index"], from_zero=False))
    values = (value for column in columns for value in rows[column])
    return figure.update_yaxes(base.whole_ticks(values, from_zero=False))


def predictions(steps: pl.DataFrame, mode: theme.Mode) -> go.Figure:
    """What was said to be left at each step (p10 to p90), and what was."""
    ordered = steps.sort("step_index", "start_ns").with_columns(
        # Unknown from a step on that does not tell its output, as seen from before it.
        left=pl.when(pl.col("output_tokens").is_null().cum_max(reverse=True).not_()).then(
            pl.col("output_tokens").cum_sum(reverse=True)
        )
    )
    said = base.thinned(ordered.filter(pl.col("predicted_p50").is_not_null()), "left", LINES)
    figure = base.blank(mode, height=260, x="step", y="output still to come (tokens)")
    at, ink = said["step_index"].to_list(), theme.series(0, mode)
    band = {"x": at, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    high, low = (said[f"predicted_{q}"].to_list() for q in ("p90", "p10"))
    figure.add_trace(go.Scatter(y=high, showlegend=False, **band))
    fill = {"fill": "tonexty", "fillcolor": base.faded(ink)}
    figure.add_trace(go.Scatter(name="p10 to p90", y=low, **fill, **band))
    lines = (("predicted", "predicted_p50", ink), ("actual", "left", theme.series(1, mode)))
    for name, column, colour in lines:
        figure.add_trace(
            go.Scatter(
                name=name,
                x=at,
                y=said[column].to_list(),
                mode="lines+markers" if said.height < 60 else "lines",
                line={"color": colour, "width": 2},
                hovertemplate="step %{x}: %{y:,.0f} tokens<extra>%{fullData.name}</extra>",
            )
        )
    return _counted(figure, said, ("predicted_p10", "predicted_p90", "predicted_p50", "left"))
