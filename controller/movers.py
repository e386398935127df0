"""How does a trajectory's prefix get to another worker while its tool runs?

A warm-up on the target: prompt and output ids so far, no token generated. What the tool did not
hide is exposed: the next step waits for it. Recorded once that step shows how many tokens it hit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from heddle.controller.clock import Clock
from heddle.controller.core.types import Move
from heddle.controller.dataplane.spans import StepSpans, trace_of
from heddle.controller.errors import EngineError
from heddle.controller.fleet.workers import Fleet
from heddle.controller.journal import Journal
from heddle.controller.live import LiveMove, LiveTrajectory, Step

WARM_WALL_S: Final = 60.0
"""A warm-up that takes longer is given up; the trajectory stays where it is."""


class Mover:
    """Carries moves out; `changed` tells the loop whose ended."""

    def __init__(
        self,
        clock: Clock,
        fleet: Fleet,
        journal: Journal,
        spans: StepSpans,
        changed: Callable[[LiveTrajectory], None],
    ) -> None:
        self._clock = clock
        self._fleet = fleet
        self._journal = journal
        self._spans = spans
        self._changed = changed
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0

    def carry(self, trajectory: LiveTrajectory, move: Move) -> None:
        """Begin the move; until it ends the trajectory's steps wait."""
        if trajectory.moving or trajectory.ids is None or move.target not in self._fleet.workers:
            return
        self.arrived(trajectory, None, None)
        trajectory.moving = True
        trajectory.changed()
        trajectory.move = LiveMove(
            source=move.source,
            target=move.target,
            because=move.because,
            tokens=trajectory.context_tokens,
            started_ns=self._clock.now_ns(),
        )
        task = asyncio.create_task(self._warm(trajectory, trajectory.move, trajectory.ids))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def arrived(self, trajectory: LiveTrajectory, step: Step | None, hit: int | None) -> None:
        """The step after a move ended, or there will be none: the move's span goes out."""
        move = trajectory.move
        if move is None or trajectory.moving:
            return
        trajectory.move = None
        index = step.index if step else None
        needed_ns = step.arrived_ns if step else None
        self._spans.moved(trajectory, move, index, needed_ns, hit)

    async def close(self) -> None:
        """Give up on moves under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _warm(self, trajectory: LiveTrajectory, move: LiveMove, ids: bytes) -> None:
        target = self._fleet.workers[move.target]
        self._count += 1
        rid = f"{trajectory.digest}-w{self._count:07d}"
        trace, parent = trace_of(trajectory)
        headers = {
            "Content-Type": "application/json",
            "traceparent": f"00-{trace}-{parent}-01",
        }
        try:
            await asyncio.wait_for(target.engine.warm(ids, rid, headers), WARM_WALL_S)
        except (EngineError, TimeoutError) as error:
            move.error = type(error).__name__
        finally:
            move.ended_ns = self._clock.now_ns()
            trajectory.moving = False
            trajectory.changed()
        if move.error is None and self._fleet.workers.get(move.target) is target:
            trajectory.worker = target.id
            self._journal.pin(trajectory.run, trajectory.id, target.id)
        else:
            self.arrived(trajectory, None, None)
        self._changed(trajectory)
