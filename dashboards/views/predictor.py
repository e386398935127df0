"""Whose lengths are believed, how good are they, and does a newer version deserve to serve?

What serves and every version come from the controller; training runs there as a job. A version the
gate refused is promoted only by force, which the audit keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.dashboards import cards, client, control, scope, shell, theme
from heddle.dashboards.figures import predictor as drawn
from heddle.dashboards.views import calibration, gate, retrain

_COLUMN = st.column_config
VERSIONS: Final[dict[str, Any]] = {
    "version": _COLUMN.TextColumn("version", width=170),
    "says": _COLUMN.TextColumn("gate", width="small"),
    "spearman": _COLUMN.NumberColumn("Spearman", format="%.3f", help="Of remaining tokens"),
    "created": _COLUMN.TextColumn("trained"),
    "because": _COLUMN.TextColumn("because", width=330),
}
DEEDS: Final[dict[str, Any]] = {
    "at": _COLUMN.TextColumn("when", width="medium"),
    "deed": _COLUMN.TextColumn("what"),
    "version": _COLUMN.TextColumn("version", width=170),
    "who": _COLUMN.TextColumn("who"),
    "why": _COLUMN.TextColumn("why", width=300),
}


def page() -> None:
    """What serves, versions, quality, retraining, and who changed what."""
    shell.opened("Predictor")
    chosen = shell.quietly()
    state, refused = client.attempt(lambda: control.predictor())
    if state is None:
        cards.unreachable("controller", client.places().controller, control.START)
        st.text(refused or "")
        return
    _serving(state)
    retrain.panel(state, chosen.run if chosen else None)
    if state["versions"]:
        _version(state)
    else:
        cards.no_data(
            "No version has been trained yet.",
            "Group history serves meanwhile. Train one above, or run: heddle train",
        )
    if chosen is not None:
        calibration.panel(chosen)
    _audit()


def _serving(state: Mapping[str, Any]) -> None:
    st.markdown(f"**{cards.plain(state['version'])}** serves where prediction is *learned*.")
    for sentence in state["refused"]:
        st.warning(f"Broken and left out: {cards.plain(sentence)}")


def _version(state: Mapping[str, Any]) -> None:
    versions = {one["version"]: one for one in state["versions"]}
    st.subheader("Versions", anchor=False)
    cards.table(
        _listed(state), "predictor_versions", columns=VERSIONS, pick="version", on_pick=_pick
    )
    st.caption("Select a row to see how it did.")
    default = state["version"] if state["version"] in versions else next(iter(versions))
    picked = scope.get("version", default)
    if picked not in versions:
        cards.nothing_matches(f"There is no version {picked}.", ["version"])
        return
    card, refused = client.attempt(lambda: control.predictor_card(picked))
    if card is None:
        st.error(cards.plain(refused))
        return
    st.subheader("How it did on what it never saw", anchor=False)
    verdict = "The gate accepted it" if card["accepted"] else "The gate refused it"
    st.markdown(f"{cards.plain(picked)}. {verdict}: {cards.plain(gate.reason(card['because']))}.")
    _quality(card["table"])
    retrain.deeds(card)
    with st.expander("Model card"):
        st.code(card["card"], language=None, wrap_lines=True)


def _pick(version: str) -> None:
    scope.put("version", version)


def _listed(state: Mapping[str, Any]) -> pl.DataFrame:
    zone = scope.get("tz", "UTC")
    rows = [
        {
            "version": one["version"],
            "says": ("serves" if one["version"] == state["version"] else "accepted")
            if one["accepted"]
            else "refused",
            "spearman": one["metrics"].get("spearman"),
            "created": theme.moment(one["created_ns"], zone),
            "because": one["because"],
        }
        for one in state["versions"][: cards.ROWS]
    ]
    return pl.DataFrame(rows, infer_schema_length=None)


def _quality(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        st.caption("Its registry keeps no table of how it did.")
        return
    names = drawn.metrics(rows)
    metric = scope.choose("metric", "Metric", names, default=names[0], widget=st.segmented_control)
    target = drawn.COVERED if "cover" in metric else None
    figure = drawn.quality(rows, metric, cards.mode(), target=target)
    cards.figure(figure, "predictor_quality", f"{metric} per step against the baselines")
    st.caption("Held-out groups, paired; k counts finished steps. Dashed lines must be beaten.")
    with st.expander("The gate's table"):
        gate.show(rows, "predictor_gate")


def _audit() -> None:
    deeds, refused = client.attempt(control.predictor_audit)
    st.subheader("Who changed what", anchor=False)
    if not deeds:
        st.caption("Nothing has been changed." if refused is None else cards.plain(refused))
        return
    zone = scope.get("tz", "UTC")
    rows = [{**one, "at": theme.moment(one["at_ns"], zone)} for one in deeds[: cards.ROWS]]
    cards.table(pl.DataFrame(rows, infer_schema_length=None), "predictor_audit", columns=DEEDS)
