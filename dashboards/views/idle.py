"""GPUs idle: on which workers, for whom, along which chain, and how much could be got back?

The partition by worker and degree, idle time by whom it waited for, the critical path to the end,
and starving that a placement could have filled beside starving that nothing could.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.dashboards import cards, scope, shell, theme
from heddle.dashboards.figures import accounts, strip
from heddle.dashboards.views import findings

BLAMED_BY: Final = ("trajectory", "tool", "group", "worker", "state")
_COLUMN = st.column_config
PATH: Final[dict[str, Any]] = {
    "at_s": _COLUMN.NumberColumn("from (s)", format="%.1f"),
    "took_s": _COLUMN.NumberColumn("took (s)", format="%.2f"),
    "doing": _COLUMN.TextColumn("doing"),
    "worker_id": _COLUMN.TextColumn("worker"),
    "tool_name": _COLUMN.TextColumn("tool"),
}


def page() -> None:
    """What the idle GPU time was."""
    shell.framed("GPUs idle", _body)


def _body(chosen: shell.Scope) -> None:
    _worth(chosen)
    _workers(chosen)
    _blame(chosen)
    _path(chosen)
    findings.sentences(chosen.ask("findings"))


def _worth(chosen: shell.Scope) -> None:
    split = chosen.ask("efficiency")
    if split.is_empty() or not split["total_gpu_ns"][0]:
        st.caption("Nothing of this rollout has been accounted yet.")
        return
    row = split.row(0, named=True)
    total = row["total_gpu_ns"]
    said = (
        ("Busy", "busy_gpu_ns", "A prefill or a decode was in the engine"),
        ("Effective", "effective_gpu_ns", "Busy, counted by how full the batch was"),
        ("Recoverable", "recoverable_gpu_ns", "Starved while another worker was full or queued"),
        ("Unavoidable", "unavoidable_gpu_ns", "Starved while no other worker had work to give"),
    )
    cards.numbers(
        [cards.Number(name, theme.percent((row[at] or 0) / total), why) for name, at, why in said]
    )


def _workers(chosen: shell.Scope) -> None:
    st.subheader("GPU time by worker", anchor=False)
    parts = chosen.ask("partition")
    if parts.is_empty():
        st.caption("No worker has been seen in this rollout yet.")
        return
    cards.figure(
        accounts.stacked(by_worker(parts), cards.mode()), "idle_workers", "GPU time by worker"
    )


def by_worker(parts: pl.DataFrame) -> dict[str, dict[str, int]]:
    """Lane (worker and degree) to state to GPU-ns, workers in order, GPUs in none last."""
    lanes: dict[str, dict[str, int]] = {}
    order = parts.sort(pl.col("worker_id").str.len_chars(), "worker_id", "degree", nulls_last=True)
    for row in order.iter_rows(named=True):
        states = lanes.setdefault(strip.lane(row["worker_id"], row["degree"]), {})
        states[row["state"]] = states.get(row["state"], 0) + row["gpu_ns"]
    return lanes


def _blame(chosen: shell.Scope) -> None:
    st.subheader("Whom idle GPUs waited for", anchor=False)
    by = scope.choose(
        "by", "By", list(BLAMED_BY), default="trajectory", widget=st.segmented_control
    )
    blamed = chosen.ask("blame", by=by)
    if blamed.is_empty():
        st.caption("No idle time is blamed on any.")
    else:
        findings.blame(blamed, f"idle_blame_{by}", opens=by == "trajectory")


def _path(chosen: shell.Scope) -> None:
    st.subheader("What the end waited for", anchor=False)
    path = chosen.ask("critical_path")
    if path.is_empty():
        st.caption("There is no critical path yet.")
        return
    begin, took = int(path["start_ns"][0]), pl.col("end_ns") - pl.col("start_ns")
    sums = path.group_by("doing").agg(took.sum().alias("ns")).sort("ns", descending=True)
    whole = int(sums["ns"].sum()) or 1
    words = [f"{doing} {100 * ns / whole:.0f} %" for doing, ns in sums.head(4).iter_rows()]
    trajectory = path["trajectory_id"][0] or "no trajectory"
    said = f"{theme.nanoseconds(whole)} of {trajectory}: {', '.join(words)}."
    st.markdown(cards.plain(said))
    timed = path.with_columns(at_s=(pl.col("start_ns") - begin) / 1e9, took_s=took / 1e9)
    cards.table(timed, "idle_path", columns=PATH, height=320)
