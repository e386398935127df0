"""Who holds what, while one decision is made?

Each placement sees the ones before it. Counts and means are always kept; what needs draws is made
when a policy first asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from heddle.controller.core.cost import Load, remaining_work
from heddle.controller.core.crowd import Crowd
from heddle.controller.core.draws import Outlook
from heddle.controller.core.types import Rates, Snapshot, Trajectory, Worker


@dataclass(slots=True)
class Book:
    """One decision's running totals."""

    snapshot: Snapshot
    workers: Mapping[str, Worker]
    rates: Rates
    held: dict[str, int]
    """Live trajectories at home on each worker."""
    in_flight: dict[str, int]
    """Of these, the ones with a step running or just released."""
    prompts: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    balanced_s: float | None = None
    """When all would be done if spread without loss; set by the policy that needs it."""
    _taken: list[tuple[Trajectory, str, float]] = field(
        default_factory=list[tuple[Trajectory, str, float]]
    )
    _loads: dict[str, Load] | None = None
    _crowd: Crowd | None = None
    _ranks: dict[str, int] | None = None

    @classmethod
    def of(cls, snapshot: Snapshot) -> Book:
        """The totals before anything is released."""
        names = [w.id for w in snapshot.workers]
        book = cls(
            snapshot=snapshot,
            workers={w.id: w for w in snapshot.workers},
            rates=snapshot.rates,
            held=dict.fromkeys(names, 0),
            in_flight=dict.fromkeys(names, 0),
        )
        for trajectory in snapshot.trajectories:
            home = trajectory.worker
            if home is not None and home in book.workers and not book.is_away(trajectory):
                book.take(trajectory, home)
                book.in_flight[home] += trajectory.state == "running"
        return book

    @property
    def crowd(self) -> Crowd:
        """The workers' groups as draws, everyone taken so far counted."""
        if self._crowd is None:
            self._crowd = Crowd(self.snapshot.workers, Outlook.of(self.snapshot))
            for trajectory, worker, prefill_s in self._taken:
                self._add(self._crowd, trajectory.id, worker, prefill_s)
        return self._crowd

    @property
    def loads(self) -> dict[str, Load]:
        """The workers' groups by their means, everyone taken so far counted."""
        if self._loads is None:
            self._loads = {name: Load(w.latency) for name, w in self.workers.items()}
            for trajectory, worker, prefill_s in self._taken:
                self._loads[worker].add(remaining_work(trajectory, self.rates), prefill_s)
        return self._loads

    def is_away(self, trajectory: Trajectory) -> bool:
        """In a tool for so long that it may never come back: it holds no place."""
        return trajectory.state == "tool" and trajectory.tool_s > self.rates.away_s

    def prefill_s(self, trajectory: Trajectory, worker: str) -> float:
        """What its context costs there: nothing at home, less its prompt where siblings live."""
        if trajectory.worker == worker:
            return 0.0
        prefix = self.prompts.get((worker, trajectory.group), 0) if trajectory.group else 0
        prefix = min(prefix, trajectory.context_tokens)
        law = self.workers[worker].latency
        return law.prefill_s(trajectory.context_tokens - prefix, prefix)

    def finish_s(self, trajectory: Trajectory, worker: str) -> float:
        """Expected end of that worker if the trajectory came there, from means alone."""
        work = remaining_work(trajectory, self.rates)
        return self.loads[worker].finish_s(work, self.prefill_s(trajectory, worker))

    def take(self, trajectory: Trajectory, worker: str) -> None:
        """Count the trajectory at that worker."""
        prefill_s = self.prefill_s(trajectory, worker)
        self.held[worker] += 1
        self._taken.append((trajectory, worker, prefill_s))
        if self._loads is not None:
            self._loads[worker].add(remaining_work(trajectory, self.rates), prefill_s)
        if self._crowd is not None:
            self._add(self._crowd, trajectory.id, worker, prefill_s)
        if trajectory.group:
            key = (worker, trajectory.group)
            self.prompts[key] = max(self.prompts.get(key, 0), trajectory.prompt_tokens)

    def rank_of(self, trajectory: Trajectory) -> int:
        """Its place among all live ones, the longest expected remaining first."""
        if self._ranks is None:
            live = self.snapshot.trajectories
            means = [remaining_work(t, self.rates).output_tokens for t in live]
            order = sorted(range(len(live)), key=lambda i: (-means[i], live[i].arrival))
            self._ranks = {live[i].id: place for place, i in enumerate(order)}
        return self._ranks[trajectory.id]

    def _add(self, crowd: Crowd, trajectory: str, worker: str, prefill_s: float) -> None:
        crowd.add(crowd.outlook.rows[trajectory], crowd.at[worker], prefill_s)


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
