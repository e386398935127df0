"""What does the core believe of an engine's speed, degree by degree?

The fitted profiles of `models.latency` as the core's `Latency`; a degree nobody profiled is
believed to be like the nearest one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from heddle.controller.core.types import Fetches, Latency
from heddle.models.latency import load_profile


def laws(system: str, model: str) -> dict[int, Latency]:
    """Every profiled degree of that model on that system."""
    return {
        degree: Latency(
            degree=degree,
            a_s=law.a_s,
            b_s=law.b_s,
            c_s=law.c_s,
            p0_s=law.p0_s,
            p1_s=law.p1_s,
            p2_s=law.p2_s,
            kv_tokens=law.kv_tokens,
        )
        for degree, law in load_profile(system, model).degrees.items()
    }


def fetches(system: str, model: str) -> Fetches:
    """Seconds a token that engines were measured to fetch, by storage and degree; most profiles
    name none."""
    return {
        (law.storage, degree): law.fetch_token_s
        for degree, law in load_profile(system, model).degrees.items()
        if law.fetch_token_s is not None
    }


def law_of(known: Mapping[int, Latency]) -> Callable[[int], Latency]:
    """Degree -> law, also for degrees that were not profiled."""

    def law(degree: int) -> Latency:
        nearest = min(known, key=lambda profiled: (abs(profiled - degree), profiled))
        return replace(known[nearest], degree=degree)

    return law
