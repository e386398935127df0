"""Beside the waterfall: tokens, predictions, what it cost, its errors, and its group's others."""

from __future__ import annotations

from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.collector.errors import CollectorError
from heddle.dashboards import cards, nav, scope, shell, theme
from heddle.dashboards.figures import progress, waterfall
from heddle.dashboards.reports.trajectory import Report

WINDOWS: Final = {"": "all of it", "600": "10 minutes", "60": "1 minute", "10": "10 seconds"}
_COLUMN = st.column_config
NEIGHBOURS: Final[dict[str, Any]] = {
    "trajectory_id": _COLUMN.TextColumn("trajectory", width="medium"),
    "sample_index": _COLUMN.NumberColumn("sample", width="small"),
    "state": _COLUMN.TextColumn("state", width="small"),
    "duration_s": _COLUMN.NumberColumn("time (s)", format="%.1f"),
    "steps": _COLUMN.NumberColumn("steps"),
    "output_tokens": _COLUMN.NumberColumn("tokens", format="localized"),
    "tool_s": _COLUMN.NumberColumn("tools (s)", format="%.1f"),
    "reward": _COLUMN.NumberColumn("reward", format="%.2f"),
    "errors": _COLUMN.NumberColumn("errors"),
}


def drawn(report: Report, zone: str) -> None:
    """The waterfall, all of it or a window of it, with errors and gaps marked."""
    if not report.pieces:
        st.caption("No step of it has been seen yet.")
        return
    begin_ns = report.pieces[0].start_ns
    at_ns = _at(report, begin_ns)
    width = scope.get("window")
    found = report.pieces + waterfall.gaps(report.pieces)
    if width in WINDOWS and width:
        half_ns = int(width) * 500_000_000
        found = [
            piece
            for piece in found
            if piece.end_ns >= at_ns - half_ns and piece.start_ns <= at_ns + half_ns
        ]
    st.caption(f"From {cards.plain(theme.moment(begin_ns, zone))}")
    figure = waterfall.waterfall(found, cards.mode(), start_ns=begin_ns)
    errors = [one for one in report.errors if any(_within(one[0], piece) for piece in found)]
    cards.figure(
        waterfall.marked(figure, errors, begin_ns),
        "trajectory_waterfall",
        "Steps, tools and moves over time by worker",
    )
    if len(found) > waterfall.base.MARKS:
        left = len(found) - waterfall.base.MARKS
        st.caption(f"{left:,} shorter pieces are not drawn; choose a narrower window to see them.")


def _within(at_ns: int, piece: waterfall.Piece) -> bool:
    return piece.start_ns <= at_ns <= piece.end_ns


def _at(report: Report, begin_ns: int) -> int:
    """Window and place in it: typed, or the next error after the one in the address."""
    window_at, place_at, errors_at = st.columns([2, 2, 3], vertical_alignment="bottom")
    with window_at:
        scope.choose("window", "Window", list(WINDOWS), default="", said=lambda one: WINDOWS[one])
    text = scope.get("at", "0")
    offset_s = float(text) if text.replace(".", "", 1).isdigit() else 0.0
    offsets = [(at_ns - begin_ns) / 1e9 for at_ns, _ in report.errors]
    later = [offset for offset in offsets if offset > offset_s + 1e-3]
    with place_at:
        key = "trajectory_at"
        st.session_state[key] = offset_s
        st.number_input("Around second", min_value=0.0, key=key, on_change=_put, args=(key,))
    with errors_at:
        target = (later or offsets or [None])[0]
        word = f"Next error ({len(offsets)})" if offsets else "No errors"
        st.button(
            word, key="trajectory_error", disabled=target is None, on_click=_to, args=(target,)
        )
    return begin_ns + round(offset_s * 1e9)


def _put(key: str) -> None:
    scope.put("at", f"{st.session_state[key]:g}")


def _to(offset_s: float) -> None:
    scope.put("at", f"{offset_s:.3f}")
    if not scope.get("window"):
        scope.put("window", "60")


def figures(report: Report) -> None:
    """Tokens with the cache, and predictions as they changed."""
    if report.steps.is_empty():
        return
    is_predicted = report.steps["predicted_p50"].null_count() < report.steps.height
    left, right = cards.halves(are_two=is_predicted)
    with left:
        st.subheader("Tokens and cache", anchor=False)
        if report.steps.select(pl.col(progress.COUNTED).count()).sum_horizontal()[0] == 0:
            st.caption("No step of it told its tokens.")
        else:
            cards.figure(progress.tokens(report.steps, cards.mode()), "trajectory_tokens", "Tokens")
    with right:
        st.subheader("What was left, as predicted", anchor=False)
        if not is_predicted:
            st.caption("No step of it came with a prediction.")
            return
        figure = progress.predictions(report.steps, cards.mode())
        cards.figure(figure, "trajectory_predictions", "Predicted and actual remaining tokens")


def cost(chosen: shell.Scope, report: Report) -> list[cards.Number]:
    """GPU time it used, and idle GPU time it is blamed for; of a run without phases only that."""
    try:
        found = chosen.ask("cost").filter(pl.col("trajectory_id") == report.trajectory)
    except CollectorError:
        return []
    if found.is_empty():
        return []
    row, mine = found.row(0, named=True), report.summary
    is_told = mine["prefill_s"] is not None or mine["decode_s"] is not None
    used = row["used_gpu_ns"] if is_told or row["used_gpu_ns"] else None
    return [
        cards.Number("Used", theme.gpu_seconds(used), "Its share of busy GPU time"),
        cards.Number("Idle caused", theme.gpu_seconds(row["caused_gpu_ns"]), "GPUs waited for it"),
    ]


def neighbours(frame: pl.DataFrame, report: Report) -> None:
    """The other samples of its prompt; a row opens one."""
    st.subheader("Its group's others", anchor=False)
    group, others = report.summary["group_id"], pl.col("trajectory_id") != report.trajectory
    mine = frame.clear() if group is None else frame.filter(others, pl.col("group_id") == group)
    if mine.is_empty():
        st.caption("It names no group." if group is None else "It is alone in its group.")
        return
    cards.table(
        mine.sort("duration_s", descending=True, nulls_last=True),
        "trajectory_neighbours",
        columns=NEIGHBOURS,
        pick="trajectory_id",
        on_pick=lambda one: nav.go("trajectory", trajectory=one),
    )
