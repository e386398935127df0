"""How do pages ask the controller about its engines, and change which there are?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heddle.controller.wire_fleet import FleetApplyIn, FleetPlanIn
from heddle.dashboards.control import controller


def fleet() -> dict[str, Any]:
    """Workers and their engines, changes of the layout, costs, levers."""
    return controller().fleet().model_dump()


def drain(worker: str, who: str, why: str, *, token: str | None) -> dict[str, Any]:
    """It takes no new steps from now on."""
    return controller(token).drain(worker, who=who, why=why).model_dump()


def resume(worker: str, who: str, why: str, *, token: str | None) -> dict[str, Any]:
    """It takes steps again."""
    return controller(token).resume(worker, who=who, why=why).model_dump()


def plan_fleet(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a change of the layout would be; nothing happens."""
    return controller().plan_fleet(FleetPlanIn.model_validate(asked)).model_dump()


def apply_fleet(
    asked: Mapping[str, Any], who: str, why: str, *, token: str | None
) -> dict[str, Any]:
    """Change the layout; it goes on after the answer."""
    said = FleetApplyIn.model_validate({**asked, "who": who, "why": why})
    return controller(token).apply_fleet(said).model_dump()
