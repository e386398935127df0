"""Where did the GPU time go, rollout by rollout? Frames in, figures out; no Streamlit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
import polars as pl

from heddle.dashboards import theme
from heddle.dashboards.figures import base


def by_state(partition: pl.DataFrame) -> dict[str, int]:
    """State to GPU-nanoseconds, by precedence, empty states left out. Sums are exact integers."""
    if partition.is_empty():
        return {}
    sums = partition.group_by("state").agg(pl.col("gpu_ns").sum())
    totals = {str(state): int(gpu_ns) for state, gpu_ns in sums.iter_rows()}
    return {state: totals[state] for state in theme.in_order(set(totals)) if totals[state] > 0}


def stacked(
    rollouts: Mapping[str, Mapping[str, int]],
    mode: theme.Mode,
    *,
    share: bool = False,
    said: Sequence[str] = (),
) -> go.Figure:
    """One bar a rollout, first on top; label to (state to GPU-ns). *said* ends the bars."""
    labels = [base.short(label, 40) for label in rollouts]
    figure = base.blank(
        mode,
        height=90 + 40 * max(len(labels), 1),
        x="share of GPU time (%)" if share else "GPU time (GPU-s)",
        names=labels,
    )
    for state in theme.in_order({state for states in rollouts.values() for state in states}):
        figure.add_trace(_bar(state, rollouts, labels, mode, share=share))
    if said:
        figure.add_trace(_ends(rollouts, labels, said, share=share))
    figure.update_layout(barmode="stack")
    longest = max((sum(states.values()) for states in rollouts.values()), default=0) / 1e9
    # An eighth to the right is where the words at the ends fit.
    figure.update_xaxes(range=[0, (100 if share else longest or 1) * (1.16 if said else 1.01)])
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    return figure


def _ends(
    rollouts: Mapping[str, Mapping[str, int]],
    labels: list[str],
    said: Sequence[str],
    *,
    share: bool,
) -> go.Scatter:
    return go.Scatter(
        x=[100 if share else sum(states.values()) / 1e9 for states in rollouts.values()],
        y=labels,
        mode="text",
        text=[f"  {base.text(one)}" for one in said],
        textposition="middle right",
        cliponaxis=False,
        hoverinfo="skip",
        showlegend=False,
    )


def _bar(
    state: str,
    rollouts: Mapping[str, Mapping[str, int]],
    labels: list[str],
    mode: theme.Mode,
    *,
    share: bool,
) -> go.Bar:
    of = theme.meaning(state)
    name = of.label if state in theme.STATES else base.text(state)
    values = [states.get(state, 0) for states in rollouts.values()]
    totals = [sum(states.values()) or 1 for states in rollouts.values()]
    shares = [100 * value / total for value, total in zip(values, totals, strict=True)]
    return go.Bar(
        name=name,
        orientation="h",
        y=labels,
        x=shares if share else [value / 1e9 for value in values],
        marker=base.marker(of, mode),
        customdata=[
            [theme.gpu_seconds(value), f"{part:.1f} %"]
            for value, part in zip(values, shares, strict=True)
        ],
        hovertemplate=f"<b>{name}</b>: %{{customdata[0]}}, %{{customdata[1]}}<br>{of.says}"
        "<extra>%{y}</extra>",
    )
