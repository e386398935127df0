"""How does a trajectory get to another worker, and was it worth it?

Between two steps: a warm-up on the target while the tool runs, with the ids so far (/generate) or
the messages so far (chat), no token generated. Engines that share a storage fetch from it what they
find there. In the middle of a generation: the engine left is told to stop, and the step goes on
elsewhere from what it wrote. What the tool did not hide is exposed. The step that follows shows how
much of the prefix was there: where re-templating breaks prefixes, `Benefit` learns that moves of
that run and interface are useless, and there are no more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from heddle.controller.benefit import Benefit
from heddle.controller.clock import Clock
from heddle.controller.core.types import Move
from heddle.controller.dataplane.spans import StepSpans, trace_of
from heddle.controller.errors import EngineError
from heddle.controller.fleet.engine import Warmed
from heddle.controller.fleet.workers import Fleet
from heddle.controller.journal import Journal
from heddle.controller.live import LiveMove, LiveTrajectory, LiveWorker, Step

WARM_WALL_S: Final = 60.0
"""A warm-up that takes longer is given up; the trajectory stays where it is."""
KEPT: Final = 200
"""Moves that are remembered for who asks."""


class Mover:
    """Carries moves out; `changed` tells the loop whose ended."""

    def __init__(
        self,
        clock: Clock,
        fleet: Fleet,
        journal: Journal,
        spans: StepSpans,
        changed: Callable[[LiveTrajectory], None],
        benefit: Benefit | None = None,
    ) -> None:
        self._clock = clock
        self._fleet = fleet
        self._journal = journal
        self._spans = spans
        self._changed = changed
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self.benefit = benefit or Benefit()
        self.made: deque[tuple[LiveTrajectory, LiveMove]] = deque(maxlen=KEPT)

    def asked(self, trajectory: LiveTrajectory, move: Move) -> None:
        """A decision wants it: made unless moves of its like were useless."""
        if self.benefit.worth(trajectory):
            self.carry(trajectory, move)
        else:
            trajectory.stays = True
            trajectory.changed()

    def carry(self, trajectory: LiveTrajectory, move: Move) -> bool:
        """Begin the move; until it ends the trajectory's steps wait. False: it cannot be made."""
        target = self._fleet.workers.get(move.target)
        if target is None or trajectory.moving or not trajectory.has_prefix:
            return False
        self._begin(trajectory, move, target)
        if (ids := trajectory.ids) is not None:
            self._run(self._warm(trajectory, target, ids))
        else:
            self._run(self._warm_chat(trajectory, target, trajectory.chat or b""))
        return True

    def interrupt(self, trajectory: LiveTrajectory, move: Move) -> bool:
        """Stop its running step where it is, so that it goes on at the target."""
        target = self._fleet.workers.get(move.target)
        steps = [s for s in trajectory.running if s.resumable and s.granted is not None]
        if target is None or trajectory.moving or len(steps) != 1 or len(trajectory.running) != 1:
            return False
        begun = self._begin(trajectory, move, target)
        begun.method = "resume"
        steps[0].leaving = True
        self._run(self._stop(steps[0]))
        return True

    def stopped(self, trajectory: LiveTrajectory) -> None:
        """The step that was to stop has stopped: its next attempt goes to the target."""
        move = trajectory.move
        if move is None or not trajectory.moving or move.method != "resume":
            return
        move.ended_ns = self._clock.now_ns()
        self._ended(trajectory, move, self._fleet.workers.get(move.target))

    def arrived(self, trajectory: LiveTrajectory, step: Step | None, hit: int | None) -> None:
        """The step after a move ended, or there will be none: the move's span goes out."""
        move = trajectory.move
        if move is None:
            return
        if trajectory.moving:
            if move.method != "resume" or step is None:
                return
            # It ended by itself before the engine could stop it.
            trajectory.moving, move.error = False, "ended_first"
            move.ended_ns = self._clock.now_ns()
        trajectory.move = None
        self._judge(trajectory, move, hit)
        needed_ns = step.arrived_ns if step else None
        if move.method == "resume":
            needed_ns = move.started_ns  # nothing hid it
        self._spans.moved(trajectory, move, step.index if step else None, needed_ns, hit)

    async def close(self) -> None:
        """Give up on moves under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, trajectory: LiveTrajectory, move: Move, target: LiveWorker) -> LiveMove:
        self.arrived(trajectory, None, None)
        trajectory.moving = True
        trajectory.changed()
        trajectory.move = begun = LiveMove(
            source=move.source,
            target=move.target,
            because=move.because,
            tokens=trajectory.context_tokens,
            started_ns=self._clock.now_ns(),
            events=target.events,
        )
        self.made.append((trajectory, begun))
        return begun

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop(self, step: Step) -> None:
        if step.granted is not None:
            await step.granted.worker.engine.abort(step.granted.rid)

    async def _warm(self, trajectory: LiveTrajectory, target: LiveWorker, ids: bytes) -> None:
        rid, headers = self._told(trajectory)
        await self._warmed(trajectory, target, target.engine.warm(ids, rid, headers))

    async def _warm_chat(self, trajectory: LiveTrajectory, target: LiveWorker, chat: bytes) -> None:
        rid, headers = self._told(trajectory)
        await self._warmed(trajectory, target, target.wire.warm_chat(chat, rid, headers))

    async def _warmed(
        self, trajectory: LiveTrajectory, target: LiveWorker, work: Coroutine[Any, Any, Warmed]
    ) -> None:
        move = trajectory.move
        if move is None:
            work.close()
            return
        try:
            warmed = await asyncio.wait_for(work, WARM_WALL_S)
            if warmed.stored_tokens:
                move.method = "l3_fetch"
                self._fetched(move, target, warmed)
        except (EngineError, TimeoutError) as error:
            move.error = type(error).__name__
        finally:
            move.ended_ns = self._clock.now_ns()
            move.events, move.events_after = target.events - move.events, target.events
        self._ended(trajectory, move, target)

    def _fetched(self, move: LiveMove, target: LiveWorker, warmed: Warmed) -> None:
        """What was not there was prefilled behind it: that part is not the storage's."""
        took_s = (self._clock.now_ns() - move.started_ns) / 1e9
        took_s -= target.latency.prefill_s(warmed.new_tokens, warmed.cached_tokens)
        self.benefit.fetched(target.storage, target.degree, warmed.stored_tokens, took_s)

    def _ended(self, trajectory: LiveTrajectory, move: LiveMove, target: LiveWorker | None) -> None:
        trajectory.moving = False
        trajectory.changed()
        if target is not None and target.draining:
            target.through_ns = max(target.through_ns, move.ended_ns)
        here = target is not None and self._fleet.workers.get(move.target) is target
        if move.error is None and here:
            trajectory.worker = move.target
            self._journal.pin(trajectory.pin)
        else:
            self.arrived(trajectory, None, None)
        self._changed(trajectory)

    def _judge(self, trajectory: LiveTrajectory, move: LiveMove, hit: int | None) -> None:
        """What the move brought, and what it cost those that were decoding there."""
        target = self._fleet.workers.get(move.target)
        if target is not None and move.events_after and move.ended_ns > move.started_ns:
            during = move.events / (move.ended_ns - move.started_ns)
            after_ns = self._clock.now_ns() - move.ended_ns
            after = (target.events - move.events_after) / after_ns if after_ns > 0 else 0.0
            if during and after:
                move.slow_down = max(1.0 - during / after, 0.0)
        if hit is None or move.error is not None or move.method == "resume":
            return
        move.hit_tokens = hit
        move.useless = self.benefit.learn(trajectory, hit, move.tokens)

    def _told(self, trajectory: LiveTrajectory) -> tuple[str, dict[str, str]]:
        """The rid of a warm-up and its headers."""
        self._count += 1
        trace, parent = trace_of(trajectory)
        headers = {"Content-Type": "application/json", "traceparent": f"00-{trace}-{parent}-01"}
        return f"{trajectory.digest}-w{self._count:07d}", headers
