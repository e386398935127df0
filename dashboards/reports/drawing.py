"""The report's figures as inline SVG, drawn here: no script, no font, no request.

Colours are CSS classes named after the phases, so that one drawing serves light, dark and paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from heddle.dashboards import theme
from heddle.dashboards.figures.waterfall import Piece, lanes_of

WIDTH: Final = 960
_LEFT: Final = 150
_LANE: Final = 30
MARKS: Final = 2_000


def waterfall(found: Sequence[Piece]) -> str:
    """Lanes of coloured pieces over a time axis; the longest MARKS pieces are drawn."""
    drawn = sorted(found, key=lambda piece: piece.start_ns - piece.end_ns)[:MARKS]
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
    step_s = _tick_s(span_ns / 1e9)
    marks: list[str] = []
    at_s = 0.0
    while at_s * 1e9 <= span_ns:
        x = _x(round(at_s * 1e9), span_ns)
        marks.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{top}"/>')
        marks.append(f'<text class="tick" x="{x:.1f}" y="{top + 18}">{at_s:g} s</text>')
        at_s = round(at_s + step_s, 9)
    return marks


def _tick_s(span_s: float) -> float:
    """A round step that gives between four and ten marks."""
    step = 1e-6
    for factor in range(40):
        step = (1, 2, 5)[factor % 3] * 10 ** (factor // 3 - 6)
        if span_s / step <= 9:
            return step
    return step


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
