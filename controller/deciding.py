"""What may a decision for one run know, and who remembers between two of them?

Builds the core's snapshot from the live table; keeps one memory a run, so that only what changed
since the last decision is worked out again. Limit: trajectories of other runs fill workers, but are
read anew at every decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from heddle.controller.beliefs import Beliefs
from heddle.controller.clock import Clock
from heddle.controller.core.decide import decide
from heddle.controller.core.memory import Memory
from heddle.controller.core.types import Plan, Snapshot, Switches, Trajectory
from heddle.controller.fleet.workers import Fleet
from heddle.controller.live import LiveTrajectory
from heddle.controller.switches import Switchboard
from heddle.controller.table import Table


class Decider:
    """Decisions on the whole picture of a run; `believe` asks for a prediction."""

    def __init__(
        self,
        clock: Clock,
        fleet: Fleet,
        switchboard: Switchboard,
        beliefs: Beliefs,
        table: Table,
        believe: Callable[[LiveTrajectory], None],
    ) -> None:
        self._clock = clock
        self._fleet = fleet
        self._switchboard = switchboard
        self._beliefs = beliefs
        self._table = table
        self._believe = believe
        self._memories: dict[str, Memory] = {}

    def plan(self, run: str, switches: Switches, rng: np.random.Generator) -> Plan:
        """Releases and moves for that run, now."""
        memory = self._memories.setdefault(run, Memory())
        return decide(self.snapshot(run), switches, rng, memory)

    def forget(self, runs: list[str]) -> None:
        """Keep memories of these runs only."""
        self._memories = {run: m for run, m in self._memories.items() if run in runs}

    def snapshot(self, run: str) -> Snapshot:
        """What a decision for that run may know: others' trajectories fill workers, no more."""
        return Snapshot(
            trajectories=tuple(self._facts(run)),
            workers=tuple(w.fact() for w in self._fleet.taking),
            rates=self._beliefs.rates(run),
            now_s=self._clock.now_ns() / 1e9,
        )

    def _facts(self, run: str) -> Iterator[Trajectory]:
        wanted = {r: self._switchboard.of(r).prediction for r in self._table.runs}
        for trajectory in self._table.by_key.values():
            if trajectory.believed != wanted[trajectory.run]:
                self._believe(trajectory)
            fact = trajectory.fact()
            if trajectory.run != run:
                if fact.state == "held" and fact.worker is None:
                    continue
                # Another run's step is not this decision's to release, nor its to move.
                fact = fact._replace(state="running", movable=False)
            yield fact
