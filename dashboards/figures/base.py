"""How does every figure look before it has data? Plotly only, no Streamlit.

A figure never holds more than about MARKS marks: a browser stays quick and the eye sees no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape
from typing import Any, Final

import plotly.graph_objects as go
import polars as pl

from heddle.dashboards.figures import ticks
from heddle.dashboards.theme import INK, Meaning, Mode, count

MARKS: Final = 2_000
CLOUD: Final = 600
"""Of these in a cloud of dots: each is a node for the browser, and 1,600 took it 0.4 s."""
TOP: Final = 0.01
"""The share of the highest values that thinning never drops."""
NAMES: Final = 12
"""Names along a level axis at most: fifty rollouts' stood in each other."""
FONT: Final = "Source Sans, Source Sans Pro, system-ui, sans-serif"


def text(value: object) -> str:
    """Plotly reads a little HTML in its labels; what came from a span must not be read so."""
    return escape(str(value), quote=False)


def short(value: object, limit: int = 28) -> str:
    """Middle-cut, so that ids which differ at the end stay apart."""
    whole = str(value)
    if len(whole) <= limit:
        return text(whole)
    head = (limit - 1) // 2
    return text(f"{whole[:head]}…{whole[-(limit - 1 - head) :]}")


def blank(
    mode: Mode, *, height: int, x: str = "", y: str = "", names: Iterable[str] = ()
) -> go.Figure:
    """Axes, fonts and legend of the house; the caller adds traces. *names* stand along y."""
    ink = INK[mode]
    axis: dict[str, Any] = {
        "gridcolor": ink.grid,
        "zeroline": False,
        "linecolor": ink.grid,
        "automargin": True,
        "tickfont": {"color": ink.soft, "size": 12},
    }
    title = {"font": {"color": ink.soft, "size": 12}, "standoff": 8}
    return go.Figure(
        layout={
            "height": height,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": FONT, "color": ink.text, "size": 13},
            "margin": {"l": _left(y, names), "r": 16, "t": 8, "b": 44 if x else 8},
            "hoverlabel": {"bgcolor": ink.paper, "font": {"color": ink.text}, "align": "left"},
            "legend": {
                "orientation": "h",
                "y": 1.0,
                "yanchor": "bottom",
                "x": 0,
                "traceorder": "normal",
                "itemwidth": 30,
            },
            "bargap": 0.28,
            "xaxis": axis | {"title": title | {"text": x}},
            "yaxis": axis | {"title": title | {"text": y}},
        }
    )


def _left(y: str, names: Iterable[str]) -> int:
    """Pixels that title and names need. Plotly makes room by itself where it is too little, but
    then draws a figure twice: half of its time."""
    longest = max(map(len, names), default=0)
    return (8 if not longest else min(30 + math.ceil(5.8 * longest), 260)) + (40 if y else 0)


def thinned(frame: pl.DataFrame, by: str, marks: int = MARKS) -> pl.DataFrame:
    """At most *marks* rows in their order: those of the highest percent of *by*, others evenly.

    Of a percent that alone is more than half of the marks, its highest.
    """
    if frame.height <= marks:
        return frame
    numbered = frame.with_row_index("_row")
    ranked = numbered.sort(by, "_row", descending=[True, False], nulls_last=True)
    kept = max(1, min(math.ceil(frame.height * TOP), marks // 2))
    top, rest = ranked.head(kept), ranked.tail(-kept).sort("_row")
    every = math.ceil(rest.height / (marks - kept))
    return pl.concat([top, rest.gather_every(every)]).sort("_row").drop("_row")


def marker(of: Meaning, mode: Mode) -> dict[str, Any]:
    """Fill and pattern of one meaning, with a hairline of the paper between neighbours."""
    pattern = {"shape": of.pattern, "size": 6, "solidity": 0.25, "fgcolor": INK[mode].soft}
    return {
        "color": of.colour(mode),
        "line": {"width": 0},
        "pattern": {**pattern, "fillmode": "overlay"} if of.pattern else {},
    }


def faded(colour: str, share: float = 0.2) -> str:
    """*colour* (#rrggbb) as a fill that lets the grid through."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share})"


def log_ticks(low: float, high: float, *, whole: bool = False) -> dict[str, Any]:
    """A logarithmic axis with readable numbers however wide it is; `whole` of what is counted."""
    if not 0 < low <= high:
        return {"type": "log"}
    values = ticks.logarithmic(low, high, whole=whole)
    axis = {"type": "log", "tickvals": values, "ticktext": ticks.words(values, _short)}
    if ticks.is_one(low, high):
        # Plotly would draw a decade to both sides, and the numbers in each other.
        axis["range"] = [math.log10(low * (1 - ticks.ROOM)), math.log10(high * (1 + ticks.ROOM))]
    return axis


def whole_ticks(values: Iterable[float | None], *, from_zero: bool = True) -> dict[str, Any]:
    """Of an axis that counts: no number between two."""
    known = [value for value in values if value is not None]
    low = 0.0 if from_zero else min(known, default=0.0)
    step = ticks.round_step(max([*known, low]) - low)
    return {"tick0": 0, "dtick": max(step, 1.0)}


def _short(value: float) -> str:
    return count(value).replace(".0", "") if value >= 1000 else f"{value:g}"


def config() -> dict[str, Any]:
    """No logo and no outside link on a figure."""
    return {"displaylogo": False, "displayModeBar": False, "responsive": True}
