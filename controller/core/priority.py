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

IN_FLIGHT: Final = len(BANDS_TOKENS) + 1


def expected_tokens(trajectory: Trajectory, rates: Rates) -> float:
    """Mean of the remaining output tokens, by its prediction or the rates."""
    known = trajectory.remaining
    return known.mean if known is not None else rates.remaining_tokens


def arrival_order(waiting: Sequence[Trajectory], rates: Rates) -> list[Trajectory]:
    """First come, first served."""
    _ = rates
    return sorted(waiting, key=lambda t: t.arrival)


def round_robin(waiting: Sequence[Trajectory], rates: Rates) -> list[Trajectory]:
    """Turns: whoever had the fewest steps goes first; ties keep arrival order."""
    _ = rates
    return sorted(waiting, key=lambda t: (t.steps, t.arrival))


def least_attained(waiting: Sequence[Trajectory], rates: Rates) -> list[Trajectory]:
    """Fewest output tokens so far first (Autellix); ties keep arrival order."""
    _ = rates
    return sorted(waiting, key=lambda t: (t.output_tokens, t.arrival))


def shortest_first(waiting: Sequence[Trajectory], rates: Rates) -> list[Trajectory]:
    """Shortest expected remaining first; ties keep arrival order."""
    return sorted(waiting, key=lambda t: (expected_tokens(t, rates), t.arrival))


def longest_first(waiting: Sequence[Trajectory], rates: Rates) -> list[Trajectory]:
    """Longest expected remaining first; ties keep arrival order."""
    return sorted(waiting, key=lambda t: (-expected_tokens(t, rates), t.arrival))


def longest_fresh(waiting: Sequence[Trajectory], rates: Rates) -> list[Trajectory]:
    """Fresh ones longest first, started ones as they come: their KV is what must not wait."""
    return sorted(
        waiting, key=lambda t: (-expected_tokens(t, rates) if t.is_fresh else 0.0, t.arrival)
    )


ORDERS: Final[dict[str, Order]] = {
    "fcfs": arrival_order,
    "round-robin": round_robin,
    "least-attained": least_attained,
    "shortest-first": shortest_first,
    "longest-first": longest_first,
    "longest-fresh": longest_fresh,
}


def in_flight_first(ordered: Sequence[Trajectory]) -> list[Trajectory]:
    """The same order, steps of started trajectories before first ones."""
    return sorted(ordered, key=lambda t: t.is_fresh)


def band(order: str, trajectory: Trajectory, rates: Rates) -> int | None:
    """The priority sent to the engine, higher first; None leaves the engine its own order."""
    if order == "longest-first":
        return _band(expected_tokens(trajectory, rates))
    if order == "shortest-first":
        return len(BANDS_TOKENS) - _band(expected_tokens(trajectory, rates))
    if order == "least-attained":
        return len(BANDS_TOKENS) - _band(trajectory.output_tokens)
    if order == "longest-fresh":
        # Above every fresh one: a started step that waits finds its prefix evicted.
        return _band(expected_tokens(trajectory, rates)) if trajectory.is_fresh else IN_FLIGHT
    return None


def _band(tokens: float) -> int:
    return sum(tokens >= edge for edge in BANDS_TOKENS)
