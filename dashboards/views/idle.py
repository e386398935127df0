"""GPUs idle: on which workers, for whom, along which chain, and how much could be got back?

The partition by worker and degree, idle time by whom it waited for, the critical path to the end,
and starving that a placement could have filled beside starving that nothing could.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.dashboards import cards, client, facts, scope, shell, theme
from heddle.dashboards.figures import accounts, strip
from heddle.dashboards.views import findings

LANES: Final = 64
"""Bars of one figure; a fleet of a thousand engines has more."""
SHOWN_ROLLOUTS: Final = 6
BLAMED_BY: Final = ("trajectory", "tool", "group", "worker", "state")
_COLUMN = st.column_config
BY: Final = ("worker", "degree", "rollout")
COUNTERS: Final[dict[str, Any]] = {
    "worker_id": _COLUMN.TextColumn("worker", width="small"),
    "samples": _COLUMN.NumberColumn("polls"),
    "forward_s": _COLUMN.NumberColumn("forward (s)", format="%.1f"),
    "residence_s": _COLUMN.NumberColumn("engine, by spans (s)", format="%.1f"),
    "idle_s": _COLUMN.NumberColumn("idle, by counter (s)", format="%.1f"),
    "host_overhead_s": _COLUMN.NumberColumn("host behind (s)", format="%.1f"),
    "retracted": _COLUMN.NumberColumn("retracted"),
    "kv_usage": _COLUMN.NumberColumn("fullest KV", format=theme.PERCENT),
    "queue": _COLUMN.NumberColumn("longest queue"),
    "host_bound": _COLUMN.CheckboxColumn("host bound"),
}
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
    shell.apart(_partition, chosen)
    shell.later(
        "idle",
        partial(shell.apart, _blame, chosen),
        partial(_path, chosen),
        partial(_counters, chosen),
        partial(_findings, chosen),
    )


def _states(chosen: shell.Scope) -> dict[str, int]:
    return accounts.by_state(chosen.ask("partition"))


def _findings(chosen: shell.Scope) -> None:
    findings.panel(chosen, _states(chosen))


def _worth(chosen: shell.Scope) -> None:
    split = chosen.ask("efficiency")
    states = _states(chosen)
    untold = chosen.untold(states)
    if untold or split.is_empty() or not split["total_gpu_ns"][0]:
        st.caption(cards.plain(untold or "There is no time in this rollout yet."))
        return
    row = split.row(0, named=True)
    total = row["total_gpu_ns"]
    said = (
        ("Busy", "busy_gpu_ns", "A prefill or a decode was in the engine"),
        ("Effective", "effective_gpu_ns", "Busy, counted by how full the batch was"),
        ("Recoverable", "recoverable_gpu_ns", "Starved while another worker was full or queued"),
        ("Unavoidable", "unavoidable_gpu_ns", "Starved while no other worker had work to give"),
    )
    shares = {at: theme.percent((row[at] or 0) / total) for _, at, _ in said}
    cards.numbers(
        [cards.Number(name, facts.at_least(states, shares[at]), why) for name, at, why in said]
    )


def _partition(chosen: shell.Scope) -> None:
    title, choice = st.columns([3, 2], vertical_alignment="bottom")
    title.subheader("GPU time by cause", anchor=False)
    with choice, st.container(horizontal_alignment="right"):
        by = scope.choose(
            "per",
            "A bar for each",
            list(BY),
            default="worker",
            widget=st.segmented_control,
            label_visibility="collapsed",
        )
    parts = chosen.ask("partition")
    if parts.is_empty():
        st.caption(cards.plain(chosen.untold({})))
        return
    lanes = _rollouts(chosen) if by == "rollout" else facts.lanes(parts, by)
    shown = dict(list(lanes.items())[:LANES])
    drawn = accounts.stacked(shown, cards.mode())
    cards.figure(drawn, "idle_workers", f"GPU time by {by} and cause")
    if len(shown) < len(lanes):
        st.caption(f"{len(shown)} of {len(lanes)}; the table of Ask holds all of them.")


def _rollouts(chosen: shell.Scope) -> dict[str, dict[str, int]]:
    lanes: dict[str, dict[str, int]] = {}
    for row in chosen.rollouts.head(SHOWN_ROLLOUTS).reverse().iter_rows(named=True):
        asked = {"run": chosen.run, "rollout": str(row["rollout_id"])}
        states = client.ask("partition", settled=row["state"] != "running", **asked)
        lanes[facts.label(row)] = accounts.by_state(states)
    return lanes


def _counters(chosen: shell.Scope) -> None:
    """What engines counted themselves beside what their spans say."""
    st.subheader("Engines' counters beside the spans", anchor=False)
    found = chosen.ask("counters")
    if found.is_empty():
        st.caption("No engine of this rollout was polled.")
        return
    timed = found.with_columns(
        pl.col("kv_usage") * 100,
        *(
            (pl.col(f"{name}_ns") / 1e9).alias(f"{name}_s")
            for name in ("forward", "residence", "idle", "host_overhead")
        ),
    )
    by_name = timed.sort(pl.col("worker_id").str.len_chars(), "worker_id")
    cards.table(by_name, "idle_counters", columns=COUNTERS)
    st.caption("No work assigned is not an idle device: only the counters can say the latter.")


def _blame(chosen: shell.Scope) -> None:
    st.subheader("Whom idle GPUs waited for", anchor=False)
    by = scope.choose(
        "by", "By", list(BLAMED_BY), default="trajectory", widget=st.segmented_control
    )
    blamed = chosen.ask("blame", by=by)
    if blamed.is_empty():
        untold = chosen.untold(_states(chosen))
        st.caption(cards.plain(untold) if untold else "No GPU was idle.")
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
    words = [f"{_word(doing)} {100 * ns / whole:.0f} %" for doing, ns in sums.head(4).iter_rows()]
    trajectory = path["trajectory_id"][0] or "no trajectory"
    said = f"{theme.nanoseconds(whole)} of {trajectory}: {', '.join(words)}."
    st.markdown(cards.plain(said))
    strips = chosen.ask("strips")
    if not strips.is_empty():
        drawn = cards.drawn(strip.strip_and_path, strips, path, cards.mode(), start_ns=begin)
        cards.figure(drawn, "idle_strip", "Critical path over workers")
    timed = path.with_columns(
        pl.col("doing").str.replace_all("_", " "),
        at_s=(pl.col("start_ns") - begin) / 1e9,
        took_s=took / 1e9,
    )
    cards.table(timed, "idle_path", columns=PATH)


def _word(doing: str) -> str:
    return doing.replace("_", " ")
