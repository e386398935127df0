"""When is the whole picture of a run decided on, what may the decision know, and where is it made?

Builds the core's snapshot from the live table; keeps one memory a run, so that only what changed
since the last decision is worked out again. A large picture is thought over in a thread, beside the
event loop that steps go through: what a plan says is checked against what has happened meanwhile.
Limit: trajectories of other runs fill workers, but are read anew at every decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from heddle.controller.beliefs import Beliefs
from heddle.controller.clock import Clock
from heddle.controller.core.decide import decide, watches
from heddle.controller.core.memory import Memory
from heddle.controller.core.types import (
    Fetches,
    Move,
    Park,
    Plan,
    Release,
    Snapshot,
    Switches,
    Trajectory,
)
from heddle.controller.fleet.workers import Fleet
from heddle.controller.live import LiveTrajectory
from heddle.controller.pace import Pace
from heddle.controller.switches import Switchboard
from heddle.controller.table import Table

WATCH_S: Final = 2.0
"""Fleet seconds between two decisions while nothing has come that waits for one and nothing was
freed: moves, parking, and who fits because lengths are foreseen otherwise (planning.md B.7: 2 to 15
s are equally good)."""
IN_PLACE: Final = 256
"""Live trajectories up to which a decision is made in place: about 2 ms. A thread that takes its
turns with the event loop costs that too."""

Thread = Callable[[Callable[[], Plan]], Awaitable[Plan]]
"""Where a large decision is worked out."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a decision of a run looked at."""

    run: str
    switches: Switches
    snapshot: Snapshot


class Decider:
    """Full decisions of every run. `believe` asks for a prediction, `do` carries a plan out,
    `failed` is told of a decision that raised."""

    def __init__(
        self,
        clock: Clock,
        fleet: Fleet,
        switchboard: Switchboard,
        beliefs: Beliefs,
        table: Table,
        *,
        rng: np.random.Generator,
        believe: Callable[[LiveTrajectory], None],
        do: Callable[[Seen, Plan], None],
        failed: Callable[[str, Exception], None],
        thread: Thread | None = asyncio.to_thread,
        fetches: Fetches,
    ) -> None:
        self._clock = clock
        self._fleet = fleet
        self._switchboard = switchboard
        self._beliefs = beliefs
        self._table = table
        self._rng = rng
        self._believe = believe
        self._do = do
        self._failed = failed
        self._thread = thread
        self._fetches = fetches
        self.pace = Pace(self._now, lambda: len(table.by_key))
        self._memories: dict[str, Memory] = {}
        self._undecided: dict[str, dict[LiveTrajectory, None]] = {}
        """By run: whose waiting steps only a full decision can place."""
        self._fresh: set[str] = set()
        """Runs for which something came or was freed since their last decision."""
        self._thinking: asyncio.Task[None] | None = None

    def wants(self, trajectory: LiveTrajectory) -> None:
        """Its waiting steps need a full decision."""
        self._undecided.setdefault(trajectory.run, {})[trajectory] = None
        self._fresh.add(trajectory.run)

    def decided(self, trajectory: LiveTrajectory) -> None:
        """They do not any more."""
        undecided = self._undecided.get(trajectory.run)
        if undecided:
            undecided.pop(trajectory, None)

    def freed(self) -> None:
        """What was held may find room now, whatever its run."""
        self._fresh.update(self._table.runs)

    def wait_s(self, run: str) -> float | None:
        """Wall seconds between full decisions of that run; None: they would change nothing."""
        undecided = self._undecided.get(run)
        if undecided and run in self._fresh:
            return 0.0
        watched = undecided or watches(self._switchboard.of(run))
        return WATCH_S / self._clock.speed if watched else None

    def due(self, run: str) -> float | None:
        """The same where somebody has to ask for it: who only watches is called every so often."""
        at_least_s = self.wait_s(run)
        return None if at_least_s and self.pace.asked(run) else at_least_s

    def look(self) -> None:
        """Decide on every run that needs it, as soon as its pace allows.

        One at a time: two that were thought over together would both fill the same room.
        """
        for run in self._table.runs:
            at_least_s = self.due(run)
            if at_least_s is not None and self._thinking is None:
                self.pace.ask(run, at_least_s=at_least_s)

    def forget(self) -> None:
        """Keep memories of runs that live."""
        runs = self._table.runs
        self._memories = {run: m for run, m in self._memories.items() if run in runs}

    async def close(self) -> None:
        """Nothing is decided any more."""
        self.pace.close()
        if self._thinking is not None:
            self._thinking.cancel()
            await asyncio.gather(self._thinking, return_exceptions=True)

    def _now(self, run: str) -> None:
        if self.wait_s(run) is None or self._thinking is not None:
            return  # what is thought over looks again when it has ended
        self._fresh.discard(run)
        try:
            seen = Seen(run, self._switchboard.of(run), self.snapshot(run))
            memory = self._memories.setdefault(run, Memory())
            if self._thread is not None and len(seen.snapshot.trajectories) > IN_PLACE:
                self._thinking = asyncio.create_task(self._apart(self._thread, seen, memory))
                return
            self._do(seen, decide(seen.snapshot, seen.switches, self._rng, memory))
        except Exception as error:  # noqa: BLE001 (the loop must live; it counts them)
            self._failed(run, error)

    async def _apart(self, thread: Thread, seen: Seen, memory: Memory) -> None:
        """Decide beside the event loop. A plan of switches that are not in force is not used."""
        run = seen.run
        try:
            plan = await thread(lambda: decide(seen.snapshot, seen.switches, self._rng, memory))
            if self._switchboard.of(run) == seen.switches:
                self._do(seen, standing(plan, seen.snapshot, self._table, self._fleet))
            else:
                self._fresh.add(run)
        except Exception as error:  # noqa: BLE001 (the loop must live; it counts them)
            self._memories.pop(run, None)
            self._failed(run, error)
        finally:
            self._thinking = None
        self.look()

    def snapshot(self, run: str) -> Snapshot:
        """What a decision for that run may know: others' trajectories fill workers, no more."""
        return Snapshot(
            trajectories=tuple(self._facts(run)),
            workers=tuple(w.fact() for w in self._fleet.taking),
            rates=self._beliefs.rates(run),
            now_s=self._clock.now_ns() / 1e9,
            fetches=dict(self._fetches),
        )

    def _facts(self, run: str) -> list[Trajectory]:
        wanted = {r: self._switchboard.of(r).prediction for r in self._table.runs}
        live = list(self._table.by_key.values())
        for trajectory in live:
            if trajectory.believed != wanted[trajectory.run]:
                self._believe(trajectory)
        facts = [trajectory.known or trajectory.fact() for trajectory in live]
        if len(wanted) == 1:
            return facts
        pairs = zip(live, facts, strict=True)
        return [fact if one.run == run else _elsewhere(fact) for one, fact in pairs
                if one.run == run or fact.state != "held" or fact.worker is not None]  # fmt: skip


def _elsewhere(fact: Trajectory) -> Trajectory:
    """Another run's step is not this decision's to release, nor its trajectory to move."""
    return fact._replace(state="running", movable=False)


def standing(plan: Plan, snapshot: Snapshot, table: Table, fleet: Fleet) -> Plan:
    """What of a plan still holds after it was thought over.

    Steps still wait; who is to be moved or parked is as it was; workers still take steps.
    """
    live = table.by_key
    asked = {*(m.trajectory for m in plan.moves), *(p.trajectory for p in plan.parks)}
    before = {t.id: t for t in snapshot.trajectories if t.id in asked}

    def takes(worker: str) -> bool:
        found = fleet.workers.get(worker)
        return found is not None and found.takes

    def waits(release: Release) -> bool:
        trajectory = live.get(release.trajectory)
        still = trajectory is not None and trajectory.waiting and not trajectory.moving
        return bool(still) and takes(release.worker)

    def unchanged(change: Move | Park) -> bool:
        trajectory = live.get(change.trajectory)
        return trajectory is not None and trajectory.fact() is before[change.trajectory]

    return Plan(
        releases=tuple(filter(waits, plan.releases)),
        moves=tuple(move for move in plan.moves if unchanged(move) and takes(move.target)),
        parks=tuple(filter(unchanged, plan.parks)),
        held=plan.held,
    )
