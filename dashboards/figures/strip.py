"""What did each worker do, moment by moment? One bar trace a state; no Streamlit."""

from __future__ import annotations

from typing import Any, Final

import plotly.graph_objects as go
import polars as pl

from heddle.dashboards import theme
from heddle.dashboards.figures import base

PIECES: Final = base.MARKS // 2
"""Bars of a strip: each is a node for the browser."""
PIXELS: Final = 900
"""As wide as a strip is on a page: what is narrower cannot be told from what is beside it."""


def strip(strips: pl.DataFrame, mode: theme.Mode, *, start_ns: int) -> go.Figure:
    """Pieces of `strips` as a lane per worker; x counts seconds from the rollout's start.

    Beyond PIECES the longest half of them are drawn as they are, and what lies between as one piece
    of what most of it was; `merged` says how many that leaves out.
    """
    pieces = drawn(strips)
    lanes = _lanes(strips)
    height, x = 96 + 26 * max(len(lanes), 2), "since the rollout began (s)"
    figure = base.blank(mode, height=height, x=x, names=lanes)
    for state in theme.in_order(set(pieces["state"].to_list())):
        figure.add_trace(_trace(state, pieces.filter(pl.col("state") == state), mode, start_ns))
    figure.update_layout(barmode="overlay", bargap=0.18)
    figure.update_yaxes(
        categoryorder="array", categoryarray=lanes, autorange="reversed", showgrid=False
    )
    last_ns = strips["end_ns"].max() if strips.height else start_ns
    figure.update_xaxes(range=[0, (int(str(last_ns)) - start_ns) * 1.005 / 1e9 or 1])
    return figure


def strip_and_path(
    strips: pl.DataFrame, path: pl.DataFrame, mode: theme.Mode, *, start_ns: int
) -> go.Figure:
    """The strip with the critical path over it."""
    return with_path(strip(strips, mode, start_ns=start_ns), path, start_ns)


def with_path(figure: go.Figure, path: pl.DataFrame, start_ns: int) -> go.Figure:
    """*figure* with the critical path as a line over the lanes it was on; tools are gaps."""
    layout: Any = figure.layout
    lanes = {str(name).split(" · ")[0]: str(name) for name in layout.yaxis.categoryarray}
    pieces = path.sort(pl.col("end_ns") - pl.col("start_ns"), descending=True).head(_PATH)
    xs: list[float | None] = []
    ys: list[str | None] = []
    for row in pieces.sort("start_ns").iter_rows(named=True):
        here = lanes.get(base.short(row["worker_id"], 20)) if row["worker_id"] else None
        if here is None:
            xs, ys = [*xs, None], [*ys, None]
            continue
        xs += [(row["start_ns"] - start_ns) / 1e9, (row["end_ns"] - start_ns) / 1e9]
        ys += [here, here]
    shown = {"name": "critical path", "x": xs, "y": ys, "mode": "lines"}
    # On a dark bar the line alone is lost: it lies on a wider one of the paper's colour.
    paper = {"color": layout.hoverlabel.bgcolor, "width": 7}
    figure.add_trace(go.Scatter(shown, line=paper, showlegend=False, hoverinfo="skip"))
    said = "the end waited for this: %{x:.1f} s<extra></extra>"
    line = {"color": layout.font.color, "width": 3}
    return figure.add_trace(go.Scatter(shown, line=line, hovertemplate=said))


_PATH: Final = 400
"""Pieces of the path that are drawn, the longest ones."""


def merged(strips: pl.DataFrame, figure: go.Figure) -> int:
    """Pieces that are part of another one in their strip."""
    bars: Any = figure.data
    return strips.height - sum(len(bar.x) for bar in bars)


def drawn(strips: pl.DataFrame) -> pl.DataFrame:
    """Pieces by start, at most PIECES and one a worker; every instant that was in one is in one.

    A piece made of several has the state that most of its time had, and that worker's last degree.
    """
    if strips.height <= PIECES:
        return strips.sort("start_ns", "worker_id")
    length, before = pl.col("end_ns") - pl.col("start_ns"), pl.col("worker_id").shift(1)
    long = length.rank("ordinal", descending=True) <= PIECES // 2
    # Who asks for thousands of pieces is given the longest: gaps of what was left out are narrow.
    pixel = (pl.col("end_ns").max() - pl.col("start_ns").min()) / PIXELS
    gap = pl.col("start_ns") - pl.col("end_ns").shift(1)
    follows = pl.col("worker_id").eq_missing(before) & (gap <= pixel)
    begins = (pl.col("long") | pl.col("long").shift(1) | ~follows).fill_null(True)
    return (
        strips.with_columns(long=long)
        .sort("worker_id", "start_ns")
        .with_columns(piece=begins.cum_sum(), took=length)
        .with_columns(of_state=pl.col("took").sum().over("piece", "state"))
        .group_by("piece")
        .agg(
            pl.col("worker_id").first(),
            pl.col("degree").last(),
            pl.col("state").sort_by("of_state", "state", descending=True).first(),
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
        )
        .sort("start_ns", "worker_id")
    )


def lane(worker_id: object, degree: object) -> str:
    """`w0 · TP2`; GPUs in no worker have a lane of their own."""
    if worker_id is None:
        return "no worker"
    return base.short(worker_id, 20) + (f" · TP{degree}" if degree else "")


def _lanes(strips: pl.DataFrame) -> list[str]:
    last = strips.group_by("worker_id").agg(pl.col("degree").last())
    rows = sorted(last.iter_rows(), key=lambda row: (row[0] is None, len(str(row[0])), str(row[0])))
    return [lane(worker_id, degree) for worker_id, degree in rows]


def _trace(state: str, pieces: pl.DataFrame, mode: theme.Mode, start_ns: int) -> go.Bar:
    of = theme.meaning(state)
    name = of.label if state in theme.STATES else base.text(state)
    lengths = [
        (end - begin) / 1e9 for begin, end in pieces.select("start_ns", "end_ns").iter_rows()
    ]
    last = {lane_id: degree for lane_id, degree in pieces.select("worker_id", "degree").iter_rows()}
    return go.Bar(
        name=name,
        orientation="h",
        base=[(begin - start_ns) / 1e9 for begin in pieces["start_ns"]],
        x=lengths,
        y=[lane(worker_id, last[worker_id]) for worker_id in pieces["worker_id"]],
        marker=base.marker(of, mode),
        customdata=[theme.seconds(length) for length in lengths],
        hovertemplate=f"<b>{name}</b> for %{{customdata}}<br>from %{{base:.1f}} s"
        "<extra>%{y}</extra>",
    )
