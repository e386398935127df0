"""Who holds what, while one decision is made?

Each placement sees the ones before it. Counts are always kept; what needs draws or means is made
when a policy first asks for it. Workers are indices into the snapshot's, trajectories places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from heddle.controller.core.cost import Load, remaining_work
from heddle.controller.core.crowd import Crowd
from heddle.controller.core.draws import Ints
from heddle.controller.core.memory import RUNNING, TOOL, Facts, Flags, Memory
from heddle.controller.core.types import Rates, Snapshot, Trajectory, Worker


@dataclass(slots=True)
class Book:
    """One decision's running totals."""

    snapshot: Snapshot
    workers: tuple[Worker, ...]
    names: tuple[str, ...]
    facts: Facts
    rates: Rates
    home: Ints
    """Worker at which each place counts; negative: nowhere, or away in a tool for too long."""
    held: Ints
    """Live trajectories at home on each worker."""
    in_flight: Ints
    """Of these, the ones with a step running or just released."""
    everyone: Flags
    """All workers, as a choice."""
    balanced_s: float | None = None
    """When all would be done if spread without loss; set by the policy that needs it."""
    _memory: Memory = field(default_factory=Memory)
    _crowd: Crowd | None = None
    _loads: Loads | None = None
    _ranks: dict[str, int] | None = None

    @classmethod
    def of(cls, snapshot: Snapshot, memory: Memory | None = None) -> Book:
        """The totals before anything is released."""
        memory = memory or Memory()
        facts, m = memory.facts(snapshot), len(snapshot.workers)
        away = (facts.state == TOOL) & (snapshot.now_s - facts.tool_since_s > snapshot.rates.away_s)
        home = np.where(away, -1, facts.home)
        running = home[facts.state == RUNNING]
        return cls(
            snapshot=snapshot,
            workers=snapshot.workers,
            names=tuple(w.id for w in snapshot.workers),
            facts=facts,
            rates=snapshot.rates,
            home=home,
            held=np.bincount(home[home >= 0], minlength=m),
            in_flight=np.bincount(running[running >= 0], minlength=m),
            everyone=np.ones(m, dtype=bool),
            _memory=memory,
        )

    @property
    def crowd(self) -> Crowd:
        """The workers' groups as draws, everyone taken so far counted."""
        if self._crowd is None:
            outlook = self._memory.outlook(self.snapshot, self.facts)
            self._crowd = Crowd(self.workers, outlook, self.home)
        return self._crowd

    @property
    def loads(self) -> Loads:
        """The workers' groups by their means, everyone taken so far counted."""
        if self._loads is None:
            self._loads = Loads(self.workers, self.rates)
            for place in np.flatnonzero(self.home >= 0).tolist():
                self._loads.add(self.snapshot.trajectories[place], int(self.home[place]))
        return self._loads

    def step_growth(self) -> float:
        """Context tokens that one step has added so far, on average."""
        steps = float(self.facts.steps.sum())
        made = float(self.facts.output.sum()) / steps if steps else 0.0
        return made * max(self.rates.context_per_output, 1.0)

    def take(self, place: int, worker: int) -> None:
        """Count the trajectory at that worker."""
        self.held[worker] += 1
        self.home[place] = worker
        if self._loads is not None:
            self._loads.add(self.snapshot.trajectories[place], worker)
        if self._crowd is not None:
            prefill_s = self._crowd.prefill_by_kind[self._crowd.kind[worker], place]
            self._crowd.add(place, worker, float(prefill_s))

    def rank_of(self, trajectory: Trajectory) -> int:
        """Its place among all live ones, the longest expected remaining first."""
        if self._ranks is None:
            live = self.snapshot.trajectories
            means = [remaining_work(t, self.rates).output_tokens for t in live]
            order = sorted(range(len(live)), key=lambda i: (-means[i], live[i].arrival))
            self._ranks = {live[i].id: place for place, i in enumerate(order)}
        return self._ranks[trajectory.id]


class Loads:
    """Groups from means alone, and the longest prompt of each group that a worker holds."""

    def __init__(self, workers: Sequence[Worker], rates: Rates) -> None:
        self._loads = [Load(w.latency) for w in workers]
        self._names = [w.id for w in workers]
        self._prompts: list[dict[str, int]] = [{} for _ in workers]
        self._rates = rates

    def add(self, trajectory: Trajectory, worker: int) -> None:
        """Count it."""
        work = remaining_work(trajectory, self._rates)
        self._loads[worker].add(work, self._prefill_s(trajectory, worker))
        if trajectory.group:
            known = self._prompts[worker]
            known[trajectory.group] = max(known.get(trajectory.group, 0), trajectory.prompt_tokens)

    def finish_s(self, trajectory: Trajectory, worker: int) -> float:
        """Expected end of that worker if the trajectory came there."""
        work = remaining_work(trajectory, self._rates)
        return self._loads[worker].finish_s(work, self._prefill_s(trajectory, worker))

    def _prefill_s(self, trajectory: Trajectory, worker: int) -> float:
        """What it costs to bring the context there: nothing at home, less where a sibling lives."""
        if trajectory.worker == self._names[worker]:
            return 0.0
        prefix = self._prompts[worker].get(trajectory.group, 0) if trajectory.group else 0
        prefix = min(prefix, trajectory.context_tokens)
        law = self._loads[worker].latency
        return law.prefill_s(trajectory.context_tokens - prefix, prefix)


def group_edges(workers: Sequence[Worker], live: int) -> list[int]:
    """Where each worker's group ends in the ranked list: planned shares scaled to the live."""
    shares = [w.share for w in workers]
    if not any(shares):
        shares = [1] * len(workers)
    total, edges, seen = sum(shares), list[int](), 0
    for share in shares:
        seen += share
        edges.append(round(seen * live / total))
    return edges
