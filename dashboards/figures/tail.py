"""How long is the tail, and whose is it? Distributions and spreads; no Streamlit.

The maximum and the top percent are always drawn as they are: a tail that was binned away is the
one thing these figures are for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import plotly.graph_objects as go
import polars as pl

from heddle.dashboards import theme
from heddle.dashboards.figures import base, ticks

KEPT: Final = 0.01
POINTS: Final = 400
GROUPS: Final = 24
SAMPLES: Final = base.CLOUD // GROUPS
"""Dots of a group at most, evenly by rank, its longest among them."""


def ccdf(
    values: Mapping[str, Sequence[float]], mode: theme.Mode, *, unit: str, whole: bool = False
) -> go.Figure:
    """Share of trajectories longer than x, both axes logarithmic; one line a rollout."""
    figure = base.blank(mode, height=320, x=unit, y="share longer (%)")
    for index, (label, sample) in enumerate(values.items()):
        xs, ys = survival(sample)
        figure.add_trace(
            go.Scatter(
                name=base.short(label, 36),
                x=xs,
                y=[100 * y for y in ys],
                # One value alone is no line.
                mode="lines" if len(xs) > 1 else "markers",
                marker={"size": 9},
                # Paired rollouts have equal lengths: the chosen one shows beside what covers it.
                line={
                    "shape": "hv",
                    "width": 1.8 if index else 5,
                    "color": theme.series(index, mode),
                },
                hovertemplate="%{y:.2g} % above %{x:.4g}<extra>%{fullData.name}</extra>",
            )
        )
    figure.update_xaxes(base.log_ticks(*_bounds(values.values()), whole=whole))
    figure.update_yaxes(base.log_ticks(100 / max([2, *map(len, values.values())]), 100))
    figure.update_layout(showlegend=len(values) > 1)
    return figure


def survival(sample: Sequence[float]) -> tuple[list[float], list[float]]:
    """(x, P(X >= x)) at every kept value: the top percent whole, the rest thinned to POINTS."""
    ordered = np.sort(np.asarray([value for value in sample if value > 0], dtype=float))
    size = ordered.size
    if not size:
        return [], []
    body = int(size * (1 - KEPT))
    ranks = np.arange(size)
    kept = np.unique(np.concatenate([ranks[body:], ranks[:: max(1, size // POINTS)]]))
    return ordered[kept].tolist(), (1 - kept / size).tolist()


def histogram(
    values: Mapping[str, Sequence[float]], mode: theme.Mode, *, unit: str, whole: bool = False
) -> go.Figure:
    """Trajectories per length in logarithmic bins that all rollouts share."""
    figure = base.blank(mode, height=320, x=unit, y="trajectories")
    positive = [value for sample in values.values() for value in sample if value > 0]
    if not positive:
        return figure
    edges = _edges(min(positive), max(positive))
    middles = np.sqrt(edges[:-1] * edges[1:])
    most = 0
    for index, (label, sample) in enumerate(values.items()):
        counts, _ = np.histogram([value for value in sample if value > 0], bins=edges)
        most = max(most, int(counts.max()))
        colour = theme.series(index, mode)
        # The chosen rollout is filled and the others are outlines: two fills make mud.
        drawn = _outline if index else _bars
        figure.add_trace(drawn(label, counts, middles, edges, colour))
    figure.update_layout(barmode="overlay", bargap=0.04, showlegend=len(values) > 1)
    figure.update_xaxes(base.log_ticks(float(edges[0]), float(edges[-1]), whole=whole))
    figure.update_yaxes(base.whole_ticks([most]))
    return figure


def _bounds(samples: Iterable[Sequence[float]]) -> tuple[float, float]:
    positive = [value for sample in samples for value in sample if value > 0]
    return (min(positive), max(positive)) if positive else (1.0, 1.0)


def _edges(low: float, high: float) -> np.ndarray:
    room = ticks.ROOM if high < low * 1.01 else 0.001
    return np.geomspace(low * (1 - room), high * (1 + room), 33)


def _bars(
    label: str, counts: np.ndarray, middles: np.ndarray, edges: np.ndarray, colour: str
) -> go.Bar:
    return go.Bar(
        name=base.short(label, 36),
        x=middles.tolist(),
        y=counts.tolist(),
        width=(edges[1:] - edges[:-1]).tolist(),
        marker={"color": colour, "opacity": 0.72, "line": {"width": 0}},
        hovertemplate="%{y} trajectories near %{x:.4g}<extra>%{fullData.name}</extra>",
    )


def _outline(
    label: str, counts: np.ndarray, middles: np.ndarray, edges: np.ndarray, colour: str
) -> go.Scatter:
    del middles
    return go.Scatter(
        name=base.short(label, 36),
        x=edges.tolist(),
        y=[*counts.tolist(), 0],
        mode="lines",
        line={"shape": "hv", "width": 2, "color": colour},
        hovertemplate="%{y} trajectories from %{x:.4g}<extra>%{fullData.name}</extra>",
    )


def _ranked(rows: pl.DataFrame, column: str) -> pl.DataFrame:
    """At most SAMPLES of each group, from its longest on at even distances by rank."""
    ordered = rows.sort(column, "trajectory_id", descending=[True, False])
    rank, size = pl.int_range(pl.len()).over("group_id"), pl.len().over("group_id")
    step = rank * SAMPLES // size
    return ordered.filter((size <= SAMPLES) | (rank == 0) | (step > (rank - 1) * SAMPLES // size))


def spread(trajectories: pl.DataFrame, column: str, mode: theme.Mode, *, unit: str) -> go.Figure:
    """Each group's samples on its line, groups by their maximum: is the tail the prompt's doing?"""
    known = trajectories.filter(pl.col(column).is_not_null() & (pl.col(column) > 0))
    tops = known.group_by("group_id").agg(pl.col(column).max().alias("top"))
    order = (
        tops.sort("top", "group_id", descending=[True, False]).head(GROUPS)["group_id"].to_list()
    )
    rows = _ranked(known.filter(pl.col("group_id").is_in(order)), column)
    names = [base.short(group, 24) for group in order]
    figure = base.blank(mode, height=96 + 20 * max(len(order), 1), x=unit, names=names)
    figure.add_trace(
        go.Scatter(
            x=rows[column].to_list(),
            y=[base.short(group, 24) for group in rows["group_id"]],
            mode="markers",
            marker={"color": theme.series(0, mode), "size": 7, "opacity": 0.6},
            customdata=[base.short(one, 40) for one in rows["trajectory_id"]],
            hovertemplate="%{customdata}: %{x:.4g}<extra>%{y}</extra>",
        )
    )
    figure.update_yaxes(
        categoryorder="array",
        categoryarray=names,
        autorange="reversed",
    )
    bounds = _bounds([known[column].cast(pl.Float64).to_list()])
    figure.update_xaxes(base.log_ticks(*bounds, whole=column in theme.WHOLE))
    figure.update_layout(showlegend=False)
    return figure
