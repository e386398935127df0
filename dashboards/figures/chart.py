"""How does a result nobody foresaw become a figure? Two of its columns, drawn one of four ways.

At most MARKS marks, the highest percent always among them; no Streamlit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import plotly.graph_objects as go
import polars as pl

from heddle.collector.records import FRAMES
from heddle.dashboards import theme
from heddle.dashboards.figures import base

KINDS: Final = ("bars", "line", "points", "histogram")
_UNITS: Final = {
    column.name: column.unit for columns in FRAMES.values() for column in columns if column.unit
}
_BINS: Final = 40


def numeric(frame: pl.DataFrame) -> list[str]:
    """Columns that can be drawn along the upright axis."""
    return [name for name, kind in frame.schema.items() if kind.is_numeric()]


def titled(column: str) -> str:
    """A column as an axis names it: with its unit, where the collector or its name tells one."""
    ends = {"_ns": "ns", "_s": "s", "_ms": "ms", "_tokens": "tokens"}
    unit = _UNITS.get(column) or next((u for end, u in ends.items() if column.endswith(end)), "")
    return f"{base.text(column)} ({unit})" if unit else base.text(column)


def chart(frame: pl.DataFrame, x: str, y: str, kind: str, mode: theme.Mode) -> go.Figure:
    """*y* over *x*; the histogram counts *y* and needs no *x*."""
    if kind == "histogram":
        return _histogram(frame, y, mode)
    rows = base.thinned(frame.filter(pl.col(y).is_not_null()), y)
    figure = base.blank(mode, height=380, x=titled(x), y=titled(y))
    xs, ys = _axis(rows[x]), rows[y].cast(pl.Float64).to_list()
    colour = theme.series(0, mode)
    says = f"{titled(x)} %{{x}}<br>{titled(y)} %{{y}}<extra></extra>"
    for update, name in ((figure.update_xaxes, x), (figure.update_yaxes, y)):
        if rows[name].dtype.is_integer():
            is_bar = kind == "bars" and name == y
            update(base.whole_ticks(rows[name], from_zero=is_bar))
    if kind == "bars":
        figure.add_trace(go.Bar(x=xs, y=ys, marker={"color": colour}, hovertemplate=says))
    else:
        how = "lines" if kind == "line" else "markers"
        look = {"line": {"color": colour, "width": 2}, "marker": {"color": colour, "size": 6}}
        figure.add_trace(go.Scatter(x=xs, y=ys, mode=how, hovertemplate=says, **look))
    return figure


def _axis(column: pl.Series) -> list[object]:
    if column.dtype.is_numeric():
        return column.to_list()
    if column.dtype.is_temporal():
        return [str(value) for value in column]
    return [base.short(value, 32) for value in column]


def _histogram(frame: pl.DataFrame, y: str, mode: theme.Mode) -> go.Figure:
    """Rows per bin over the whole range, the maximum in the last."""
    figure = base.blank(mode, height=380, x=titled(y), y="rows")
    values = frame[y].cast(pl.Float64).drop_nulls().drop_nans().to_numpy()
    if values.size:
        counts, edges = np.histogram(values, bins=_BINS)
        figure.add_trace(
            go.Bar(
                x=((edges[:-1] + edges[1:]) / 2).tolist(),
                y=counts.tolist(),
                width=(edges[1:] - edges[:-1]).tolist(),
                marker={"color": theme.series(0, mode)},
                hovertemplate="%{y} rows near %{x:.4g}<extra></extra>",
            )
        )
        figure.update_yaxes(base.whole_ticks(counts.tolist()))
        if frame[y].dtype.is_integer():
            figure.update_xaxes(base.whole_ticks(values.tolist(), from_zero=False))
    return figure
