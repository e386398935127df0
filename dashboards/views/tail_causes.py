"""What made the slow ones slow: the four sources, each trajectory's own time, and was it foreseen?

The second half of the Long tail page. Times of a trajectory are its parts by the rollout's own
laws: held and queued, base, interference of the batch, tools, and the rest.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.collector.errors import CollectorError
from heddle.dashboards import cards, client, nav, scope, shell, theme
from heddle.dashboards.figures import causes as drawn

SLICES: Final = ("task", "tool", "worker", "policy", "preset")
TOP: Final = 20
LAST: Final = 8
"""Rollouts whose ratio is spelled out."""
_COLUMN = st.column_config
SLICE: Final[dict[str, Any]] = {
    "key": _COLUMN.TextColumn("slice", width="medium"),
    "count": _COLUMN.NumberColumn("counted"),
    "p50": _COLUMN.NumberColumn("median", format="%.1f"),
    "p90": _COLUMN.NumberColumn("p90", format="%.1f"),
    "p99": _COLUMN.NumberColumn("p99", format="%.1f"),
    "max": _COLUMN.NumberColumn("longest", format="%.1f"),
    "max_over_median": _COLUMN.NumberColumn("longest / median", format="%.1f"),
}


def panels(chosen: shell.Scope, frame: pl.DataFrame, measure: str) -> None:
    """Sources, parts, predictions, slices, the run's drift."""
    try:
        known = _foreseen(frame)
        left, right = cards.halves(are_two=not known.is_empty())
        with left:
            _sources(chosen)
        with right:
            _predicted(known)
        _parts(chosen, frame)
        shell.apart(_slices, chosen, measure)
        _drift(chosen, measure)
    except CollectorError as refused:
        st.caption(cards.plain(refused))


def _sources(chosen: shell.Scope) -> None:
    st.subheader("What made the slowest tenth slow", anchor=False)
    found = chosen.ask("tail_sources")
    if found.is_empty():
        st.caption("Not enough has finished to tell.")
        return
    cards.figure(drawn.sources(found, cards.mode()), "tail_sources", "Four sources of the tail")
    st.caption("Of their time beyond the median trajectory's.")


def _foreseen(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.filter(
        (pl.col("predicted_p50") > 0)
        & (pl.col("output_tokens") > 0)
        & (pl.col("state") == "finished")
    )


def _predicted(known: pl.DataFrame) -> None:
    st.subheader("Predicted and actual", anchor=False)
    if known.is_empty():
        st.caption("None of these trajectories was predicted at its first step.")
        return
    cards.figure(drawn.predicted(known, cards.mode()), "tail_predicted", "Predicted, actual")
    st.caption("Tokens, as predicted at its first step; on the line: as foreseen.")


def _parts(chosen: shell.Scope, frame: pl.DataFrame) -> None:
    st.subheader("Where the time of the slowest went", anchor=False)
    found = chosen.ask("decomposition", by="trajectory")
    mine = found.filter(pl.col("trajectory_id").is_in(frame["trajectory_id"].implode()))
    if mine.is_empty():
        st.caption("Nothing of this rollout has been accounted yet.")
        return
    top = mine.sort("duration_ns", "trajectory_id", descending=[True, False]).head(TOP)
    cards.figure(drawn.parts(top, cards.mode()), "tail_parts", "Parts of each trajectory's time")
    st.caption(f"The slowest {top.height} of {mine.height}; parts sum to the whole exactly.")
    picked = st.selectbox(
        "Open a trajectory", top["trajectory_id"].to_list(), index=None, key="tail_open"
    )
    if picked:
        nav.go("trajectory", trajectory=str(picked))
        st.rerun(scope="app")


def _slices(chosen: shell.Scope, measure: str) -> None:
    st.subheader("The tail of each slice", anchor=False)
    by = scope.choose("by", "By", list(SLICES), default="task", widget=st.segmented_control)
    of = {"run": chosen.run}
    # A rollout has one policy: those are compared over the run.
    if by in ("task", "tool", "worker"):
        of["rollout"] = chosen.rollout_id
    found = client.ask("tail_slices", settled=not chosen.is_running, by=by, **of)
    metric = "tool_s" if by == "tool" else measure
    mine = found.filter(pl.col("metric") == metric).sort("p99", descending=True, nulls_last=True)
    if mine.is_empty():
        st.caption("Nothing finished that has such a slice.")
        return
    cards.table(mine.with_columns(pl.col("key").fill_null("none")), "tail_slices", columns=SLICE)


def _drift(chosen: shell.Scope, measure: str) -> None:
    found = client.ask("drift", run=chosen.run).filter(pl.col("metric") == measure)
    if found.height < 2:
        return
    st.subheader("The tail of every rollout", anchor=False)
    figure = drawn.drift(
        found, cards.mode(), unit=theme.spelled(measure), whole=measure in theme.WHOLE
    )
    cards.figure(figure, "tail_drift", "Median, p99 and longest of every rollout")
    known = found.sort("start_ns").filter(pl.col("p50") > 0).tail(LAST)
    ratios = zip(known["rollout_id"], known["max"] / known["p50"], strict=True)
    said = [f"{one} {ratio:.1f}x" for one, ratio in ratios]
    st.caption(cards.plain(f"Longest over median: {', '.join(said)}."))
