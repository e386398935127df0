"""How does one train a predictor from a page, put it live, and take that back?

Training is a job of the controller: the page starts it, follows it and shows what the gate said.
Every change carries a name and a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import streamlit as st

from heddle.dashboards import cards, client, control, theme
from heddle.dashboards.views import gate

POLL_S: Final = 1.0
DONE: Final = "Done; the next prediction is by what serves now."


def panel(state: Mapping[str, Any], run: str | None) -> None:
    """Start a training, follow the one under way, read how the last one ended."""
    st.subheader("Retrain", anchor=False)
    jobs, refused = client.attempt(control.jobs)
    if jobs is None:
        st.caption(cards.plain(refused))
        return
    last = jobs[0] if jobs else None
    if last is not None and last["state"] == "running":
        st.fragment(_progress, run_every=POLL_S)(last["id"])
        return
    _start(run)
    if last is not None:
        _ended(last)
    if state["version"] in {one["version"] for one in state["versions"]}:
        _rollback(state)


def _start(run: str | None) -> None:
    with st.form("retrain", border=True):
        what, split = st.columns(2)
        options = [run, "all runs"] if run else ["all runs"]
        of = what.selectbox("From trajectories of", options, key="retrain_run")
        held = split.selectbox("Held out whole", ["group", "task", "rollout"], key="retrain_split")
        live = st.toggle("Put it live if the gate accepts it", key="retrain_live", value=True)
        who, why = cards.who_and_why("retrain")
        if st.form_submit_button("Train", type="primary"):
            _begin(None if of == "all runs" else of, held or "group", live=live, said=(who, why))


def _begin(run: str | None, split: str, *, live: bool, said: tuple[str, str]) -> None:
    if not all(said):
        st.error("A training needs a name and a reason.")
        return
    asked = {"kind": "train", "run": run, "split": split, "promote": live}
    _, refused = client.attempt(
        lambda: control.begin_job(asked, *said, token=cards.token("retrain"))
    )
    if refused is not None:
        st.error(cards.plain(refused))
        return
    st.rerun()


def _progress(job_id: str) -> None:
    job, refused = client.attempt(lambda: control.job(job_id))
    if job is None:
        st.caption(cards.plain(refused))
        return
    if job["state"] != "running":
        st.rerun(scope="app")
    st.progress(min(max(job["progress"], 0.0), 1.0), cards.plain(job["sentence"]))
    if st.button("Cancel", key="retrain_cancel"):
        client.attempt(lambda: control.cancel_job(job_id, token=cards.token("retrain")))


def _ended(job: Mapping[str, Any]) -> None:
    """Promoted, accepted, refused with its table, or failed with its sentence."""
    what = "training" if job["kind"] == "train" else "evaluation"
    took = theme.nanoseconds((job["ended_ns"] or job["started_ns"]) - job["started_ns"])
    said = f"The last {what} {_verdict(job)} ({took}): {cards.plain(gate.reason(job['sentence']))}"
    if job["state"] == "failed":
        st.error(said)
    elif job["accepted"] is False:
        st.warning(said)
        if job["table"]:
            gate.show(job["table"], "retrain_table")
    else:
        st.success(said)


def _verdict(job: Mapping[str, Any]) -> str:
    if job["state"] != "done":
        return "failed" if job["state"] == "failed" else "was cancelled"
    if job["promoted"]:
        return "was accepted and serves now"
    return {True: "was accepted", False: "was refused by the gate", None: "ended"}[job["accepted"]]


def deeds(card: Mapping[str, Any]) -> None:
    """Promote that version, by force where the gate refused it."""
    if card["serving"]:
        st.caption("This version serves.")
        return
    with st.popover("Put it live" if card["accepted"] else "Put it live by force"):
        who, why = cards.who_and_why("promote")
        if not card["accepted"]:
            st.caption("The gate refused it: that you overrode it is kept in the audit.")
        force, token = not card["accepted"], cards.token("promote")
        if st.button("Promote", key="promote_go", type="primary", disabled=not (who and why)):
            cards.done(
                lambda: control.promote(card["version"], who, why, force=force, token=token), DONE
            )


def _rollback(state: Mapping[str, Any]) -> None:
    with st.popover("Roll back"):
        st.caption(f"What served before {cards.plain(state['version'])} serves again.")
        who, why = cards.who_and_why("rollback")
        if st.button("Roll back now", key="rollback_go", disabled=not (who and why)):
            cards.done(lambda: control.rollback(who, why, token=cards.token("rollback")), DONE)
