"""Which worker takes a step?

A `Book` carries one decision's running totals, so that each placement sees the ones before it.
A started trajectory stays where its prefix is as long as that worker lives; leaving is a move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from heddle.controller.core.cost import Load, remaining_work
from heddle.controller.core.types import Rates, Snapshot, Trajectory, Worker


@dataclass(slots=True)
class Book:
    """Who holds what, while one decision is made."""

    workers: Mapping[str, Worker]
    rates: Rates
    room: Mapping[str, float]
    loads: dict[str, Load]
    held: dict[str, int]
    prompts: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    @classmethod
    def of(cls, snapshot: Snapshot, room: Mapping[str, float]) -> Book:
        """The totals before anything is released."""
        book = cls(
            workers={w.id: w for w in snapshot.workers},
            rates=snapshot.rates,
            room=room,
            loads={w.id: Load(w.latency) for w in snapshot.workers},
            held={w.id: 0 for w in snapshot.workers},
        )
        for trajectory in snapshot.trajectories:
            home = trajectory.worker
            if home is not None and home in book.workers and not book.is_away(trajectory):
                book.take(trajectory, home)
        return book

    def is_away(self, trajectory: Trajectory) -> bool:
        """In a tool for so long that it may never come back: it holds no place."""
        return trajectory.state == "tool" and trajectory.tool_s > self.rates.away_s

    def has_room(self, worker: str) -> bool:
        """Whether admission lets one more fresh trajectory onto that worker."""
        return self.held[worker] < self.room[worker]

    def prefill_s(self, trajectory: Trajectory, worker: str) -> float:
        """What its context costs there: nothing at home, less its prompt where siblings live."""
        if trajectory.worker == worker:
            return 0.0
        prefix = self.prompts.get((worker, trajectory.group), 0) if trajectory.group else 0
        prefix = min(prefix, trajectory.context_tokens)
        law = self.workers[worker].latency
        return law.prefill_s(trajectory.context_tokens - prefix, prefix)

    def finish_s(self, trajectory: Trajectory, worker: str) -> float:
        """Expected end of that worker if the trajectory came there."""
        work = remaining_work(trajectory, self.rates)
        return self.loads[worker].finish_s(work, self.prefill_s(trajectory, worker))

    def take(self, trajectory: Trajectory, worker: str) -> None:
        """Count the trajectory at that worker."""
        prefill_s = self.prefill_s(trajectory, worker)
        self.loads[worker].add(remaining_work(trajectory, self.rates), prefill_s)
        self.held[worker] += 1
        if trajectory.group:
            key = (worker, trajectory.group)
            self.prompts[key] = max(self.prompts.get(key, 0), trajectory.prompt_tokens)


Placement = Callable[[Trajectory, list[str], Book], tuple[str, str]]
"""(trajectory, workers to choose from, book) -> worker, because; the choice is never empty."""


def sticky(trajectory: Trajectory, choice: list[str], book: Book) -> tuple[str, str]:
    """The worker with the fewest live trajectories; ties by worker order."""
    _ = trajectory
    worker = min(choice, key=lambda w: book.held[w])
    return worker, f"fewest live trajectories ({book.held[worker]}) on {worker}"


def soonest(trajectory: Trajectory, choice: list[str], book: Book) -> tuple[str, str]:
    """The worker that would finish first with it, prefix held there counted; ties by order."""
    ends = {w: book.finish_s(trajectory, w) for w in choice}
    worker = min(choice, key=lambda w: ends[w])
    return worker, f"lowest expected finish: {ends[worker]:.1f} s on {worker}"


PLACEMENTS: Final[dict[str, Placement]] = {"sticky": sticky, "soonest": soonest}
