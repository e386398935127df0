"""Two rollouts side by side: which finished sooner, what did the GPUs do instead, whose tail?"""

from __future__ import annotations

from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.dashboards import cards, client, facts, scope, shell, theme
from heddle.dashboards.figures import accounts, makespan, tail

_COLUMN = st.column_config
DIFFERENCE: Final[dict[str, Any]] = {
    "state": _COLUMN.TextColumn("GPUs were", width="medium"),
    "this": _COLUMN.NumberColumn("this (GPU-s)", format="%.1f"),
    "other": _COLUMN.NumberColumn("other (GPU-s)", format="%.1f"),
    "more": _COLUMN.NumberColumn("this minus other (GPU-s)", format="%+.1f"),
}


def page() -> None:
    """The chosen rollout against another of its run."""
    shell.framed("Compare", _body)


def _body(chosen: shell.Scope) -> None:
    rows = {str(row["rollout_id"]): row for row in chosen.rollouts.iter_rows(named=True)}
    others = [one for one in rows if one != chosen.rollout_id]
    if not others:
        cards.no_data("This run has one rollout.", "A second one is what it can be compared with.")
        return
    before = chosen.before
    default = str(before["rollout_id"]) if before else others[0]
    other = rows[
        scope.choose(
            "other",
            "Against",
            others,
            default=default,
            said=lambda one: facts.label(rows[one]),
        )
    ]
    _headline(chosen.rollout, other)
    _makespans(chosen.rollout, other)
    _partition(chosen.run, chosen.rollout, other)
    _tails(chosen.run, chosen.rollout, other)


def _headline(this: dict[str, Any], other: dict[str, Any]) -> None:
    if not this["makespan_s"] or not other["makespan_s"]:
        st.caption("One of the two has no makespan yet.")
        return
    times = other["makespan_s"] / this["makespan_s"]
    verdict = f"{times:.2f}x faster than" if times >= 1 else f"{1 / times:.2f}x slower than"
    so_far = ", so far" if "running" in (this["state"], other["state"]) else ""
    st.markdown(
        f"{cards.plain(facts.label(this))} is **{verdict}** "
        f"{cards.plain(facts.label(other))}: {theme.seconds(this['makespan_s'])} against "
        f"{theme.seconds(other['makespan_s'])}{so_far}."
    )


def _makespans(this: dict[str, Any], other: dict[str, Any]) -> None:
    bars = [
        makespan.Bar(
            facts.label(row),
            row["makespan_s"] or 0.0,
            row["predicted_makespan_s"],
            row["state"] == "running",
        )
        for row in (other, this)
    ]
    st.subheader("Makespan", anchor=False)
    drawn = makespan.comparison(bars, cards.mode())
    cards.figure(drawn, "compare_makespan", "Makespan of both rollouts")


def _partition(run: str, this: dict[str, Any], other: dict[str, Any]) -> None:
    st.subheader("GPU time by cause", anchor=False)
    parts = {
        facts.label(row): accounts.by_state(
            client.ask("partition", run=run, rollout=row["rollout_id"])
        )
        for row in (other, this)
    }
    drawn = accounts.stacked(parts, cards.mode())
    cards.figure(drawn, "compare_stack", "GPU time of both rollouts by cause")
    mine, theirs = parts[facts.label(this)], parts[facts.label(other)]
    cards.table(difference(mine, theirs), "compare_difference", columns=DIFFERENCE)


def difference(mine: dict[str, int], theirs: dict[str, int]) -> pl.DataFrame:
    """State by state in GPU-seconds, the largest difference first; ties by precedence."""
    rows = [
        {
            "state": theme.meaning(state).label,
            "this": mine.get(state, 0) / 1e9,
            "other": theirs.get(state, 0) / 1e9,
            "more": (mine.get(state, 0) - theirs.get(state, 0)) / 1e9,
        }
        for state in theme.in_order(set(mine) | set(theirs))
    ]
    rows.sort(key=lambda row: -abs(float(row["more"])))
    schema = {"state": pl.String, "this": pl.Float64, "other": pl.Float64, "more": pl.Float64}
    return pl.DataFrame(rows, schema=schema)


def _tails(run: str, this: dict[str, Any], other: dict[str, Any]) -> None:
    st.subheader("Seconds of a trajectory", anchor=False)
    samples: dict[str, list[float]] = {}
    for row in (this, other):
        frame = client.ask("trajectories", run=run, rollout=row["rollout_id"])
        samples[facts.label(row)] = frame["duration_s"].drop_nulls().to_list()
    drawn = tail.ccdf(samples, cards.mode(), unit="duration (s)")
    cards.figure(drawn, "compare_ccdf", "Share of trajectories longer than x")
