"""What would another layout cost and gain, and who wants it? Plan first, then apply.

The plan is the controller's; nothing changes before it is applied with a name and a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import streamlit as st

from heddle.dashboards import cards, client, engines, facts, scope, theme

_PLAN: Final = "relayout_plan"


def panel(now: Mapping[str, Any], run: str | None) -> None:
    """Type a layout or let the run's policy choose, see the plan, apply it."""
    st.subheader("Change the layout", anchor=False)
    if now["unavailable"]:
        st.info(f"The layout cannot change: {cards.plain(now['unavailable'])}")
    with st.form("relayout", border=False):
        text = st.text_input(
            "Degrees, as 1,1,2,4; empty: what the allocation policy wants",
            value=scope.get("layout"),
            key="relayout_layout",
        )
        if st.form_submit_button("Plan"):
            scope.put("layout", text.strip() or None)
            st.session_state[_PLAN] = _planned(text, run)
    plan = st.session_state.get(_PLAN)
    if plan is not None:
        _show(plan)


def _planned(text: str, run: str | None) -> dict[str, Any] | None:
    asked: dict[str, Any] = {"run": run} if run else {}
    if text.strip():
        parts = [part.strip() for part in text.replace("+", ",").split(",")]
        if not all(part.isdigit() and int(part) > 0 for part in parts):
            st.error("A layout is whole numbers from 1 up with commas between, as 1,1,2,4.")
            return None
        asked["layout"] = [int(part) for part in parts]
    plan, refused = client.attempt(lambda: engines.plan_fleet(asked))
    if plan is None:
        st.error(cards.plain(refused))
        return None
    return {**plan, "asked": asked}


def _show(plan: Mapping[str, Any]) -> None:
    before, after = (facts.layout(",".join(map(str, plan[at]))) for at in ("before", "layout"))
    with st.container(border=True):
        st.markdown(f"**{before} → {after}**")
        st.text(plan["because"])
        cards.numbers(
            [
                cards.Number("Costs", theme.seconds(plan["cost_s"]), "Fleet seconds expected"),
                cards.Number("Gains", theme.seconds(plan["gain_s"]), "Of the makespan expected"),
                cards.Number("Makespan", theme.seconds(plan["makespan_s"]), "Expected after it"),
                cards.Number(
                    "Least serving",
                    f"{plan['lowest_gpus']} GPUs",
                    f"The floor is {plan['floor_gpus']}",
                ),
                cards.Number("Waves", str(len(plan["waves"])), "One after the other"),
                cards.Number("Stay", str(len(plan["stays"])), "Workers that go on"),
            ]
        )
        for number, wave in enumerate(plan["waves"], start=1):
            for group in wave:
                st.text(f"wave {number}: {_group(group)}")
        if not plan["available"]:
            st.warning(cards.plain(plan["unavailable"]))
            return
        _apply(plan)


def _group(group: Mapping[str, Any]) -> str:
    starts = ", ".join(f"TP{one['degree']} ({one['method']})" for one in group["starts"])
    names = sorted(group["drains"], key=lambda name: (len(name), name))
    drains = f"{', '.join(names) or 'nobody'} {'drain' if len(names) > 1 else 'drains'}"
    return f"{drains}; starts {starts or 'nothing'}"


def _apply(plan: Mapping[str, Any]) -> None:
    if not plan["change"]:
        st.caption(
            "Its gain does not beat its cost with the margin; it can be applied all the same."
        )
    who, why = cards.who_and_why("relayout")
    if st.button("Apply", key="relayout_apply", type="primary", disabled=not (who and why)):
        st.session_state.pop(_PLAN, None)
        token = cards.token("relayout")
        cards.done(
            lambda: engines.apply_fleet(plan["asked"], who, why, token=token),
            "The layout is changing.",
        )
