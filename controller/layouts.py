"""Which layout does a rollout want, and is it worth a change?

Lengths from history -> the run's allocation policy -> degrees; then what they gain against what the
change costs. A fixed degree is an order and not weighed. Layouts change at a rollout's begin, while
no step runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from heddle.controller.beliefs import Expected
from heddle.controller.core.allocation import ALLOCATIONS
from heddle.controller.core.cost import expected_ranks
from heddle.controller.core.imagined import imagined_s
from heddle.controller.core.types import CoreError, Latency, Layout, Work
from heddle.controller.core.worth import Pricing, Verdict, imagined, priced_s, worth
from heddle.controller.loop import Loop
from heddle.controller.reallocation import Reallocator
from heddle.controller.wire import RolloutBegin
from heddle.controller.wire_fleet import FleetPlanIn

T = TypeVar("T")


class Solve(Protocol):
    """Where layouts are worked out: seconds that a loop with steps under way cannot spare."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Its result."""
        ...


IMAGINED_UNDER: Final = "hold-kv"
WORLDS = 16
PRICES: Mapping[str, Pricing] = {"simulated": imagined}
"""How the layouts of an allocation are compared; else in closed form."""


@dataclass(frozen=True, slots=True)
class Considered:
    """A layout and the trajectories it was chosen for."""

    works: list[Work]
    degrees: tuple[int, ...]
    makespan_s: float | None
    because: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a rollout gets."""

    layout: Layout
    change: bool
    gain_s: float | None = None


class Layouts:
    """Chooses for one fleet."""

    def __init__(
        self,
        loop: Loop,
        moves: Reallocator,
        laws: Mapping[int, Latency],
        gpus: int,
        solve: Solve = asyncio.to_thread,
    ) -> None:
        self._solve = solve
        self._loop = loop
        self._moves = moves
        self._laws = laws
        self._gpus = gpus
        self._asked: dict[str, RolloutBegin] = {}

    async def expected(self, asked: RolloutBegin) -> tuple[str, list[Work]]:
        """What the lengths rest on, and one work a trajectory, longest first."""
        self._asked[asked.run] = asked
        switches = self._loop.switchboard.of(asked.run)
        basis = "prediction is off"
        if switches.prediction != "none":
            basis = await self._loop.beliefs.refresh(asked.run, asked.rollout)
            if switches.prediction == "learned":
                version = self._loop.beliefs.learned(asked.run).version
                basis += f"; {version} predicts"
        groups = [
            Expected(group=g.group, samples=g.samples, task=g.task, prompt_tokens=g.prompt_tokens)
            for g in asked.groups
        ] or [Expected(group="", samples=asked.expected)]
        worlds = _worlds(sum(group.samples for group in groups))
        drawn = [self._loop.beliefs.works(asked.run, groups, self._loop.rng) for _ in range(worlds)]
        return basis, expected_ranks(drawn)

    async def choose(self, run: str, works: list[Work]) -> Chosen:
        """The layout of a rollout that begins now, and its makespan as far as it is foreseen."""
        chosen = await self._chosen(run, works)
        foreseen_s = await self._foreseen_s(run, works, chosen.layout)
        return replace(chosen, layout=replace(chosen.layout, makespan_s=foreseen_s))

    async def _foreseen_s(self, run: str, works: list[Work], layout: Layout) -> float | None:
        """As imagined where first steps wait for room, which is what imagined.py assumes; else
        the price by which layouts are compared."""
        if self._loop.switchboard.of(run).admission != IMAGINED_UNDER or not works:
            return layout.makespan_s
        laws = self._laws_of(layout.degrees)
        if laws is None:
            return layout.makespan_s
        return await self._solve(lambda: imagined_s(works, laws, layout.degrees))

    async def _chosen(self, run: str, works: list[Work]) -> Chosen:
        degrees = self._loop.fleet.degrees
        if not self._moves.launcher.nodes:
            return self._as_is(run, "the engines are not started here: degrees stay", works)
        if degrees and self._moves.unavailable:
            return self._as_is(run, self._moves.unavailable, works)
        allocation, wanted = await self._wanted(run, works)
        if degrees and any(t.running for t in self._loop.trajectories.values()):
            return self._as_is(run, "steps are running: degrees stay", works)
        if sorted(wanted.degrees) == sorted(degrees):
            return Chosen(wanted, change=False)
        if not degrees or allocation.startswith("fixed-"):
            return Chosen(wanted, change=True)
        return await self._weighed(run, wanted, works)

    def judged(
        self, run: str, works: Sequence[Work], degrees: Sequence[int], cost_s: float
    ) -> Verdict:
        """Whether those degrees gain more than they cost."""
        price_s = self._pricing(run)
        return worth(works, self._laws, self._loop.fleet.degrees, degrees, cost_s, price_s=price_s)

    async def considered(self, asked: FleetPlanIn) -> Considered:
        """The layout of a preview: for lengths as in it, else as in the run's last rollout."""
        begin = RolloutBegin(
            run=asked.run, rollout="preview", expected=asked.expected, groups=asked.groups
        )
        if not (asked.groups or asked.expected):
            begin = self._asked.get(asked.run, begin)
        basis, works = await self.expected(begin)
        if asked.layout is not None:
            degrees, because = tuple(asked.layout), "asked for by hand"
            price_s = self._price_s(asked.run, works, degrees)
            wanted = Layout(degrees=degrees, makespan_s=price_s, because=because)
        else:
            _, wanted = await self._wanted(asked.run, works)
            because = f"{wanted.because}; {basis}"
        foreseen_s = await self._foreseen_s(asked.run, works, wanted)
        return Considered(works, wanted.degrees, foreseen_s, because)

    async def _wanted(self, run: str, works: list[Work]) -> tuple[str, Layout]:
        """The run's allocation and its layout, worked out beside the steps under way."""
        allocation = self._loop.switchboard.of(run).allocation
        allocate, (rng,) = ALLOCATIONS[allocation], self._loop.rng.spawn(1)
        wanted = await self._solve(lambda: allocate(works, self._laws, self._gpus, rng))
        return allocation, wanted

    def _pricing(self, run: str) -> Pricing:
        return PRICES.get(self._loop.switchboard.of(run).allocation, priced_s)

    async def _weighed(self, run: str, wanted: Layout, works: list[Work]) -> Chosen:
        try:
            cost_s = self._moves.cost_s(self._moves.plan(wanted.degrees))
        except CoreError as error:
            return self._as_is(run, str(error), works)
        verdict = await self._solve(lambda: self.judged(run, works, wanted.degrees, cost_s))
        if not verdict.change:
            return self._as_is(run, verdict.because, works)
        because = f"{wanted.because}; {verdict.because}"
        return Chosen(replace(wanted, because=because), change=True, gain_s=verdict.gain_s)

    def _as_is(self, run: str, because: str, works: list[Work]) -> Chosen:
        degrees = self._loop.fleet.degrees
        price_s = self._price_s(run, works, degrees)
        return Chosen(Layout(degrees=degrees, makespan_s=price_s, because=because), change=False)

    def _price_s(self, run: str, works: Sequence[Work], degrees: Sequence[int]) -> float | None:
        """By what each engine said of its room, where all are of one degree."""
        laws = self._laws_of(degrees)
        if not works or laws is None:
            return None
        return self._pricing(run)(works, laws, degrees, mixed=len(set(degrees)) > 1)

    def _laws_of(self, degrees: Sequence[int]) -> dict[int, Latency] | None:
        """What engines of those degrees said of themselves, else the profile; None for none."""
        if not degrees or not set(degrees) <= set(self._laws):
            return None
        said = {w.degree: w.latency for w in self._loop.fleet.workers.values()}
        return {d: said.get(d, self._laws[d]) for d in set(degrees)}


def _worlds(trajectories: int) -> int:
    """Imagined rollouts that a plan averages: one draw of the longest says little of the longest,
    a large rollout holds many. 6,400 trajectories take 0.2 s a world."""
    return max(2, min(WORLDS, WORLDS * 512 // max(trajectories, 1)))
