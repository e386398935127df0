"""Where did the GPU time go, and which trajectory is to blame?

One sentence, six numbers, the time of every rollout by cause, the chosen rollout moment by moment,
and the last to finish. Refreshes by itself while the chosen rollout runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.dashboards import cards, client, facts, nav, scope, shell, theme
from heddle.dashboards.figures import accounts, strip
from heddle.dashboards.views import findings

SHOWN_ROLLOUTS: Final = 12
_COLUMN = st.column_config
STRAGGLERS: Final[dict[str, Any]] = {
    "trajectory_id": _COLUMN.TextColumn("trajectory", width="medium"),
    "cause": _COLUMN.TextColumn("mostly", width="medium"),
    "so_far_s": _COLUMN.NumberColumn("time (s)", format="%.1f"),
    "times_median": _COLUMN.NumberColumn("x median", format="%.1f"),
    "last_by_s": _COLUMN.NumberColumn(
        "after p90 (s)", format="%.1f", help="Seconds it ended after nine of ten had ended"
    ),
    "output_tokens": _COLUMN.NumberColumn("tokens", format="localized"),
    "steps": _COLUMN.NumberColumn("steps"),
    "moves": _COLUMN.NumberColumn("moves"),
    "worker_id": _COLUMN.TextColumn("worker"),
    "state": _COLUMN.TextColumn("state"),
}


def page() -> None:
    """The first screen."""
    shell.framed("Where did the GPU time go?", _body)


def _body(chosen: shell.Scope) -> None:
    every = cards.REFRESH_S if chosen.live and chosen.is_running else None
    st.fragment(_panels, run_every=every)(chosen)


def _panels(chosen: shell.Scope) -> None:
    """The first screen, then the rest."""
    if nav.asked() or _has_ended(chosen):
        st.rerun(scope="app")
    states, window = _states(chosen, chosen.rollout), _window(chosen)
    said, rest = _headline(chosen, states, window), st.empty()
    rest.markdown(said)
    cards.numbers(_numbers(chosen, states, window))
    shell.apart(_rollouts, chosen)
    last = facts.stragglers(chosen.ask("trajectories"), window["end_ns"])
    if not last.is_empty():
        rest.markdown(said + _blame(last))
    shell.later("overview", partial(_rest, chosen, window, states, last))


def _rest(
    chosen: shell.Scope,
    window: Mapping[str, Any],
    states: Mapping[str, int],
    last: pl.DataFrame,
) -> None:
    """Light questions first: findings and blame need the rollout's whole account."""
    found, pieces, listed, blamed = (st.container() for _ in range(4))
    with listed:
        _stragglers(last)
    with pieces:
        _strip(chosen, window, states)
    with found:
        findings.panel(chosen, states)
    with blamed:
        findings.blamed(chosen)


def _has_ended(chosen: shell.Scope) -> bool:
    """A running rollout that ended since: the page must drop its timer."""
    if not chosen.is_running:
        return False
    now = client.ask("rollouts", run=chosen.run).filter(pl.col("rollout_id") == chosen.rollout_id)
    return not now.is_empty() and now["state"][0] != "running"


def _states(chosen: shell.Scope, rollout: Mapping[str, Any]) -> dict[str, int]:
    settled = rollout["state"] != "running"
    asked = {"run": chosen.run, "rollout": str(rollout["rollout_id"])}
    return accounts.by_state(client.ask("partition", settled=settled, **asked))


def _window(chosen: shell.Scope) -> dict[str, Any]:
    """The accounted window; the rollout's own times where nothing has been accounted yet."""
    found = chosen.ask("accounts")
    if not found.is_empty():
        return found.row(0, named=True)
    start_ns = chosen.rollout["start_ns"] or 0
    end_ns = chosen.rollout["end_ns"] or start_ns
    return {"start_ns": start_ns, "end_ns": end_ns, "wall_ns": end_ns - start_ns, "gpus": None}


def _headline(chosen: shell.Scope, states: Mapping[str, int], window: Mapping[str, Any]) -> str:
    """The finding in a sentence or two, names from spans escaped."""
    busy, loss = facts.busy_share(states), facts.largest_loss(states)
    if busy is None:
        return cards.plain(chosen.untold(states))
    gpus, wall = window["gpus"], theme.nanoseconds(window["wall_ns"])
    unknown = facts.share(states, "unknown") or 0
    but = f" and **{unknown:.0%} unknown**" if unknown >= facts.NOTICED else ""
    said = f"**{busy:.0%} busy**{but} over {wall} on {theme.gpus(gpus)}"
    if chosen.is_running:
        said += ", still running"
    if loss:
        part = facts.share(states, loss) or 0
        of = theme.meaning(loss)
        said += f". The largest loss is **{of.label}, {part:.0%}**: {of.says}"
    return said + "."


def _blame(last: pl.DataFrame) -> str:
    if last.is_empty():
        return ""
    row = last.row(0, named=True)
    verb = "Last running" if row["state"] == "running" else "Last to finish"
    times = f", {row['times_median']:.1f}x the median" if row["times_median"] else ""
    return (
        f" {verb}: **{cards.plain(row['trajectory_id'])}**, "
        f"{theme.seconds(row['so_far_s'])}{times} ({cards.plain(row['cause'])})."
    )


def _numbers(
    chosen: shell.Scope, states: Mapping[str, int], window: Mapping[str, Any]
) -> list[cards.Number]:
    row, before = chosen.rollout, chosen.before
    past = _states(chosen, before) if before else {}
    tail = _tail(chosen, chosen.rollout)
    past_tail = _tail(chosen, before) if before else None
    makespan_s = row["makespan_s"] or (window["wall_ns"] or 0) / 1e9
    past_s = before["makespan_s"] if before else None
    return [
        _busy(states, past),
        _share(
            "Tail bubble",
            facts.share(states, "tail_bubble"),
            facts.share(past, "tail_bubble"),
            "inverse",
        ),
        cards.Number(
            "p99 / median",
            "–" if tail is None else f"{tail:.1f}x",
            "Seconds of the longest percent over the middle",
            None if tail is None or past_tail is None else f"{tail - past_tail:+.1f}",
            "inverse",
        ),
        cards.Number(
            "Makespan",
            theme.seconds(makespan_s),
            "First submit to last end; so far, while it runs",
            _relative(makespan_s, past_s) if not chosen.is_running else None,
            "inverse",
        ),
        _step_share(chosen),
        _live(row),
        _lag(),
    ]


def _busy(states: Mapping[str, int], past: Mapping[str, int]) -> cards.Number:
    """At least so much, where some of it is unknown."""
    one = _share("Busy", facts.busy_share(states), facts.busy_share(past), "normal")
    return replace(one, value=facts.at_least(states, one.value))


def _share(label: str, now: float | None, past: float | None, good: Any) -> cards.Number:
    change = None if now is None or past is None else f"{100 * (now - past):+.1f} pts"
    return cards.Number(label, theme.percent(now), "Share of GPU time", change, good)


def _relative(now: float, past: float | None) -> str | None:
    return f"{100 * (now / past - 1):+.0f} %" if past else None


def _step_share(chosen: shell.Scope) -> cards.Number:
    """How much of the trainer's step generation takes; known once the next rollout began."""
    found = client.ask("gather", run=chosen.run)
    shares = dict(found.select("rollout_id", "rollout_share").iter_rows())
    now = shares.get(chosen.rollout_id)
    past = shares.get(str(chosen.before["rollout_id"])) if chosen.before else None
    change = None if now is None or past is None else f"{100 * (now - past):+.1f} pts"
    said = "Of the trainer's step; known when the next rollout has begun"
    return cards.Number("Rollout's share", theme.percent(now), said, change, "inverse")


def _live(row: Mapping[str, Any]) -> cards.Number:
    live = (row["trajectories"] or 0) - (row["finished"] or 0)
    return cards.Number(
        "Live / done",
        f"{max(live, 0)} / {row['finished'] or 0}",
        f"Trajectories; {row['expected'] or 'unknown'} expected",
    )


def _lag() -> cards.Number:
    lag = (client.health() or {}).get("lag_s")
    said = theme.seconds(float(lag)) if isinstance(lag, int | float) else "–"
    return cards.Number("Ingest lag", said, "From a span's arrival to its commit")


def _tail(chosen: shell.Scope, rollout: Mapping[str, Any]) -> float | None:
    """p99 over p50 of trajectory seconds."""
    settled = rollout["state"] != "running"
    asked = {"run": chosen.run, "rollout": str(rollout["rollout_id"])}
    tails = client.ask("tail", settled=settled, **asked).filter(pl.col("metric") == "duration_s")
    if tails.is_empty() or not tails["p50"][0] or tails["p99"][0] is None:
        return None
    return float(tails["p99"][0] / tails["p50"][0])


def _rollouts(chosen: shell.Scope) -> None:
    rows = list(chosen.rollouts.head(SHOWN_ROLLOUTS).reverse().iter_rows(named=True))
    title, unit = st.columns([4, 1], vertical_alignment="bottom")
    title.subheader("GPU time by cause", anchor=False)
    with unit, st.container(horizontal_alignment="right"):
        share = scope.choose(
            "unit",
            "Unit",
            ["GPU-s", "share"],
            default="GPU-s",
            widget=st.segmented_control,
            label_visibility="collapsed",
        )
    parts = {facts.label(row): _states(chosen, row) for row in rows}
    said = facts.makespans(rows, chosen.rollout)
    drawn = cards.drawn(accounts.stacked, parts, cards.mode(), share=share == "share", said=said)
    cards.figure(drawn, "overview_stack", "GPU time of each rollout by cause")
    more = (
        ""
        if chosen.rollouts.height <= SHOWN_ROLLOUTS
        else (f"The last {SHOWN_ROLLOUTS} of {chosen.rollouts.height} rollouts. ")
    )
    if len(rows) > 1:
        ends = "At the bar ends: makespan, and how many times the chosen one's speed."
        st.caption(f"{more}{ends}")


def _strip(chosen: shell.Scope, window: Mapping[str, Any], states: Mapping[str, int]) -> None:
    st.subheader("Workers, moment by moment", anchor=False)
    strips = chosen.ask("strips")
    if strips.is_empty():
        st.caption(cards.plain(chosen.untold(states)))
        return
    st.caption(
        f"{cards.plain(facts.label(chosen.rollout))}, from "
        f"{cards.plain(theme.moment(window['start_ns'], chosen.zone))}"
    )
    start_ns = window["start_ns"] or 0
    drawn = cards.drawn(strip.strip, strips, cards.mode(), start_ns=start_ns)
    cards.figure(drawn, "overview_strip", "State of each worker over time")
    if many := strip.merged(strips, drawn):
        st.caption(f"{many:,} short pieces are drawn within others, as what most of those were.")


def _stragglers(last: pl.DataFrame) -> None:
    st.subheader("The last to finish", anchor=False)
    if last.is_empty():
        st.caption("No trajectory has been seen in this rollout yet.")
        return
    cards.table(
        last,
        "overview_stragglers",
        columns=STRAGGLERS,
        pick="trajectory_id",
        on_pick=lambda one: nav.go("trajectory", trajectory=one),
    )
    st.caption("Select a row to open its trajectory.")
