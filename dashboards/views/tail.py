"""How long is the tail, whose is it, and is it the prompt's doing?

Distributions of one measure over trajectories, of the chosen rollout beside the one before it; the
longest by name; the spread within each group.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.dashboards import cards, client, facts, nav, scope, shell, theme
from heddle.dashboards.figures import tail as drawn
from heddle.dashboards.views import exporting, tail_causes

_COLUMN = st.column_config
LONGEST: Final[dict[str, Any]] = {
    "trajectory_id": _COLUMN.TextColumn("trajectory", width=210),
    "cause": _COLUMN.TextColumn("mostly", width=165),
    "output_tokens": _COLUMN.NumberColumn("tokens", format="localized"),
    "predicted_p50": _COLUMN.NumberColumn("predicted first", format="localized"),
    "duration_s": _COLUMN.NumberColumn("duration (s)", format="%.1f"),
    "steps": _COLUMN.NumberColumn("steps"),
    "tool_s": _COLUMN.NumberColumn("tools (s)", format="%.1f"),
    "group_id": _COLUMN.TextColumn("group"),
    "task": _COLUMN.TextColumn("task"),
}


def page() -> None:
    """Distributions, the longest, and the groups."""
    shell.framed("The long tail", _body)


def _body(chosen: shell.Scope) -> None:
    measure = scope.choose(
        "measure",
        "Measure",
        list(theme.MEASURES),
        default="output_tokens",
        said=lambda name: theme.MEASURES[name],
        widget=st.segmented_control,
    )
    frame = client.ask("trajectories", run=chosen.run, rollout=chosen.rollout_id)
    if frame.is_empty():
        cards.no_data(
            "This rollout has no trajectory yet.", "They appear when their first step starts."
        )
        return
    frame = _slice(frame)
    if frame.is_empty():
        cards.nothing_matches("No trajectory has this task.", ["task"])
        return
    _numbers(chosen, measure)
    _distributions(chosen, frame, measure)
    _longest(frame, measure)
    _spread(frame, measure)
    tail_causes.panels(chosen, frame, measure)
    exporting.popover(
        {"run": chosen.run, "rollout": chosen.rollout_id, "task": scope.get("task")}, "tail"
    )


def _slice(frame: pl.DataFrame) -> pl.DataFrame:
    tasks = sorted(frame["task"].drop_nulls().unique().to_list())
    if len(tasks) < 2 and not scope.get("task"):
        return frame
    asked = scope.get("task")
    options = ["", *tasks] + ([asked] if asked and asked not in tasks else [])
    task = scope.choose("task", "Task", options, default="", said=lambda one: one or "all tasks")
    return frame.filter(pl.col("task") == task) if task else frame


def _said(measure: str, value: float | None) -> str:
    return theme.seconds(value) if measure.endswith("_s") else theme.count(value)


def _numbers(chosen: shell.Scope, measure: str) -> None:
    tails = client.ask("tail", run=chosen.run, rollout=chosen.rollout_id)
    mine = tails.filter(pl.col("metric") == measure)
    if mine.is_empty():
        return
    row = mine.row(0, named=True)
    ratio = row["max_over_median"]
    cards.numbers(
        [
            cards.Number("Median", _said(measure, row["p50"]), "Half are shorter"),
            cards.Number("p90", _said(measure, row["p90"]), "Where the tail begins"),
            cards.Number("p99", _said(measure, row["p99"]), "The longest percent"),
            cards.Number("Longest", _said(measure, row["max"]), "The one the rollout waits for"),
            cards.Number(
                "Max / median",
                "–" if ratio is None else f"{ratio:.1f}x",
                "How long the tail is",
            ),
        ]
    )


def _values(frame: pl.DataFrame, measure: str) -> list[float]:
    return frame[measure].drop_nulls().cast(pl.Float64).to_list()


def _distributions(chosen: shell.Scope, frame: pl.DataFrame, measure: str) -> None:
    samples = {facts.label(chosen.rollout): _values(frame, measure)}
    if chosen.before is not None:
        before = str(chosen.before["rollout_id"])
        past = client.ask("trajectories", run=chosen.run, rollout=before)
        task = scope.get("task")
        past = past.filter(pl.col("task") == task) if task else past
        samples[facts.label(chosen.before)] = _values(past, measure)
    left, right = st.columns(2, gap="medium")
    unit = theme.MEASURES[measure]
    with left:
        st.subheader("Share longer than x", anchor=False)
        cards.figure(drawn.ccdf(samples, cards.mode(), unit=unit), "tail_ccdf", "Survival curve")
    with right:
        st.subheader("How many of each length", anchor=False)
        figure = drawn.histogram(samples, cards.mode(), unit=unit)
        cards.figure(figure, "tail_histogram", "Histogram of lengths")


def _longest(frame: pl.DataFrame, measure: str) -> None:
    st.subheader("The longest", anchor=False)
    top = frame.sort(measure, "trajectory_id", descending=[True, False], nulls_last=True).head(20)
    causes = [facts.cause(row) for row in top.iter_rows(named=True)]
    cards.table(
        top.with_columns(
            pl.col("predicted_p50").round().cast(pl.Int64),
            cause=pl.Series("cause", causes, dtype=pl.String),
        ),
        "tail_longest",
        columns=LONGEST,
        pick="trajectory_id",
        on_pick=lambda one: nav.go("trajectory", trajectory=one),
    )
    shown = f"{top.height} of {frame.height} trajectories."
    st.caption(f"{shown} Select a row to open its trajectory.")


def _spread(frame: pl.DataFrame, measure: str) -> None:
    groups = frame["group_id"].drop_nulls().n_unique()
    if groups < 2:
        return
    st.subheader("Within each group", anchor=False)
    st.caption(
        f"One line a prompt, one dot a sample; {min(groups, 24)} of {groups} groups, "
        "those with the longest sample first."
    )
    figure = drawn.spread(frame, measure, cards.mode(), unit=theme.MEASURES[measure])
    cards.figure(figure, "tail_spread", "Spread within groups")
