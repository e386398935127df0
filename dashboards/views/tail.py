"""How long is the tail, whose is it, and is it the prompt's doing?

Distributions of one measure over trajectories, of the chosen rollout beside the one before it; the
longest by name; the spread within each group.
"""

from __future__ import annotations

from functools import partial
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
SLICES: Final = {"task": "task", "group": "group_id", "worker": "worker_id"}
"""Selection to column; the exports know the same filters."""


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
    mine = _slice(frame)
    if mine.is_empty():
        cards.nothing_matches("No trajectory is in this slice.", list(SLICES))
        return
    if mine[measure].null_count() == mine.height:
        st.caption(f"No trajectory here tells its {cards.plain(theme.MEASURES[measure])}.")
    else:
        _numbers(mine, measure)
        _distributions(chosen, mine, measure)
    whose = {"run": chosen.run, "rollout": chosen.rollout_id}
    whose |= {name: scope.get(name) for name in SLICES}
    shell.later(
        "tail",
        partial(_longest, mine, measure),
        partial(_spread, mine, measure),
        partial(tail_causes.panels, chosen, mine, measure),
        partial(exporting.popover, whose, "tail"),
    )


def _slice(frame: pl.DataFrame) -> pl.DataFrame:
    """Those of the chosen task, group and worker; what there is only one of is not asked."""
    with st.container(horizontal=True):
        for name, column in SLICES.items():
            known = frame[column].drop_nulls().unique().to_list()
            known.sort(key=lambda one: (len(one), one) if name == "worker" else (0, one))
            asked = scope.get(name)
            if len(known) < 2 and not asked:
                continue
            options = ["", *known] + ([asked] if asked and asked not in known else [])
            scope.choose(name, name.capitalize(), options, default="", said=_SAID[name])
    return _sliced(frame)


def _sliced(frame: pl.DataFrame) -> pl.DataFrame:
    asked = {column: scope.get(name) for name, column in SLICES.items()}
    return frame.filter(*(pl.col(column) == one for column, one in asked.items() if one))


_SAID: Final = {name: partial(lambda every, one: one or every, f"all {name}s") for name in SLICES}


def _said(measure: str, value: float | None) -> str:
    return theme.seconds(value) if measure.endswith("_s") else theme.count(value)


def _numbers(frame: pl.DataFrame, measure: str) -> None:
    """Of the slice, as the collector's `tail` says them of the whole rollout."""
    of = frame.filter(pl.col("state") == "finished")[measure].drop_nulls().cast(pl.Float64)
    if of.is_empty():
        return
    median, p90, p99 = (of.quantile(at, "linear") for at in (0.5, 0.9, 0.99))
    longest = float(of.sort()[-1])
    cards.numbers(
        [
            cards.Number("Median", _said(measure, median), "Half are shorter"),
            cards.Number("p90", _said(measure, p90), "Where the tail begins"),
            cards.Number("p99", _said(measure, p99), "The longest percent"),
            cards.Number("Longest", _said(measure, longest), "The one the rollout waits for"),
            cards.Number("Max / median", _times(longest, median), "How long the tail is"),
        ]
    )


def _times(longest: float, median: float | None) -> str:
    return f"{longest / median:.1f}x" if median else "–"


def _values(frame: pl.DataFrame, measure: str) -> list[float]:
    return frame[measure].drop_nulls().cast(pl.Float64).to_list()


def _distributions(chosen: shell.Scope, frame: pl.DataFrame, measure: str) -> None:
    samples = {facts.label(chosen.rollout): _values(frame, measure)}
    if chosen.before is not None:
        before = str(chosen.before["rollout_id"])
        past = client.ask("trajectories", run=chosen.run, rollout=before)
        samples[facts.label(chosen.before)] = _values(_sliced(past), measure)
    left, right = st.columns(2, gap="medium")
    unit, whole = theme.MEASURES[measure], measure in theme.WHOLE
    with left:
        st.subheader("Share longer than x", anchor=False)
        figure = drawn.ccdf(samples, cards.mode(), unit=unit, whole=whole)
        cards.figure(figure, "tail_ccdf", "Survival curve")
    with right:
        st.subheader("How many of each length", anchor=False)
        figure = drawn.histogram(samples, cards.mode(), unit=unit, whole=whole)
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
    groups = frame.drop_nulls(["group_id", measure])["group_id"].n_unique()
    if groups < 2:
        return
    st.subheader("Within each group", anchor=False)
    st.caption(
        f"One line a prompt, one dot a sample (at most {drawn.SAMPLES} of a group, its longest "
        f"among them); {min(groups, drawn.GROUPS)} of {groups} groups, those with the longest "
        "sample first."
    )
    figure = drawn.spread(frame, measure, cards.mode(), unit=theme.MEASURES[measure])
    cards.figure(figure, "tail_spread", "Spread within groups")
