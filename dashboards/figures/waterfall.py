"""What did one trajectory do, and where? Its steps, tools and moves in worker lanes; no Streamlit.

`pieces` cuts the spans into the phases of a step and is what the report draws too: one truth.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import plotly.graph_objects as go
import polars as pl

from heddle.collector.phases import PHASES, UNKNOWN, phases
from heddle.dashboards import theme
from heddle.dashboards.figures import base

TOOLS: Final = "tools"
GAPS: Final = "gaps"
GAP_NS: Final = 500_000_000
"""Shorter ones are the agent's own thinking between a tool's end and the next step."""
WHEN: Final = ("start_ns", "end_ns", "state")
STEP: Final = ("step_index", "worker_id", *WHEN, *(f"{one}_ns" for one in PHASES))
TOOL: Final = ("tool_name", "error_type", *WHEN)
MOVE: Final = ("move_source", "move_target", "start_ns", "end_ns", "hidden_s", "exposed_s")
ORDER: Final = ("start_ns", "lane", "end_ns")
ERROR: Final = "#c62828"
Closed: TypeAlias = Callable[[dict[str, Any]], int]


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
    """By start, then lane. What still runs goes on to `now_ns` as one `running` piece; `unknown` is
    what nobody told: steps without phases, steps that are missing, ends that never came.
    """
    ordered = steps.sort("start_ns", "step_index")
    starts: list[int] = ordered["start_ns"].drop_nulls().to_list()

    def closed(row: dict[str, Any]) -> int:
        """Where what has no end is drawn to, as the collector has it: its next step, else now."""
        at = bisect_right(starts, row["start_ns"])
        return starts[at] if at < len(starts) else max(now_ns, row["start_ns"])

    found = [piece for row in _rows(ordered, STEP) for piece in _step(row, closed)]
    found += [_tool(row, closed) for row in _rows(tools, TOOL)]
    found += [piece for row in _rows(moves, MOVE) for piece in _move(row, now_ns)]
    found += _missing(ordered)
    return sorted(found, key=itemgetter(*(Piece._fields.index(one) for one in ORDER)))


def _rows(frame: pl.DataFrame, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Without the columns that nobody reads here: of 40, they took half of the time."""
    return frame.select(columns).iter_rows(named=True)


def _step(row: dict[str, Any], closed: Closed) -> Iterator[Piece]:
    lane, said = str(row["worker_id"] or "no worker yet"), f"step {row['step_index']}"
    if row["end_ns"] is None:
        yield Piece(_going(row), lane, row["start_ns"], closed(row), said)
        return
    for phase, start_ns, end_ns in phases(row):
        yield Piece(phase, lane, start_ns, end_ns, said)


def _going(row: dict[str, Any]) -> str:
    """What a thing without an end is: it runs, unless its end will never come."""
    return UNKNOWN if row["state"] == "abandoned" else "running"


def _tool(row: dict[str, Any], closed: Closed) -> Piece:
    said = str(row["tool_name"] or "tool") + (
        f" ({row['error_type']})" if row["error_type"] else ""
    )
    if row["end_ns"] is None:
        return Piece(_going(row), TOOLS, row["start_ns"], closed(row), said)
    return Piece("tool", TOOLS, row["start_ns"], row["end_ns"], said)


def _move(row: dict[str, Any], now_ns: int) -> Iterator[Piece]:
    """First what a tool hid, then what the trajectory waited for; without a word, all of it."""
    said = f"{row['move_source']} to {row['move_target']}"
    lane, start_ns = str(row["move_target"] or TOOLS), row["start_ns"]
    if row["end_ns"] is None:
        yield Piece("running", lane, start_ns, max(now_ns, start_ns), said)
        return
    length_ns = row["end_ns"] - start_ns
    waited_ns = length_ns - round((row["hidden_s"] or 0) * 1e9)
    if row["exposed_s"] is not None:
        waited_ns = round(row["exposed_s"] * 1e9)
    turn_ns = row["end_ns"] - min(max(waited_ns, 0), max(length_ns, 0))
    if turn_ns > start_ns:
        yield Piece("hidden", lane, start_ns, turn_ns, said)
    if row["end_ns"] > turn_ns:
        yield Piece("move", lane, turn_ns, row["end_ns"], said)


def _missing(ordered: pl.DataFrame) -> Iterator[Piece]:
    """From the step before to the step after where an index is missing: its span was lost."""
    known = ordered.filter(pl.all_horizontal(pl.col("step_index", "start_ns").is_not_null()))
    rows = known.select("step_index", "start_ns", "end_ns").rows()
    for (before, _, end_ns), (after, start_ns, _) in pairwise(rows):
        if after > before + 1 and end_ns is not None and start_ns > end_ns:
            which = f"step {before + 1}"
            which += f" to {after - 1}" if after > before + 2 else ""
            yield Piece(UNKNOWN, GAPS, end_ns, start_ns, f"{which} never came")


RANKED: Final[tuple[str, ...]] = (
    "decode",
    "prefill",
    "move",
    "queue",
    "held",
    "tool",
    UNKNOWN,
    "running",
)
"""Which phase counts where several last, as the collector has it; `hidden` is a tool's time."""


def parts(found: Sequence[Piece], start_ns: int, end_ns: int) -> dict[str, int]:
    """Phase to nanoseconds of [start_ns, end_ns), each instant in one; they sum to all of it.

    What no piece covers is the orchestrator's, `rest`: between a tool's end and the next step.
    """
    changes: list[tuple[int, int, int]] = []
    ranks = {phase: rank for rank, phase in enumerate(RANKED)}
    for piece in found:
        begin, end = max(piece.start_ns, start_ns), min(piece.end_ns, end_ns)
        if piece.phase in ranks and begin < end:
            changes += [(begin, ranks[piece.phase], 1), (end, ranks[piece.phase], -1)]
    spent: dict[str, int] = dict.fromkeys((*RANKED, "rest"), 0)
    lasting, at = [0] * len(RANKED), start_ns
    for moment, rank, change in sorted(changes):
        if moment > at:
            now = next((phase for phase, n in zip(RANKED, lasting, strict=True) if n), "rest")
            spent[now] += moment - at
            at = moment
        lasting[rank] += change
    spent["rest"] += max(end_ns - at, 0)
    return {phase: ns for phase, ns in spent.items() if ns}


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
