"""How many GPUs should each worker of the rollout have?

`fixed-d` does as told; `best-fixed` prices every homogeneous degree for the predicted lengths in
closed form (KV room, running cap and tools included), imagines near ones and takes the cheapest;
`exact` and `annealed` mix degrees and say how many of the longest each worker is meant for;
`simulated` imagines the rollout on candidates of both kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from heddle.controller.core.anneal import annealed_cut
from heddle.controller.core.cost import homogeneous_s
from heddle.controller.core.exact import Columns, Cut, Runs, best_cut, best_layout
from heddle.controller.core.imagined import imagined_s
from heddle.controller.core.types import CoreError, Latency, Layout, Work

NEAR: Final = 0.05
"""Makespans this close do not tell degrees apart. The closed form forgets that one large KV room
holds what two halves thrash over, and how badly lengths nobody knows split: of degrees that it puts
this close the rollout is imagined. Imagined ones forget prompts that siblings share: of near ones
the higher degree is taken. By the closed form alone a prefill-heavy rollout got TP2 and ended 8 %
later than on TP4; by imagining alone 43 of the 50 shifts of `heddle bench fleet` got the best
layout and not 46."""
MOST_IMAGINED: Final = 16_000
"""Trajectories of a rollout that is still imagined to tell near degrees apart: 6,400 on 64 GPUs
take half a CPU second a degree."""
LEAD: Final = 0.05
"""Mixed degrees must be imagined to end this much sooner: those that led by less ended up to 15 %
later in eight prefill-heavy rollouts, and in the policy study they rarely led at all."""

Allocation = Callable[[Sequence[Work], Mapping[int, Latency], int, np.random.Generator], Layout]
"""(expected trajectories, law of each degree, GPUs, chance) -> layout."""


def fixed(
    degree: int,
    works: Sequence[Work],
    laws: Mapping[int, Latency],
    gpus: int,
    rng: np.random.Generator,
) -> Layout:
    """Every worker of that degree; left-over GPUs stay unallocated."""
    _ = rng
    engines = gpus // degree
    if engines == 0 or degree not in laws:
        message = (
            f"fixed-{degree} needs a degree that fits {gpus} GPUs; choose one of {_fit(laws, gpus)}"
        )
        raise CoreError(message)
    price = homogeneous_s(works, laws[degree], engines) if works else None
    return _layout(degree, engines, works, price, f"every worker has degree {degree} by choice")


def best_fixed(
    works: Sequence[Work], laws: Mapping[int, Latency], gpus: int, rng: np.random.Generator
) -> Layout:
    """The homogeneous degree with the lowest closed-form makespan; of near ones what ends first as
    imagined (imagined.py)."""
    _ = rng
    degrees = _fitting(laws, gpus)
    if not works:
        because = "no lengths to plan for: the smallest degree that fits"
        return _layout(degrees[0], gpus // degrees[0], works, None, because)
    prices = {d: homogeneous_s(works, laws[d], gpus // d) for d in degrees}
    said = ", ".join(f"{d}: {s:.0f} s" for d, s in prices.items())
    because = f"ends first in closed form for {len(works)} trajectories ({said})"
    near = _near(prices)
    degree = max(near)
    if len(near) > 1 and len(works) <= MOST_IMAGINED:
        imagined = {d: imagined_s(works, laws, (d,) * (gpus // d)) for d in near}
        degree = min(near, key=lambda d: (imagined[d], -d))
        told = ", ".join(f"{d}: {s:.0f} s" for d, s in imagined.items())
        because = f"ends first as imagined ({told}), near in closed form ({said})"
    return _layout(degree, gpus // degree, works, prices[degree], f"degree {degree} {because}")


def exact(
    works: Sequence[Work], laws: Mapping[int, Latency], gpus: int, rng: np.random.Generator
) -> Layout:
    """The degrees and contiguous cut with the lowest closed-form makespan."""
    if not works:
        return best_fixed(works, laws, gpus, rng)
    cut = best_layout(_runs(works, laws, gpus), gpus)
    return _of_cut(cut, f"the best layout and cut of {len(works)} expected trajectories")


def annealed(
    works: Sequence[Work], laws: Mapping[int, Latency], gpus: int, rng: np.random.Generator
) -> Layout:
    """The paper's Algorithm 2 over the same cost."""
    if not works:
        return best_fixed(works, laws, gpus, rng)
    cut = annealed_cut(_runs(works, laws, gpus), gpus, rng)
    return _of_cut(cut, f"annealed for {len(works)} expected trajectories")


def simulated(
    works: Sequence[Work], laws: Mapping[int, Latency], gpus: int, rng: np.random.Generator
) -> Layout:
    """Of the homogeneous degrees, the exact layout and mixes of neighbours what ends first as
    imagined under `hold-kv` (imagined.py)."""
    if not works:
        return best_fixed(works, laws, gpus, rng)
    equal = {d: imagined_s(works, laws, (d,) * (gpus // d)) for d in _fitting(laws, gpus)}
    best = max(_near(equal))
    said = ", ".join(f"{d}: {s:.0f} s" for d, s in equal.items())
    runs = _runs(works, laws, gpus)
    mixed = {
        degrees: imagined_s(works, laws, degrees)
        for degrees in dict.fromkeys(
            [*_mixes(list(equal), best, gpus), best_layout(runs, gpus).degrees]
        )
        if len(set(degrees)) > 1
    }
    least = min(mixed, key=lambda degrees: mixed[degrees], default=())
    if least and mixed[least] < (1.0 - LEAD) * equal[best]:
        layout = _of_cut(best_cut(runs, sorted(least, reverse=True)), "")
        said = f"mixed degrees end first as imagined: {mixed[least]:.0f} s ({said})"
        return replace(layout, makespan_s=mixed[least], because=said)
    because = f"degree {best} ends first as imagined for {len(works)} trajectories ({said})"
    return _layout(best, gpus // best, works, equal[best], because)


def _near(prices: Mapping[int, float]) -> list[int]:
    """Degrees that the prices do not tell from the best."""
    least = min(prices.values())
    return [d for d, price in prices.items() if price <= (1.0 + NEAR) * least]


def _mixes(degrees: Sequence[int], best: int, gpus: int) -> list[tuple[int, ...]]:
    """The best degree with a half or a quarter of the GPUs in the next higher or lower one."""
    at = degrees.index(best)
    found: list[tuple[int, ...]] = []
    for other in (*degrees[max(at - 1, 0) : at], *degrees[at + 1 : at + 2]):
        for part in (2, 4):
            there = gpus // part // other
            here = (gpus - there * other) // best
            pair = sorted((best,) * here + (other,) * there, reverse=True)
            found += [tuple(pair)] if there and here else []
    return found


def _runs(works: Sequence[Work], laws: Mapping[int, Latency], gpus: int) -> dict[int, Runs]:
    columns = Columns.of(works)
    return {d: Runs(columns, laws[d]) for d in _fitting(laws, gpus)}


def _of_cut(cut: Cut, what: str) -> Layout:
    """Highest degrees first, as workers are numbered."""
    pairs = sorted(zip(cut.degrees, cut.shares, strict=True), key=lambda p: -p[0])
    return Layout(
        degrees=tuple(d for d, _ in pairs),
        shares=tuple(s for _, s in pairs),
        makespan_s=cut.makespan_s,
        because=f"{what}: {cut.makespan_s:.0f} s in closed form",
    )


def _fitting(laws: Mapping[int, Latency], gpus: int) -> list[int]:
    degrees = _fit(laws, gpus)
    if not degrees:
        message = f"no known degree fits {gpus} GPUs; known degrees are {sorted(laws)}"
        raise CoreError(message)
    return degrees


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
    "annealed": annealed,
    "exact": exact,
    "simulated": simulated,
}
