"""How many GPUs should each worker of the rollout have?

`fixed-d` does as told; `best-fixed` prices every homogeneous degree for the predicted lengths in
closed form (KV room, running cap and tools included) and takes the cheapest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from heddle.controller.core.cost import homogeneous_s
from heddle.controller.core.types import CoreError, Latency, Layout, Work

Allocation = Callable[[Sequence[Work], Mapping[int, Latency], int], Layout]


def fixed(degree: int, works: Sequence[Work], laws: Mapping[int, Latency], gpus: int) -> Layout:
    """Every worker of that degree; left-over GPUs stay unallocated."""
    engines = gpus // degree
    if engines == 0 or degree not in laws:
        message = (
            f"fixed-{degree} needs a degree that fits {gpus} GPUs; choose one of {_fit(laws, gpus)}"
        )
        raise CoreError(message)
    price = homogeneous_s(works, laws[degree], engines) if works else None
    return _layout(degree, engines, works, price, f"every worker has degree {degree} by choice")


def best_fixed(works: Sequence[Work], laws: Mapping[int, Latency], gpus: int) -> Layout:
    """The homogeneous degree with the lowest closed-form makespan; ties to the smaller degree."""
    degrees = _fit(laws, gpus)
    if not degrees:
        message = f"no known degree fits {gpus} GPUs; known degrees are {sorted(laws)}"
        raise CoreError(message)
    if not works:
        because = "no lengths to plan for: the smallest degree that fits"
        return _layout(degrees[0], gpus // degrees[0], works, None, because)
    prices = {d: homogeneous_s(works, laws[d], gpus // d) for d in degrees}
    degree = min(degrees, key=lambda d: prices[d])
    said = ", ".join(f"{d}: {s:.0f} s" for d, s in prices.items())
    because = f"degree {degree} ends first for {len(works)} expected trajectories ({said})"
    return _layout(degree, gpus // degree, works, prices[degree], because)


def _fit(laws: Mapping[int, Latency], gpus: int) -> list[int]:
    """Degrees that fit the GPUs and leave KV room, ascending."""
    return sorted(d for d, law in laws.items() if d <= gpus and law.kv_tokens > 0)


def _layout(
    degree: int, engines: int, works: Sequence[Work], price: float | None, because: str
) -> Layout:
    return Layout(
        degrees=(degree,) * engines,
        shares=tuple(
            len(works) * (i + 1) // engines - len(works) * i // engines for i in range(engines)
        ),
        makespan_s=price,
        because=because,
    )


ALLOCATIONS: Final[dict[str, Allocation]] = {
    **{f"fixed-{d}": partial(fixed, d) for d in (1, 2, 4, 8)},
    "best-fixed": best_fixed,
}
