"""How does the fleet get from one layout to another, and what came of it?

One change at a time, in waves that keep a floor of capacity; what engines took is learned and goes
into the next plan. Worker ids are never used twice: a layout's spans stay tellable apart.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from heddle.controller.blocks import Blocks
from heddle.controller.core.regroup import Group, Place, Regroup, regroup, spelled
from heddle.controller.costs import METHODS, Costs
from heddle.controller.dataplane.spans import Spans
from heddle.controller.draining import DRAIN_S
from heddle.controller.errors import Conflict, ControllerError, LaunchFailed
from heddle.controller.fleet.launcher import Launcher, Started
from heddle.controller.leases import Leases
from heddle.controller.loop import Loop
from heddle.controller.regrouping import READY_S, Parts, Regrouping
from heddle.controller.story import Story
from heddle.controller.weights import Weights

FLOOR: Final = 0.5
"""Share of the serving GPUs that go on serving while trajectories live."""
KEPT: Final = 100


class Reallocator:
    """Changes layouts; `stories` are the newest changes, the one under way last."""

    def __init__(
        self,
        loop: Loop,
        launcher: Launcher,
        blocks: Blocks,
        costs: Costs,
        weights: Weights,
        spans: Spans,
    ) -> None:
        self.launcher = launcher
        self.blocks = blocks
        self.costs = costs
        self.weights = weights
        self.stories: deque[Story] = deque(maxlen=KEPT)
        self.ready_s = READY_S
        self.drain_s = DRAIN_S
        self._loop = loop
        self._leases = Leases(loop)
        self._spans = spans
        self._under_way: Story | None = None
        self._change_task: asyncio.Task[Story] | None = None
        self._count = 0
        self._workers = 0
        launcher.ended, launcher.returned = self._ended, self._returned

    @property
    def unavailable(self) -> str:
        """Why the layout cannot change now; empty: it can."""
        if not self.launcher.nodes:
            return f"{self.launcher.why_not}: degrees stay"
        if self._under_way is not None:
            return "another reallocation is under way; wait for its end"
        return self.weights.unavailable

    @property
    def serving_gpus(self) -> int:
        """GPUs of engines that take steps."""
        return sum(w.degree for w in self._loop.fleet.taking)

    def floor_gpus(self, share: float | None = None) -> int:
        """GPUs that go on serving: that share, or the usual one while trajectories live."""
        if share is None:
            share = FLOOR if self._loop.trajectories else 0.0
        return int(share * self.serving_gpus)

    def plan(self, degrees: Sequence[int], floor_gpus: int = 0) -> Regroup:
        """The least disruption; CoreError when it does not fit or the floor cannot be kept."""
        tokens: Counter[str] = Counter()
        for trajectory in self._loop.trajectories.values():
            tokens[trajectory.worker or ""] += trajectory.context_tokens
        serving = {w: p for w, p in self.blocks.of.items() if w in self._loop.fleet.workers}
        return regroup(self.launcher.nodes, serving, degrees, tokens=tokens, floor_gpus=floor_gpus)

    def cost_s(self, plan: Regroup) -> float:
        """What the change is expected to take, in fleet seconds."""
        degrees = {worker: place.degree for worker, place in self.blocks.of.items()}
        stops = any(self.blocks.why_stop(worker) for worker in plan.drains)
        return self.costs.change_s(
            plan, degrees, set(self.blocks.asleep), sleeps=not stops, weights=self.weights.loads,
            live=bool(self._loop.trajectories),
        )  # fmt: skip

    def begin(
        self,
        degrees: Sequence[int],
        *,
        because: str,
        who: str,
        rollouts: Sequence[tuple[str, str]],
        floor_gpus: int = 0,
        gain_s: float | None = None,
    ) -> asyncio.Task[Story]:
        """Start the change; Conflict or CoreError at once when it cannot be."""
        if self.unavailable:
            raise Conflict(self.unavailable)
        plan = self.plan(degrees, floor_gpus)
        self._count += 1
        story = Story(
            id=f"reallocation-{self._loop.clock.now_ns()}-{self._count}",
            before=self._loop.fleet.degrees,
            wanted=tuple(sorted(degrees, reverse=True)),
            because=because,
            who=who,
            rollouts=tuple(rollouts),
            clock=self._loop.clock,
            spans=self._spans,
            start_ns=self._loop.clock.now_ns(),
            waves=len(plan.waves),
            expected_s=self.cost_s(plan),
            gain_s=gain_s,
            floor_gpus=floor_gpus,
            lowest_gpus=plan.lowest_gpus,
        )
        self.stories.append(story)
        self._under_way = story
        # Held here: whoever does not wait for it would leave the loop with a weak reference.
        self._change_task = asyncio.create_task(
            self._change(plan, story), name="heddle-reallocation"
        )
        return self._change_task

    async def first(self, degrees: Sequence[int]) -> None:
        """Engines where none are; LaunchFailed when one does not come up, and none stays."""
        story = await self.begin(degrees, because="the first layout", who="rollout", rollouts=())
        if story.error:
            await self.launcher.stop()
            for worker_id in list(self.blocks.of):
                self.blocks.ended(worker_id)
                self._loop.fleet.leave(worker_id)
            raise LaunchFailed(story.error)

    async def _change(self, plan: Regroup, story: Story) -> Story:
        fleet, problems = self._loop.fleet, list[str]()
        fleet.changing += 1
        try:
            await self._agree()
            ids = self._named(plan)
            for wave in plan.waves:
                problems += await self._wave(plan, wave, ids, story)
                if problems:
                    break
        except ControllerError as error:
            problems.append(str(error))
        except BaseException as error:
            problems.append(f"it was given up: {type(error).__name__}: {error}")
            raise
        finally:
            self._under_way = None
            fleet.changing -= 1
            fleet.arrange()
            self._learn(story)
            story.close("rolled back" if problems else "done", fleet.degrees, "; ".join(problems))
            self._loop.poke()
        return story

    async def _wave(
        self, plan: Regroup, wave: Sequence[Group], ids: dict[Place, str], story: Story
    ) -> list[str]:
        """All its groups at once; the sentences of those that were undone."""
        parts = Parts(
            loop=self._loop, launcher=self.launcher, blocks=self.blocks, weights=self.weights,
            leases=self._leases, story=story,
        )  # fmt: skip
        changes = [
            Regrouping(parts, g, [ids[place] for place in g.starts], leaving=plan.drains)
            for g in wave
        ]
        for change in changes:
            change.drain()
        # The first layout has its launcher's own deadline alone.
        ready_s = self.ready_s if self.blocks.version else 0.0
        await asyncio.gather(*(change.run(ready_s, self.drain_s) for change in changes))
        return [change.problem for change in changes if change.problem]

    async def _agree(self) -> None:
        """What the fleet serves now is what new engines must serve."""
        self.blocks.version = ""
        if self.blocks.of and self._loop.fleet.alive:
            engine = self._loop.fleet.engine(self._loop.fleet.alive[0].url)
            version = await engine.weight_version()
            self.blocks.version = self.weights.version if self.weights.loads else version

    def _named(self, plan: Regroup) -> dict[Place, str]:
        """A new id for every engine that begins, highest degrees first."""
        known = set(self._loop.fleet.workers) | set(self.blocks.of)
        ids: dict[Place, str] = {}
        for place in sorted(plan.starts, key=lambda p: (-p.degree, p.node, p.first)):
            while f"w{self._workers}" in known:
                self._workers += 1
            ids[place] = f"w{self._workers}"
            self._workers += 1
        return ids

    def _learn(self, story: Story) -> None:
        for phase in story.phases:
            if phase.name in METHODS and not phase.error:
                self.costs.learn(phase.degree, phase.name, phase.seconds)

    async def _ended(self, process: str) -> None:
        """An engine ended by itself: one that slept is not woken by starting it again."""
        if self.blocks.died(process):
            await self.launcher.end(process)
            return
        worker = self._loop.fleet.workers.get(self.blocks.worker_of(process))
        if worker is not None:
            await self._loop.fleet.suspect(worker)
            self._loop.poke()

    async def _returned(self, started: Started) -> None:
        """It serves again, maybe elsewhere: another engine under the same id."""
        worker = self._loop.fleet.workers.get(self.blocks.worker_of(started.worker_id))
        if worker is None:
            return
        if worker.url == started.url.rstrip("/"):
            await self._loop.fleet.suspect(worker)
        else:
            since_ns = self._loop.clock.now_ns()
            await self._leases.rejoin(worker.id, started, since_ns)
        self._loop.poke()


def described(plan: Regroup, before: Sequence[int], wanted: Sequence[int]) -> str:
    """A change in one sentence."""
    return (
        f"{spelled(Counter(before)) or 'nothing'} to {spelled(Counter(wanted))}: "
        f"{len(plan.stays)} workers stay, {len(plan.drains)} end, {len(plan.starts)} begin in "
        f"{len(plan.waves)} waves"
    )
