"""Who of the waiting goes first, and which band does the engine get to see?

Steps of trajectories already in flight go before fresh ones under every order: with KV full, a
returning step behind fresh ones finds its prefix evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from heddle.controller.core.types import Rates, Trajectory

Order = Callable[[Sequence[Trajectory], Rates], list[Trajectory]]

# Bands, never raw lengths: an engine keeps one metric series per distinct priority. Ten apart or
# less never preempts at SGLang's default threshold of 10 (strictly greater).
BANDS_TOKENS: Final = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


def expected_tokens(trajectory: Trajectory, rates: Rates) -> float:
    """Mean of the remaining output tokens, by its prediction or the rates."""
    known = trajectory.remaining
    return known.mean if known is not None else rates.remaining_tokens


def arrival_order(waiting: Sequence[Trajectory], rates: Rates) -> list[Trajectory]:
    """First come, first served."""
    _ = rates
    return sorted(waiting, key=lambda t: t.arrival)


def longest_first(waiting: Sequence[Trajectory], rates: Rates) -> list[Trajectory]:
    """Longest expected remaining first; ties keep arrival order."""
    return sorted(waiting, key=lambda t: (-expected_tokens(t, rates), t.arrival))


ORDERS: Final[dict[str, Order]] = {"fcfs": arrival_order, "longest-first": longest_first}


def in_flight_first(ordered: Sequence[Trajectory]) -> list[Trajectory]:
    """The same order, steps of started trajectories before first ones."""
    return sorted(ordered, key=lambda t: t.is_fresh)


def band(order: str, trajectory: Trajectory, rates: Rates) -> int | None:
    """The priority sent to the engine; none under fcfs, which is the engine's own order."""
    if order == "fcfs":
        return None
    tokens = expected_tokens(trajectory, rates)
    return sum(tokens >= edge for edge in BANDS_TOKENS)
