"""What did one trajectory do, and where? Its steps, tools and moves in worker lanes; no Streamlit.

`pieces` cuts the spans into the phases of a step and is what the report draws too: one truth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import plotly.graph_objects as go
import polars as pl

from heddle.dashboards import theme
from heddle.dashboards.figures import base

TOOLS: Final = "tools"
GAPS: Final = "gaps"
GAP_NS: Final = 500_000_000
"""Shorter ones are the agent's own thinking between a tool's end and the next step."""
PHASES: Final = ("held", "queue", "prefill", "decode")
STEP: Final = ("step_index", "worker_id", "start_ns", "end_ns", *(f"{one}_ns" for one in PHASES))
TOOL: Final = ("tool_name", "error_type", "start_ns", "end_ns")
MOVE: Final = ("move_source", "move_target", "start_ns", "end_ns")
ORDER: Final = ("start_ns", "lane", "end_ns")
ERROR: Final = "#c62828"


class Piece(NamedTuple):
    """One coloured stretch of a trajectory's life; `lane` is a worker's id or `tools`.

    A tuple, since 50,000 spans are 100,000 of them (0.6 s as a frozen dataclass).
    """

    phase: str
    lane: str
    start_ns: int
    end_ns: int
    said: str


def pieces(
    steps: pl.DataFrame, tools: pl.DataFrame, moves: pl.DataFrame, *, now_ns: int
) -> list[Piece]:
    """By start, then lane; what has not ended yet runs to `now_ns` as one `running` piece."""
    found = [piece for row in _rows(steps, STEP) for piece in _step(row, now_ns)]
    found += [_tool(row, now_ns) for row in _rows(tools, TOOL)]
    found += [_move(row, now_ns) for row in _rows(moves, MOVE)]
    return sorted(found, key=itemgetter(*(Piece._fields.index(one) for one in ORDER)))


def _rows(frame: pl.DataFrame, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Without the columns that nobody reads here: of 40, they took half of the time."""
    return frame.select(columns).iter_rows(named=True)


def _step(row: dict[str, Any], now_ns: int) -> Iterator[Piece]:
    lane, said = str(row["worker_id"] or "no worker yet"), f"step {row['step_index']}"
    at, end = row["start_ns"], row["end_ns"]
    if end is None:
        yield Piece("running", lane, at, max(now_ns, at), said)
        return
    for phase in PHASES:
        length = row[f"{phase}_ns"] or 0
        if length > 0:
            yield Piece(phase, lane, at, at + length, said)
            at += length
    if end > at:
        yield Piece("rest", lane, at, end, said)


def _tool(row: dict[str, Any], now_ns: int) -> Piece:
    said = str(row["tool_name"] or "tool") + (
        f" ({row['error_type']})" if row["error_type"] else ""
    )
    end = row["end_ns"]
    if end is None:
        return Piece("running", TOOLS, row["start_ns"], max(now_ns, row["start_ns"]), said)
    return Piece("tool", TOOLS, row["start_ns"], end, said)


def _move(row: dict[str, Any], now_ns: int) -> Piece:
    said = f"{row['move_source']} to {row['move_target']}"
    end = row["end_ns"] or max(now_ns, row["start_ns"])
    return Piece("move", str(row["move_target"] or TOOLS), row["start_ns"], end, said)


def gaps(found: Sequence[Piece]) -> list[Piece]:
    """Stretches of GAP_NS and more that nothing covers, as pieces of a lane of their own."""
    missing: list[Piece] = []
    until = found[0].start_ns if found else 0
    for piece in sorted(found, key=lambda one: one.start_ns):
        if piece.start_ns - until >= GAP_NS:
            missing.append(Piece("gap", GAPS, until, piece.start_ns, "nothing was reported"))
        until = max(until, piece.end_ns)
    return missing


def marked(figure: go.Figure, errors: Sequence[tuple[int, str]], start_ns: int) -> go.Figure:
    """*figure* with a cross at each error, in the lane of tools' errors on top."""
    if not errors:
        return figure
    shown = list(errors)[: base.MARKS // 4]
    layout: Any = figure.layout
    lanes = layout.yaxis.categoryarray
    return figure.add_trace(
        go.Scatter(
            name="error",
            x=[(at_ns - start_ns) / 1e9 for at_ns, _ in shown],
            y=[lanes[0] if lanes else ""] * len(shown),
            mode="markers",
            # The rim keeps it apart from the bar below, whose colour it may share.
            marker={
                "symbol": "x",
                "size": 11,
                "color": ERROR,
                "line": {"width": 1.5, "color": "#ffffff"},
            },
            customdata=[base.short(said, 80) for _, said in shown],
            hovertemplate="%{customdata}<br>at %{x:.2f} s<extra></extra>",
        )
    )


def waterfall(found: list[Piece], mode: theme.Mode, *, start_ns: int) -> go.Figure:
    """Worker lanes in the order of their first use, tools last; the longest MARKS pieces."""
    drawn = sorted(found, key=lambda piece: piece.start_ns - piece.end_ns)[: base.MARKS]
    lanes = lanes_of(found)
    height, x = 108 + 34 * max(len(lanes), 1), "since its first step (s)"
    figure = base.blank(mode, height=height, x=x, names=lanes)
    for phase, of in theme.PHASES.items():
        mine = [piece for piece in drawn if piece.phase == phase]
        if mine:
            figure.add_trace(_trace(of, mine, mode, start_ns))
    figure.update_layout(barmode="overlay", bargap=0.3)
    figure.update_yaxes(
        categoryorder="array",
        categoryarray=[base.short(lane, 24) for lane in lanes],
        autorange="reversed",
        showgrid=False,
    )
    last_s = max((piece.end_ns - start_ns for piece in found), default=0) / 1e9
    first_s = min((piece.start_ns - start_ns for piece in found), default=0) / 1e9
    figure.update_xaxes(range=[first_s, last_s + (last_s - first_s) * 0.01 or 1])
    return figure


def lanes_of(found: list[Piece]) -> list[str]:
    """Lanes by first use, the tools' lane last."""
    seen = dict.fromkeys(piece.lane for piece in found)
    last = (TOOLS, GAPS)
    return [lane for lane in seen if lane not in last] + [lane for lane in last if lane in seen]


def _trace(of: theme.Meaning, mine: list[Piece], mode: theme.Mode, start_ns: int) -> go.Bar:
    return go.Bar(
        name=of.label,
        orientation="h",
        base=[(piece.start_ns - start_ns) / 1e9 for piece in mine],
        x=[(piece.end_ns - piece.start_ns) / 1e9 for piece in mine],
        y=[base.short(piece.lane, 24) for piece in mine],
        marker=base.marker(of, mode),
        customdata=[
            [base.short(piece.said, 60), theme.nanoseconds(piece.end_ns - piece.start_ns)]
            for piece in mine
        ],
        hovertemplate=f"<b>{of.label}</b>, %{{customdata[0]}}: %{{customdata[1]}}"
        "<br>from %{base:.2f} s<extra>%{y}</extra>",
    )
