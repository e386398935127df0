"""What did this trajectory do, where did its time go, and why was it treated so?

A waterfall in worker lanes, its time in parts, the steps, the decisions with their reasons, the
spans as they were sent. A running one is drawn up to the collector's latest word.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.dashboards import cards, client, facts, scope, shell, theme
from heddle.dashboards.reports.trajectory import Report, trajectory_report
from heddle.dashboards.views import exporting
from heddle.dashboards.views import trajectory_detail as detail

_COLUMN = st.column_config
STEPS: Final[dict[str, Any]] = {
    "step_index": _COLUMN.NumberColumn("step", width=45),
    "worker_id": _COLUMN.TextColumn("worker", width=60),
    "state": _COLUMN.TextColumn("state", width=65),
    "total_s": _COLUMN.NumberColumn("all (s)", width=55, format="%.2f"),
    "held_s": _COLUMN.NumberColumn("held (s)", width=60, format="%.2f"),
    "queue_s": _COLUMN.NumberColumn("queue (s)", width=70, format="%.2f"),
    "prefill_s": _COLUMN.NumberColumn("prefill (s)", width=72, format="%.2f"),
    "decode_s": _COLUMN.NumberColumn("decode (s)", width=76, format="%.2f"),
    "input_tokens": _COLUMN.NumberColumn("in", width=58, format="localized"),
    "cached": _COLUMN.NumberColumn("cached", width=62, format=theme.PERCENT),
    "output_tokens": _COLUMN.NumberColumn("out", width=55, format="localized"),
    "predicted_p50": _COLUMN.NumberColumn("left (p50)", width=68, format="localized"),
    "retractions": _COLUMN.NumberColumn("retracted", width=66),
    "finish_reason": _COLUMN.TextColumn("ended", width=56),
    "error_type": _COLUMN.TextColumn("error", width=48),
}
DECISIONS: Final[dict[str, Any]] = {
    "at": _COLUMN.TextColumn("at", width="small"),
    "what": _COLUMN.TextColumn("decision", width="medium"),
    "because": _COLUMN.TextColumn("because", width="large"),
}
TOOLS: Final[dict[str, Any]] = {
    "step_index": _COLUMN.NumberColumn("after step", width="small"),
    "tool_name": _COLUMN.TextColumn("tool"),
    "state": _COLUMN.TextColumn("state"),
    "duration_s": _COLUMN.NumberColumn("took (s)", format="%.2f"),
    "inferred": _COLUMN.CheckboxColumn("seen as a gap"),
    "error_type": _COLUMN.TextColumn("error"),
}
MOVES: Final[dict[str, Any]] = {
    "step_index": _COLUMN.NumberColumn("before step", width="small"),
    "move_source": _COLUMN.TextColumn("from"),
    "move_target": _COLUMN.TextColumn("to"),
    "move_method": _COLUMN.TextColumn("how"),
    "move_tokens": _COLUMN.NumberColumn("tokens", format="localized"),
    "move_hit_tokens": _COLUMN.NumberColumn("found cached", format="localized"),
    "hidden_s": _COLUMN.NumberColumn("behind a tool (s)", format="%.2f"),
    "exposed_s": _COLUMN.NumberColumn("waited for (s)", format="%.2f"),
    "because": _COLUMN.TextColumn("because", width="large"),
}
SPANS: Final[dict[str, Any]] = {
    "name": _COLUMN.TextColumn("span", width=130),
    "service": _COLUMN.TextColumn("service", width=80),
    "at": _COLUMN.TextColumn("start", width=190),
    "took_s": _COLUMN.NumberColumn("took (s)", width=64, format="%.3f"),
    "status": _COLUMN.TextColumn("status", width=56),
    "error_type": _COLUMN.TextColumn("error", width=56),
    "attrs": _COLUMN.TextColumn("attributes", width=320),
}
TABS: Final = ("Steps", "Decisions", "Tools and moves", "Spans")


def page() -> None:
    """One trajectory."""
    shell.framed("Trajectory", _body)


def _body(chosen: shell.Scope) -> None:
    frame = client.ask("trajectories", run=chosen.run, rollout=chosen.rollout_id)
    if frame.is_empty():
        cards.no_data(
            "This rollout has no trajectory yet.", "They appear when their first step starts."
        )
        return
    last_first = frame.sort("end_ns", "trajectory_id", descending=[True, False], nulls_last=False)
    rows = {str(row["trajectory_id"]): row for row in last_first.iter_rows(named=True)}
    picked = _pick(rows)
    if picked not in rows:
        cards.nothing_matches(f"There is no trajectory {picked} in this rollout.", ["trajectory"])
        return
    every = cards.REFRESH_S if chosen.live and rows[picked]["state"] == "running" else None
    st.fragment(_panels, run_every=every)(chosen, picked, frame)


def _pick(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Last to finish first, which is the one people come for."""
    asked = scope.get("trajectory")
    scope.choose(
        "trajectory",
        "Trajectory, last to finish first",
        list(rows),
        default=next(iter(rows)),
        said=lambda one: f"{one}  ·  {theme.seconds(rows[one]['duration_s'])}",
    )
    return asked or next(iter(rows))


def _panels(chosen: shell.Scope, trajectory: str, frame: pl.DataFrame) -> None:
    report = _report(chosen, trajectory)
    _headline(report)
    cards.numbers(_numbers(report) + detail.cost(chosen, report))
    st.subheader("Moment by moment", anchor=False)
    detail.drawn(report, chosen.zone)
    whose = {"run": chosen.run, "trajectory": trajectory}
    shell.later(
        "trajectory",
        partial(detail.figures, report),
        partial(shell.apart, _tables, chosen, report),
        partial(detail.neighbours, frame, report),
        partial(_exports, report),
        partial(exporting.popover, whose, "trajectory"),
    )


def _tables(chosen: shell.Scope, report: Report) -> None:
    """Only the open tab is filled: 2,000 spans nobody looks at are not sent."""
    steps, decisions, tools, spans = scope.tabs("tab", TABS)
    if steps.open:
        with steps:
            cards.table(_step_rows(report.steps), "trajectory_steps", columns=STEPS)
    if decisions.open:
        with decisions:
            _decisions(report)
    if tools.open:
        with tools:
            _tools(report)
    if spans.open:
        with spans:
            _spans(chosen, report.trajectory)


@st.cache_resource(ttl=client.SETTLED_S, max_entries=4, show_spinner=False)
def _settled(url: str, run: str, trajectory: str) -> Report:
    """Of a finished rollout: cutting 50,000 spans into pieces takes a second."""
    del url
    return trajectory_report(client, run, trajectory)


def _report(chosen: shell.Scope, trajectory: str) -> Report:
    if chosen.is_running:
        return trajectory_report(client, chosen.run, trajectory)
    return _settled(client.places().collector, chosen.run, trajectory)


def _headline(report: Report) -> None:
    row = report.summary
    state = "still running" if row["state"] == "running" else str(row["state"])
    said = f"**{theme.seconds(row['duration_s'])}**, {cards.plain(state)}: "
    said += cards.plain(facts.cause(row))
    where = [f"Group {row['group_id']}" if row["group_id"] else "", str(row["task"] or "")]
    words = ", ".join(word for word in where if word)
    st.markdown(said + (f". {cards.plain(words)}." if words else "."))


def _numbers(report: Report) -> list[cards.Number]:
    row, cached = report.summary, report.cached_share
    off = row["predicted_p50"]
    foreseen = "not predicted" if off is None else f"{theme.count(off)} predicted at its first step"
    return [
        cards.Number("Steps", str(row["steps"] or 0), "LLM calls that ended"),
        cards.Number("Output tokens", theme.count(row["output_tokens"]), foreseen),
        cards.Number("Cache hits", theme.percent(cached), "Prompt tokens found in the cache"),
        cards.Number("Tools", theme.seconds(row["tool_s"]), f"{row['tool_calls'] or 0} calls"),
        cards.Number("Moves", str(row["moves"] or 0), f"Seen on {row['workers'] or 0} workers"),
        cards.Number("Errors", str(row["errors"] or 0), "Spans of it that failed"),
    ]


def _step_rows(steps: pl.DataFrame) -> pl.DataFrame:
    seconds = [(pl.col(f"{one}_ns") / 1e9).alias(f"{one}_s") for one in _PHASES]
    return steps.with_columns(
        *seconds,
        pl.col("predicted_p50").round().cast(pl.Int64),
        total_s=(pl.col("end_ns") - pl.col("start_ns")) / 1e9,
        cached=pl.when(pl.col("input_tokens") > 0).then(
            100 * pl.col("cached_tokens") / pl.col("input_tokens")
        ),
    )


_PHASES: Final = ("held", "queue", "prefill", "decode")


def _decisions(report: Report) -> None:
    if not report.decisions:
        st.caption("No decision about it came with a reason.")
        return
    rows = [
        {"at": theme.nanoseconds(one.since_ns), "what": one.what, "because": one.because}
        for one in report.decisions
    ]
    cards.table(pl.DataFrame(rows), "trajectory_decisions", columns=DECISIONS)


def _tools(report: Report) -> None:
    if report.tools.is_empty() and report.moves.is_empty():
        st.caption("No tool call and no move of it has been seen.")
    if not report.tools.is_empty():
        cards.table(report.tools, "trajectory_tools", columns=TOOLS)
    if not report.moves.is_empty():
        cards.table(report.moves, "trajectory_moves", columns=MOVES)


def _spans(chosen: shell.Scope, trajectory: str) -> None:
    spans = client.ask("spans", run=chosen.run, trajectory=trajectory, limit=2_000)
    if spans.is_empty():
        st.caption("No span of it is kept.")
        return
    at = [theme.moment(start_ns, chosen.zone) for start_ns in spans["start_ns"]]
    shown = spans.with_columns(
        at=pl.Series("at", at, dtype=pl.String),
        took_s=(pl.col("end_ns") - pl.col("start_ns")) / 1e9,
    )
    cards.table(shown, "trajectory_spans", columns=SPANS)
    if spans.height >= 2_000:
        st.caption("The first 2,000 spans; heddle export writes all of them.")


def _exports(report: Report) -> None:
    with st.container(horizontal=True):
        name = report.file_stem
        st.download_button(
            "Report (HTML)",
            report.to_html,
            file_name=f"{name}.html",
            mime="text/html",
            key="trajectory_html",
            on_click="ignore",
        )
        st.download_button(
            "Report (JSON)",
            report.to_json,
            file_name=f"{name}.json",
            mime="application/json",
            key="trajectory_json",
            on_click="ignore",
        )
