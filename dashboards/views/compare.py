"""Two rollouts side by side: which finished sooner, what did the GPUs do instead, whose tail?

Group by group where they share prompts; policies on one rollout's trajectories are ablation.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.dashboards import cards, client, facts, scope, shell, theme
from heddle.dashboards.figures import accounts, makespan, paired, tail
from heddle.dashboards.views import ablation

_COLUMN = st.column_config
DIFFERENCE: Final[dict[str, Any]] = {
    "state": _COLUMN.TextColumn("GPUs were", width="medium"),
    "this": _COLUMN.NumberColumn("this (GPU-s)", format="%.1f"),
    "other": _COLUMN.NumberColumn("other (GPU-s)", format="%.1f"),
    "more": _COLUMN.NumberColumn("this minus other (GPU-s)", format="%+.1f"),
}

EVERY: Final[dict[str, Any]] = {
    "rollout": _COLUMN.TextColumn("rollout", width=170),
    "changed": _COLUMN.TextColumn("changed", width="large"),
    "makespan_s": _COLUMN.NumberColumn("makespan (s)", format="%.1f"),
    "times": _COLUMN.NumberColumn("chosen one / this", format="%.2f"),
    "trajectories": _COLUMN.NumberColumn("trajectories"),
    "moves": _COLUMN.NumberColumn("moves"),
}


def page() -> None:
    """The chosen rollout against another, or policies against each other on its trajectories."""
    shell.framed("Compare", _body)


def _body(chosen: shell.Scope) -> None:
    what = scope.choose(
        "what",
        "Compare",
        ["rollouts", "policies"],
        default="rollouts",
        widget=st.segmented_control,
        help="Rollouts as recorded, or policies replayed on the chosen rollout's trajectories",
    )
    if what == "policies":
        ablation.panels(chosen)
    else:
        _rollouts(chosen)


def _rollouts(chosen: shell.Scope) -> None:
    other = _other(chosen)
    if other is None:
        cards.no_data(
            "This run has one rollout.",
            "A second one is what it can be compared with; or compare policies on this one.",
        )
        return
    pair = chosen.rollout, other
    _headline(*pair)
    _makespans(*pair)
    shell.later(
        "compare",
        partial(_partition, *pair),
        partial(_distributions, pair),
        partial(_every, chosen),
    )


def _whose(row: dict[str, Any]) -> dict[str, Any]:
    return {"run": str(row["run_id"]), "rollout": str(row["rollout_id"])}


def _other(chosen: shell.Scope) -> dict[str, Any] | None:
    """The rollout it is held against, of the same run unless another is chosen."""
    runs = facts.recorded_runs(client.ask("runs"))
    run, rollout_at = chosen.run, st.container()
    if len(runs) > 1:
        run_at, rollout_at = st.columns(2)
        with run_at:
            run = scope.choose("other_run", "Against a rollout of", runs, default=chosen.run)
    found = chosen.rollouts if run == chosen.run else client.ask("rollouts", run=run)
    rows = {str(row["rollout_id"]): row for row in found.iter_rows(named=True)}
    others = [one for one in rows if run != chosen.run or one != chosen.rollout_id]
    if not others:
        return None
    before = str(chosen.before["rollout_id"]) if chosen.before else others[0]
    default = before if before in others else others[0]
    with rollout_at:
        name = scope.choose(
            "other", "Against", others, default=default, said=lambda one: facts.label(rows[one])
        )
    return rows[name]


def _headline(this: dict[str, Any], other: dict[str, Any]) -> None:
    if not this["makespan_s"] or not other["makespan_s"]:
        st.caption("One of the two has no makespan yet.")
        return
    times = other["makespan_s"] / this["makespan_s"]
    verdict = f"{times:.2f}x faster than" if times >= 1 else f"{1 / times:.2f}x slower than"
    if verdict.startswith("1.00x"):
        verdict = "as fast as"
    so_far = ", so far" if "running" in (this["state"], other["state"]) else ""
    st.markdown(
        f"{cards.plain(facts.label(this))} is **{verdict}** "
        f"{cards.plain(facts.label(other))}: {theme.seconds(this['makespan_s'])} against "
        f"{theme.seconds(other['makespan_s'])}{so_far}."
    )


def _makespans(this: dict[str, Any], other: dict[str, Any]) -> None:
    bars = [
        makespan.Bar(
            label,
            row["makespan_s"] or 0.0,
            row["predicted_makespan_s"],
            row["state"] == "running",
        )
        for label, row in zip(_labels(other, this), (other, this), strict=True)
    ]
    st.subheader("Makespan", anchor=False)
    drawn = makespan.comparison(bars, cards.mode())
    cards.figure(drawn, "compare_makespan", "Makespan of both rollouts")


def _partition(this: dict[str, Any], other: dict[str, Any]) -> None:
    st.subheader("GPU time by cause", anchor=False)
    theirs, mine = (
        accounts.by_state(client.ask("partition", **_whose(row))) for row in (other, this)
    )
    # Two runs may name a rollout alike: then both labels say whose it is.
    labels = _labels(this, other)
    drawn = accounts.stacked({labels[1]: theirs, labels[0]: mine}, cards.mode())
    cards.figure(drawn, "compare_stack", "GPU time of both rollouts by cause")
    cards.table(difference(mine, theirs), "compare_difference", columns=DIFFERENCE)


def _labels(this: dict[str, Any], other: dict[str, Any]) -> tuple[str, str]:
    labels = facts.label(this), facts.label(other)
    if labels[0] != labels[1]:
        return labels
    return f"{this['run_id']}/{labels[0]}", f"{other['run_id']}/{labels[1]}"


def difference(mine: dict[str, int], theirs: dict[str, int]) -> pl.DataFrame:
    """State by state in GPU-seconds, the largest difference first; ties by precedence."""
    rows = [
        {
            "state": theme.meaning(state).label,
            "this": mine.get(state, 0) / 1e9,
            "other": theirs.get(state, 0) / 1e9,
            # What rounds to nothing must not read `-0.0`.
            "more": round((mine.get(state, 0) - theirs.get(state, 0)) / 1e9, 1) + 0.0,
        }
        for state in theme.in_order(set(mine) | set(theirs))
    ]
    rows.sort(key=lambda row: -abs(float(row["more"])))
    schema = {"state": pl.String, "this": pl.Float64, "other": pl.Float64, "more": pl.Float64}
    return pl.DataFrame(rows, schema=schema)


def _distributions(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    frames = [client.ask("trajectories", **_whose(row)) for row in pair]
    _tails(pair, frames)
    _groups(pair, frames)


def _tails(pair: tuple[dict[str, Any], dict[str, Any]], frames: list[pl.DataFrame]) -> None:
    st.subheader("Seconds of a trajectory", anchor=False)
    samples = {
        label: frame["duration_s"].drop_nulls().to_list()
        for label, frame in zip(_labels(*pair), frames, strict=True)
    }
    drawn = tail.ccdf(samples, cards.mode(), unit="duration (s)")
    cards.figure(drawn, "compare_ccdf", "Share of trajectories longer than x")


def _groups(pair: tuple[dict[str, Any], dict[str, Any]], frames: list[pl.DataFrame]) -> None:
    st.subheader("Group by group", anchor=False)
    this, other = (facts.longest_by_group(frame, "duration_s") for frame in frames)
    sooner, both = paired.won(this, other)
    if not both:
        st.caption("The two share no group: they were other prompts.")
        return
    st.caption(
        f"The longest sample of each prompt; {sooner} of {both} were shorter in "
        f"{cards.plain(_labels(*pair)[0])} (below the line)."
    )
    drawn = paired.scatter(
        this, other, cards.mode(), names=_labels(*pair), unit="longest sample (s)"
    )
    cards.figure(drawn, "compare_groups", "Longest sample of each group in both rollouts")


def _every(chosen: shell.Scope) -> None:
    """The run's rollouts as an ablation: what was switched, and what came of it."""
    st.subheader("Every rollout of the run", anchor=False)
    base = chosen.rollout
    st.caption("What was switched otherwise than in the chosen one, and the makespan against it.")
    rows = [
        {
            "rollout": facts.label(row),
            "changed": facts.changed(row["policies"], base["policies"]),
            "makespan_s": row["makespan_s"],
            "times": (base["makespan_s"] or 0) / row["makespan_s"] if row["makespan_s"] else None,
            "trajectories": row["trajectories"],
            "moves": row["moves"],
        }
        for row in chosen.rollouts.head(cards.ROWS).iter_rows(named=True)
    ]
    cards.table(pl.DataFrame(rows, infer_schema_length=None), "compare_every", columns=EVERY)
