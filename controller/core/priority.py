"""Who of the waiting goes first, and which band does the engine get to see?

Steps of trajectories already in flight go before fresh ones under every order: with KV full, a
returning step behind fresh ones finds its prefix evicted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Self

import numpy as np

from heddle.controller.core.draws import Floats, Ints
from heddle.controller.core.types import Rates, Trajectory

# Bands, never raw lengths: an engine keeps one metric series per distinct priority. Ten apart or
# less never preempts at SGLang's default threshold of 10 (strictly greater).
BANDS_TOKENS: Final = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)

IN_FLIGHT: Final = len(BANDS_TOKENS) + 1
# Two guards against starvation, far beyond what an order makes anybody wait on purpose.
AGE_S: Final = 300.0
"""Seconds at an engine that lift a step by a band."""
OVERTAKEN: Final = 65_536
"""Steps that came after a waiting one, beyond which it goes before all that are not as late."""


def expected_tokens(trajectory: Trajectory, rates: Rates) -> float:
    """Mean of the remaining output tokens, by its prediction or the rates."""
    known = trajectory.remaining
    return known.mean if known is not None else rates.remaining_tokens


@dataclass(frozen=True, slots=True)
class Standing:
    """What the orders look at, one value a waiting trajectory."""

    arrival: Floats
    steps: Floats
    attained: Floats
    expected: Floats
    fresh: Floats

    @classmethod
    def of(cls, waiting: Sequence[Trajectory], rates: Rates) -> Self:
        """Of facts that nobody keeps in columns."""
        rows = [
            (t.arrival, t.steps, t.output_tokens, expected_tokens(t, rates), t.is_fresh)
            for t in waiting
        ]
        return cls(*np.array(rows, dtype=np.float64).reshape(-1, 5).T)


Order = Callable[[Standing], Floats]
"""A key for each: the lowest goes first, ties keep arrival order."""


def arrival_order(standing: Standing) -> Floats:
    """First come, first served."""
    return np.zeros_like(standing.arrival)


def round_robin(standing: Standing) -> Floats:
    """Turns: whoever had the fewest steps goes first."""
    return standing.steps


def least_attained(standing: Standing) -> Floats:
    """Fewest output tokens so far first (Autellix)."""
    return standing.attained


def shortest_first(standing: Standing) -> Floats:
    """Shortest expected remaining first."""
    return standing.expected


def longest_first(standing: Standing) -> Floats:
    """Longest expected remaining first."""
    return -standing.expected


def longest_fresh(standing: Standing) -> Floats:
    """Fresh ones longest first, started ones as they come: their KV is what must not wait."""
    return -standing.expected * standing.fresh


ORDERS: Final[dict[str, Order]] = {
    "fcfs": arrival_order,
    "round-robin": round_robin,
    "least-attained": least_attained,
    "shortest-first": shortest_first,
    "longest-first": longest_first,
    "longest-fresh": longest_fresh,
}
AS_THEY_COME: Final = frozenset({"fcfs", "longest-fresh"})
"""Orders that know no difference between started ones but their arrival."""


def in_flight_first(order: str, standing: Standing) -> Ints:
    """Who goes first, second, ...: steps of started trajectories before first ones, and among each
    those that were overtaken too often, as they came."""
    key, arrival = ORDERS[order](standing), standing.arrival
    if arrival.size and (newest := arrival.max()) - arrival.min() > OVERTAKEN:
        key = np.where(newest - arrival > OVERTAKEN, -np.inf, key)
    return np.lexsort((arrival, key, standing.fresh))


def started_first(
    order: str, returning: Sequence[Trajectory], rates: Rates
) -> Sequence[Trajectory]:
    """Started ones alone, in their order: two or three a turn, and mostly as they came."""
    if order in AS_THEY_COME:
        return sorted(returning, key=attrgetter("arrival"))
    first = in_flight_first(order, Standing.of(returning, rates))
    return [returning[i] for i in first.tolist()]


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


def aged(priority: int | None, waited_s: float) -> int | None:
    """That band after so long: never above the highest, so that age alone preempts nobody."""
    if priority is None or priority >= IN_FLIGHT:
        return priority
    return min(priority + int(waited_s / AGE_S), IN_FLIGHT)


def _band(tokens: float) -> int:
    return bisect_right(BANDS_TOKENS, tokens)
