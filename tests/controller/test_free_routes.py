"""Which calls change something without the token? Those named here, whole, and no other."""

from __future__ import annotations

import re

import pytest

from heddle.controller.control import control_app
from heddle.controller.security import READS, Guard, Refused


def changes():
    """Every route of the control plane that is no question, as METHOD PATH."""
    described = control_app(lambda: None).openapi()["paths"]
    return {
        f"{method.upper()} {path}"
        for path, methods in described.items()
        for method in methods
        if method.upper() not in READS
    }


def opened(call, **how):
    method, path = re.sub(r"\{[^}]*\}", "x", call).split(" ")
    try:
        Guard("secret", **how).check_change(method, path, {"content-type": "application/json"})
    except Refused:
        return False
    return True


def test_every_route_wants_the_token_but_those_named_here():
    free = {
        "POST /heddle/v1/acquire",
        "POST /heddle/v1/release",
        "POST /heddle/v1/trajectories/{trajectory}/finish",
        "POST /heddle/v1/trajectories/{trajectory}/tool",
        "POST /finish_session",
        "POST /programs/release",
        "POST /close_session",
    }
    registers = {"POST /workers", "POST /add_worker", "POST /remove_worker"}
    registers |= {"DELETE /workers/{worker}"}
    assert {call for call in changes() if opened(call)} == free
    assert {call for call in changes() if opened(call, open_registration=True)} == free | registers


@pytest.mark.parametrize(
    "call",
    [
        "POST /heddle/v1/trajectories/t/delete",
        "POST /heddle/v1/trajectories/swe/t/delete",
        "POST /heddle/v1/trajectories/t/finish/all",
        "POST /heddle/v1/trajectories//finish",
        "DELETE /heddle/v1/trajectories/t/finish",
        "PUT /heddle/v1/acquire",
        "POST /workers/x/drain",
    ],
)
def test_what_only_begins_like_a_free_route_is_not_free(call):
    assert not opened(call, open_registration=True)
