"""The report's figures as inline SVG, drawn here: no script, no font, no request.

Colours are CSS classes named after the phases, so that one drawing serves light, dark and paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import log10
from typing import Final

from heddle.dashboards import theme
from heddle.dashboards.figures import ticks
from heddle.dashboards.figures.waterfall import Piece, lanes_of

WIDTH: Final = 960
_LEFT: Final = 150
_LANE: Final = 30
MARKS: Final = 2_000


def waterfall(found: Sequence[Piece], marks: int = MARKS) -> str:
    """Lanes of coloured pieces over a time axis; the longest *marks* pieces are drawn."""
    drawn = sorted(found, key=lambda piece: piece.start_ns - piece.end_ns)[:marks]
    lanes = lanes_of(list(found))
    start = min(piece.start_ns for piece in found)
    span = max(max(piece.end_ns for piece in found) - start, 1)
    height = len(lanes) * _LANE + 36
    body = [_lane_label(lane, row) for row, lane in enumerate(lanes)]
    body += _axis(span, len(lanes) * _LANE + 6)
    body += [_piece(piece, lanes.index(piece.lane), start, span) for piece in drawn]
    return _svg(height, "Steps, tools and moves over time", body)


def _x(offset_ns: int, span_ns: int) -> float:
    return _LEFT + (WIDTH - _LEFT - 20) * offset_ns / span_ns


def _lane_label(lane: str, row: int) -> str:
    named = lane if len(lane) <= 20 else lane[:9] + "…" + lane[-10:]
    return f'<text class="lane" x="{_LEFT - 10}" y="{row * _LANE + 19}">{escape(named)}</text>'


def _piece(piece: Piece, row: int, start_ns: int, span_ns: int) -> str:
    x = _x(piece.start_ns - start_ns, span_ns)
    # Half a pixel keeps a millisecond visible in an hour.
    width = max(_x(piece.end_ns - start_ns, span_ns) - x, 0.5)
    of = theme.PHASES.get(piece.phase, theme.OTHER)
    took = theme.nanoseconds(piece.end_ns - piece.start_ns)
    said = escape(f"{of.label}, {piece.said}: {took}")
    return (
        f'<rect class="p-{escape(piece.phase)}" x="{x:.2f}" y="{row * _LANE + 5}" '
        f'width="{width:.2f}" height="{_LANE - 10}"><title>{said}</title></rect>'
    )


def _axis(span_ns: int, top: int) -> list[str]:
    marks: list[str] = []
    for at_s in ticks.even(0.0, span_ns / 1e9):
        x = _x(round(at_s * 1e9), span_ns)
        marks.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{top}"/>')
        marks.append(f'<text class="tick" x="{x:.1f}" y="{top + 18}">{at_s:g} s</text>')
    return marks


def survival(points: Sequence[tuple[float, float]]) -> str:
    """Share of trajectories longer than x seconds, both axes logarithmic; points by x."""
    known = [(x, y) for x, y in points if x > 0 and y > 0]
    if not known:
        return ""
    wide, high = WIDTH - _LEFT - 20, 200
    least_s, most_s = known[0][0], known[-1][0]
    # All lengths may be one.
    room = 1.0 if most_s > least_s * 1.01 else 1.01
    low, top = log10(least_s / room), log10(most_s * room)
    least = min(log10(known[-1][1]), -0.01)
    at = [
        (_LEFT + wide * (log10(x) - low) / (top - low), 8 + high * log10(y) / least)
        for x, y in known
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    body = [f'<polyline class="line" points="{line}"/>']
    if len(at) == 1:
        body = [f'<circle class="dot" cx="{at[0][0]:.1f}" cy="{at[0][1]:.1f}" r="4"/>']
    shares = [one for one in ticks.logarithmic(100 * 10**least, 100) if one <= 100]
    for share in shares:
        y = 8 + high * log10(share / 100) / least
        if y <= high + 8:
            ends = f'x1="{_LEFT}" x2="{WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}"'
            body.append(f'<line class="grid" {ends}/>')
            body.append(f'<text class="lane" x="{_LEFT - 10}" y="{y + 4:.1f}">{share:g} %</text>')
    marks = [at for at in ticks.logarithmic(10**low, 10**top) if low <= log10(at) <= top]
    for at_s, said in zip(marks, ticks.words(marks, theme.seconds, " s"), strict=True):
        x = _LEFT + wide * (log10(at_s) - low) / (top - low)
        body.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="8" y2="{high + 8}"/>')
        body.append(f'<text class="tick" x="{x:.1f}" y="{high + 30}">{said}</text>')
    return _svg(high + 40, "Share of trajectories longer than x", body)


def parts(parts_ns: Mapping[str, int]) -> str:
    """One stacked bar of a trajectory's own time."""
    total = sum(parts_ns.values()) or 1
    body: list[str] = []
    x = 0.0
    for phase in theme.PHASES:
        width = WIDTH * parts_ns.get(phase, 0) / total
        if width:
            body.append(
                f'<rect class="p-{phase}" x="{x:.2f}" y="0" width="{width:.2f}" height="26"/>'
            )
        x += width
    return _svg(26, "Time by part", body)


def _svg(height: int, says: str, body: list[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(says)}">'
        f"{''.join(body)}</svg>"
    )
