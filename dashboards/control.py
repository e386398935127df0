"""How do pages ask the controller, and change something in it?

Nothing is kept: what steers a fleet is asked for each time. A refusal is raised as the controller
said it; `client.attempt` turns it into a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import streamlit as st

from heddle.controller.client import ControllerClient
from heddle.controller.errors import ControllerError
from heddle.controller.wire_predictor import JobAsked
from heddle.dashboards.client import places

START: Final = "heddle control"


@st.cache_resource(max_entries=4, show_spinner=False, on_release=ControllerClient.close)
def _controller(url: str, token: str | None) -> ControllerClient:
    return ControllerClient(url, token=token, timeout_s=10)


def controller(token: str | None = None) -> ControllerClient:
    """The controller's client, with *token* or the one this dashboard was started with."""
    return _controller(places().controller, token or places().token)


def clock_speed() -> float | None:
    """How fast the controller's clock runs; None where it does not answer."""
    try:
        return float(controller().health().clock_speed)
    except (ControllerError, ValueError):  # a ValueError: a controller of other fields
        return None


def switches(run: str | None) -> dict[str, Any]:
    """What is in force: preset, switches, known policies, presets."""
    return controller().switches(run or "").model_dump()


def switch(
    run: str | None, asked: Mapping[str, str], *, who: str, why: str, token: str | None
) -> dict[str, Any]:
    """Ask the controller to change *asked*; its refusal is raised."""
    return controller(token).switch(run=run, who=who, why=why, **asked).model_dump()


def predictor() -> dict[str, Any]:
    """Who predicts, and the versions there are, newest first."""
    return controller().predictor().model_dump()


def predictor_card(version: str) -> dict[str, Any]:
    """Card, gate's table and training of one version."""
    return controller().predictor_card(version).model_dump()


def predictor_audit() -> list[dict[str, Any]]:
    """Who saved, promoted, forced or took back what, newest first."""
    return [deed.model_dump() for deed in controller().predictor_audit()]


def jobs() -> list[dict[str, Any]]:
    """Trainings and evaluations, newest first."""
    return [job.model_dump() for job in controller().jobs()]


def job(job_id: str) -> dict[str, Any]:
    """How far it is, and how it ended."""
    return controller().job(job_id).model_dump()


def begin_job(asked: Mapping[str, Any], who: str, why: str, *, token: str | None) -> dict[str, Any]:
    """Train or evaluate; returns at once."""
    said = JobAsked.model_validate({**asked, "who": who, "why": why})
    return controller(token).begin_job(said).model_dump()


def cancel_job(job_id: str, *, token: str | None) -> dict[str, Any]:
    """End it."""
    return controller(token).cancel_job(job_id).model_dump()


def promote(version: str, who: str, why: str, *, force: bool, token: str | None) -> dict[str, Any]:
    """Put a version live; its refusal is raised."""
    return controller(token).promote(version, who=who, why=why, force=force).model_dump()


def rollback(who: str, why: str, *, token: str | None) -> dict[str, Any]:
    """What served before serves again."""
    return controller(token).rollback(who=who, why=why).model_dump()


def audit(run: str | None) -> list[dict[str, Any]]:
    """Every change the controller made, with who and why."""
    entries = [entry.model_dump() for entry in controller().audit()]
    return [entry for entry in entries if run is None or entry["run"] in (run, "")]
