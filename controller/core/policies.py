"""Which policies are there for each choice, and which sets of them have a name?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from heddle.controller.core.admission import ADMISSIONS
from heddle.controller.core.allocation import ALLOCATIONS
from heddle.controller.core.migration import MIGRATIONS
from heddle.controller.core.placement import PLACEMENTS
from heddle.controller.core.priority import ORDERS
from heddle.controller.core.types import CoreError, Switches

CHOICES: Final = ("order", "admission", "placement", "migration", "allocation", "prediction")

KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "order": tuple(ORDERS),
    "admission": tuple(ADMISSIONS),
    "placement": tuple(PLACEMENTS),
    "migration": tuple(MIGRATIONS),
    "allocation": tuple(ALLOCATIONS),
    "prediction": ("none", "group-history", "learned"),
}


def _preset(*policies: str) -> Switches:
    return Switches(**dict(zip(CHOICES, policies, strict=True)))


PRESETS: Final[Mapping[str, Switches]] = {
    "verl": _preset("fcfs", "none", "sticky", "off", "fixed-1", "none"),
    "verl-star": _preset("fcfs", "none", "hybrid", "off", "fixed-1", "none"),
    "slime": _preset("fcfs", "none", "least-load", "off", "fixed-1", "none"),
    "heddle-paper": _preset(
        "longest-first", "none", "presorted", "rank", "annealed", "group-history"
    ),
    "heddle": _preset(
        "longest-fresh", "hold-kv", "mix", "rebalance", "best-fixed", "group-history"
    ),
}


class UnknownPolicy(CoreError):
    """A choice, policy or preset nobody knows; names the ones there are."""

    def __init__(self, choice: str, name: str) -> None:
        known = ", ".join(sorted(KNOWN.get(choice, tuple(PRESETS))))
        super().__init__(f"no {choice} policy called {name!r}; choose one of {known}")


class UnknownChoice(CoreError):
    """A switch nobody knows."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no choice called {name!r}; the choices are {', '.join(CHOICES)}")


def preset_switches(name: str) -> Switches:
    """The switches of a preset, or a sentence naming the presets."""
    if name not in PRESETS:
        raise UnknownPolicy(choice="preset", name=name)
    return PRESETS[name]


def preset_name(switches: Switches) -> str | None:
    """The preset these switches equal, if any."""
    return next((n for n, known in PRESETS.items() if known == switches), None)


def changed(switches: Switches, changes: Mapping[str, str]) -> Switches:
    """The switches after those changes; every name is checked before any takes effect."""
    for choice, policy in changes.items():
        if choice not in KNOWN:
            raise UnknownChoice(choice)
        if policy not in KNOWN[choice]:
            raise UnknownPolicy(choice, policy)
    return Switches(**{**asdict(switches), **changes})


def spelled(switches: Switches) -> str:
    """As spans carry it: choice=policy,..."""
    return ",".join(f"{choice}={policy}" for choice, policy in asdict(switches).items())
