"""Which policies steer the fleet now, who changed them and why, and how does one change them?

A change is staged in the widgets, shown as before and after, and sent to the controller with a
name, a reason and the token. What the controller refuses is shown in its own words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.collector.errors import CollectorError
from heddle.dashboards import cards, client, control, facts, scope, shell, theme
from heddle.dashboards.views import whatif

SAYS: Final = {
    "order": "who goes first",
    "admission": "when a first step is let in",
    "placement": "where a trajectory lives",
    "migration": "when it changes worker",
    "allocation": "how many GPUs a worker has",
    "prediction": "whose lengths are believed",
}
_COLUMN = st.column_config
AUDIT: Final[dict[str, Any]] = {
    "at": _COLUMN.TextColumn("when", width="medium"),
    "choice": _COLUMN.TextColumn("choice"),
    "before": _COLUMN.TextColumn("from"),
    "after": _COLUMN.TextColumn("to"),
    "who": _COLUMN.TextColumn("who"),
    "why": _COLUMN.TextColumn("why", width=330),
}


def page() -> None:
    """Switches, presets, the change and its trail."""
    shell.opened("Policies")
    chosen = shell.quietly()
    run = chosen.run if chosen else scope.get("run") or None
    cards.fleet_time(_speeds(run))
    now, refused = client.attempt(lambda: control.switches(run))
    if now is None:
        cards.unreachable("controller", client.places().controller, control.START)
        st.text(refused or "")
    else:
        _change(now, run)
    _audit(run)
    _plan(run)
    whatif.panels(run, list(now["presets"]) if now else [])


def _speeds(run: str | None) -> list[float | None]:
    """Of the controller's clock and of the rollouts whose plans and changes are shown."""
    speeds = [control.clock_speed()]
    with suppress(CollectorError):
        speeds += client.ask("rollouts", run=run)["clock_speed"].to_list()
    return speeds


def _change(now: Mapping[str, Any], run: str | None) -> None:
    known, presets = now["known"], now["presets"]
    preset = now["preset"] or "no preset, a mix"
    of = f" for run {cards.plain(run)}" if run else ""
    st.markdown(f"In force{of}: **{cards.plain(preset)}**.")
    _presets(presets, now["preset"])
    staged = _choices(now["switches"], known)
    changed = {choice: to for choice, to in staged.items() if to != now["switches"].get(choice)}
    _apply(now["switches"], changed, presets, run)


def _stage(policies: Mapping[str, str]) -> None:
    for choice, policy in policies.items():
        st.session_state[f"policies_{choice}"] = policy


def _unstage() -> None:
    for choice in SAYS:
        st.session_state.pop(f"policies_{choice}", None)


def _presets(presets: Mapping[str, Mapping[str, str]], now: str | None) -> None:
    st.caption("Presets fill in the six choices; nothing changes before you apply.")
    with st.container(horizontal=True):
        for name, policies in presets.items():
            st.button(
                cards.plain(name),
                key=f"policies_preset_{name}",
                type="primary" if name == now else "secondary",
                on_click=_stage,
                args=(dict(policies),),
            )


def _choices(now: Mapping[str, str], known: Mapping[str, Sequence[str]]) -> dict[str, str]:
    staged: dict[str, str] = {}
    with st.grid(min_column_width=240, gap="small"):
        for choice, policy in now.items():
            options = list(dict.fromkeys([*known.get(choice, ()), policy]))
            key = f"policies_{choice}"
            if st.session_state.get(key) not in options:
                st.session_state[key] = policy
            said = f"{choice}: {SAYS[choice]}" if choice in SAYS else cards.plain(choice)
            staged[choice] = st.selectbox(said, options, key=key) or policy
    return staged


def _apply(
    now: Mapping[str, str],
    changed: Mapping[str, str],
    presets: Mapping[str, Mapping[str, str]],
    run: str | None,
) -> None:
    if not changed:
        st.caption("The choices above are the ones in force.")
        return
    with st.container(border=True):
        st.markdown("**This changes**")
        for choice, policy in changed.items():
            st.text(f"{choice}: {now.get(choice)} → {policy}")
        who, why = cards.who_and_why("policies")
        ready = bool(who and why)
        with st.container(horizontal=True):
            if st.button("Apply", key="policies_apply", type="primary", disabled=not ready):
                _send(_request(now, changed, presets), who, why, cards.token("policies"), run)
            st.button("Discard", key="policies_discard", on_click=_unstage)
        if not ready:
            st.caption("A change needs a name and a reason.")


def _request(
    now: Mapping[str, str], changed: Mapping[str, str], presets: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """The preset's name where the staged choices are one, else only what changes."""
    staged = {**now, **changed}
    for name, policies in presets.items():
        if all(staged.get(choice) == policy for choice, policy in policies.items()):
            return {"preset": name}
    return dict(changed)


def _send(asked: Mapping[str, str], who: str, why: str, token: str | None, run: str | None) -> None:
    _, refused = client.attempt(lambda: control.switch(run, asked, who=who, why=why, token=token))
    if refused is not None:
        st.error(cards.plain(refused))
        return
    client.forget()
    st.toast("Switched.")
    # The staged values equal what is in force now; the reason belongs to the change just made.
    st.session_state.pop("policies_why", None)
    st.rerun()


def _audit(run: str | None) -> None:
    st.subheader("Who changed what", anchor=False)
    rows, refused = client.attempt(lambda: control.audit(run))
    if refused is not None:
        rows, refused = client.attempt(lambda: client.ask("switches", run=run).to_dicts())
    if refused is not None or not rows:
        st.caption("No change has been recorded." if refused is None else cards.plain(refused))
        return
    zone = scope.get("tz", "UTC")
    newest = sorted(rows, key=lambda row: -(row["at_ns"] or 0))[:200]
    shown = [{**row, "at": theme.moment(row["at_ns"], zone)} for row in newest]
    frame = pl.DataFrame([{name: _word(row.get(name)) for name in AUDIT} for row in shown])
    cards.table(frame, "policies_audit", columns=AUDIT)


def _word(value: object) -> str:
    return "" if value is None else str(value)


def _plan(run: str | None) -> None:
    try:
        plans = client.ask("plans", run=run) if run else client.ask("plans")
    except CollectorError:
        return
    if plans.is_empty():
        return
    st.subheader("The latest plan", anchor=False)
    row = plans.sort("at_ns").row(-1, named=True)
    cards.numbers(
        [
            cards.Number("Layout", facts.layout(row["layout"]), "Degrees of the workers"),
            cards.Number(
                "Makespan", theme.seconds(row["predicted_makespan_s"]), "What the plan expects"
            ),
            cards.Number(
                "Planning took", theme.seconds(row["solve_s"]), "Seconds of the controller"
            ),
        ]
    )
    if row["because"]:
        st.text(f"Because {row['because']}")
