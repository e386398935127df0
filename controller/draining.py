"""How does a worker empty itself without anybody noticing?

It takes no new steps; trajectories whose tool runs are carried to where they fit best, longest
context first and one at a time to each target; steps that run end there. What cannot be carried is
placed anew when its next step comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from heddle.controller.core.types import Move
from heddle.controller.errors import Conflict
from heddle.controller.live import LiveTrajectory, LiveWorker
from heddle.controller.loop import Loop

LOOK_S: Final = 0.02
"""Wall seconds between two looks."""
DRAIN_S: Final = 600.0
"""Fleet seconds a drain may take: a step of 30,000 tokens at 10 ms each takes half of it."""


class Drain:
    """Empties workers of one group; `moved` counts trajectories it carried away."""

    def __init__(
        self, loop: Loop, workers: Collection[LiveWorker], leaving: Collection[str]
    ) -> None:
        self._loop = loop
        self._workers = workers
        self._leaving = leaving
        """All that drain sooner or later: no place to move to while there is another."""
        self._carried: set[str] = set()

    @property
    def moved(self) -> int:
        """Trajectories it carried away."""
        return len(self._carried)

    async def until_empty(
        self, emptied: Callable[[LiveWorker], None], within_s: float = DRAIN_S
    ) -> None:
        """Return once none of them runs anything; Conflict when that takes too long."""
        clock, left = self._loop.clock, list(self._workers)
        until_ns = clock.now_ns() + int(within_s * 1e9)
        while left:
            self._carry()
            for worker in [w for w in left if self._is_empty(w)]:
                left.remove(worker)
                emptied(worker)
            if left and clock.now_ns() > until_ns:
                names = ", ".join(f"{w.id} ({w.running} steps)" for w in left)
                message = f"still running after {within_s:g} s: {names}"
                raise Conflict(message)
            if left:
                await asyncio.sleep(LOOK_S)

    def _is_empty(self, worker: LiveWorker) -> bool:
        return not worker.alive or (not worker.running and not self._arriving(worker.id))

    def _arriving(self, worker_id: str) -> bool:
        """Whether a move is under way from or to it."""
        return any(
            t.moving and t.move is not None and worker_id in (t.move.source, t.move.target)
            for t in self._loop.trajectories.values()
        )

    def _carry(self) -> None:
        mine = {w.id for w in self._workers}
        homed = [t for t in self._loop.trajectories.values() if t.worker in mine]
        ready = [t for t in homed if t.state == "tool" and not t.moving and t.has_prefix]
        room = self._room()
        for trajectory in sorted(ready, key=lambda t: -t.context_tokens):
            if not room:
                return
            target = max(room, key=lambda worker: room[worker])
            del room[target]
            self._carried.add(trajectory.key)
            self._loop.mover.carry(trajectory, self._move(trajectory, target))

    def _move(self, trajectory: LiveTrajectory, target: str) -> Move:
        source = trajectory.worker or ""
        because = f"{source} drains: {self._loop.fleet.workers[source].draining}"
        return Move(trajectory=trajectory.id, source=source, target=target, because=because)

    def _room(self) -> dict[str, float]:
        """Tokens free on each worker that nobody moves to now, those that stay before others."""
        taking = self._loop.fleet.taking
        targets = [w for w in taking if w.id not in self._leaving] or taking
        room = {w.id: float(w.latency.kv_tokens) for w in targets}
        for trajectory in self._loop.trajectories.values():
            if trajectory.worker in room:
                room[trajectory.worker] -= trajectory.context_tokens
            if trajectory.moving and trajectory.move is not None:
                room.pop(trajectory.move.target, None)
        return room
