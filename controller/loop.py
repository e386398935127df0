"""Who waits, who runs, and what happens next?

The live state and every decision on it. First steps wait here until admission lets them go; steps
of started trajectories go at the end of the event-loop turn in which they came. Full decisions keep
the distance that `Pace` says. Fleet time comes from the Clock, chance from one generator.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import numpy as np

from heddle.controller.beliefs import Beliefs
from heddle.controller.benefit import Benefit
from heddle.controller.clock import Clock
from heddle.controller.core.decide import decide_at_home, roams
from heddle.controller.core.types import Plan, Release, Switches, Trajectory
from heddle.controller.dataplane.identity import Whose
from heddle.controller.dataplane.spans import TOOL_GAP_NS, Gap, StepSpans
from heddle.controller.dataplane.usage import Usage
from heddle.controller.decided import Decided
from heddle.controller.deciding import Decider, Seen, Thread
from heddle.controller.errors import Aborted, ControllerError, NoWorker
from heddle.controller.fleet.workers import Fleet
from heddle.controller.foresight import Foresight
from heddle.controller.journal import Journal
from heddle.controller.live import Call, Grant, LiveTrajectory, Step
from heddle.controller.movers import Mover
from heddle.controller.steering import Steering
from heddle.controller.switches import Switchboard
from heddle.controller.table import Table

BEAT_S: Final = 0.5
"""Wall seconds between two looks at what time alone changes: trajectories that stay away, dead
engines."""
FORGET_S: Final = 6 * 3600.0
"""Fleet seconds after which a trajectory that never said it finished is dropped, to a hundredth."""
# Every step makes one: from a tuple it costs half of what it does through __new__.
_grant: Final = Grant._make
NOBODY: Final = (
    "no worker takes steps; begin a rollout (POST /heddle/v1/rollouts) or register an engine "
    "(POST /heddle/v1/workers)"
)


class Loop:
    """The controller's state; every method runs on one event loop."""

    def __init__(
        self,
        *,
        clock: Clock,
        rng: np.random.Generator,
        fleet: Fleet,
        switchboard: Switchboard,
        journal: Journal,
        beliefs: Beliefs,
        spans: StepSpans,
        thread: Thread | None = asyncio.to_thread,
        benefit: Benefit | None = None,
    ) -> None:
        self.clock = clock
        self.rng = rng
        self.fleet = fleet
        self.switchboard = switchboard
        self.journal = journal
        self.beliefs = beliefs
        self.spans = spans
        self.table = Table(journal)
        self.trajectories = self.table.by_key
        self.open_rollout = self.table.open_rollout
        self.decisions = Decided()
        self.failures = 0
        self.last_failure = ""
        self.mover = Mover(clock, fleet, journal, spans, self._returns, benefit)
        self.foresight = Foresight(
            clock, beliefs, spans, lambda run: switchboard.of(run).prediction
        )
        believe = self.foresight.believe
        self._decider = Decider(
            clock, fleet, switchboard, beliefs, self.table,
            rng=rng, believe=believe, do=self._carry_out, failed=self._failed, thread=thread,
            fetches=self.mover.benefit.fetches,
        )  # fmt: skip
        self.pace = self._decider.pace
        self.steering = Steering(fleet, self.table, switchboard, beliefs, believe, clock.now_ns)
        self._returned: dict[LiveTrajectory, None] = {}
        """Whose waiting steps nobody has looked at yet."""
        self._arrivals = 0
        self._next_sweep_ns = 0
        self._poked = False
        self._beat: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look at what time alone changes."""
        self._beat = asyncio.create_task(self._beating(), name="heddle-loop-beat")

    async def close(self) -> None:
        """Stop; steps still held are answered."""
        if self._beat is not None:
            self._beat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beat
        await self.steering.close()
        await self.mover.close()
        await self._decider.close()
        self.foresight.close()
        for step in self.table.waiting():
            self._reject(step, NoWorker("the controller is shutting down"))

    # a step's life

    def arrive(self, whose: Whose, call: Call) -> Step:
        """A request came in: find its trajectory, end its tool interval, put the step in line."""
        if not self.fleet.serves:
            raise NoWorker(NOBODY)
        now_ns = self.clock.now_ns()
        self._arrivals += 1
        trajectory = self.table.of(whose, self._arrivals)
        gap = self._end_tool(trajectory, now_ns)
        index = whose.step if whose.step is not None else trajectory.last_step + 1
        attempt = trajectory.attempts[index] = trajectory.attempts.get(index, -1) + 1
        self._arrivals += 1
        step = Step(
            trajectory=trajectory,
            whose=whose,
            index=index,
            arrival=self._arrivals,
            arrived_ns=now_ns,
            prompt_tokens=call.prompt_tokens,
            ids=call.ids,
            model=call.model,
            client_rid=call.client_rid,
            asked_priority=call.priority,
            resumable=call.resumable,
            grant=asyncio.get_running_loop().create_future(),
            attempt=attempt,
        )
        if index > trajectory.last_step:
            trajectory.last_step = index
        trajectory.waiting.append(step)
        trajectory.changed()
        self.spans.arrived(step, gap)
        self._returns(trajectory)
        return step

    async def granted(self, step: Step) -> Grant:
        """Wait until the step may go; a caller that gives up is dropped from the line."""
        try:
            return await step.grant
        except asyncio.CancelledError:
            self.drop(step, "client_left")
            raise

    def again(self, step: Step, error: str = "engine_lost") -> None:
        """It did not come to its end and can go on: back in line, for another attempt."""
        trajectory = step.trajectory
        self._stop_running(step, self.clock.now_ns())
        self.spans.ended(step, Usage(), self.clock.now_ns(), error=error)
        trajectory.errors += 1
        step.leaving = False
        self.mover.stopped(trajectory)
        step.attempt = trajectory.attempts[step.index] = trajectory.attempts[step.index] + 1
        step.arrived_ns, step.granted = self.clock.now_ns(), None
        step.grant = asyncio.get_running_loop().create_future()
        trajectory.waiting.append(step)
        trajectory.changed()
        self.spans.arrived(step)
        self._returns(trajectory)

    def served(self, step: Step, usage: Usage, late_s: float = 0.0) -> None:
        """Its last byte left, so many seconds ago: learn from it; the tool interval begins."""
        now_ns, trajectory = step.ended_ns(self.clock, late_s), step.trajectory
        self._stop_running(step, now_ns, usage)
        self.spans.ended(step, usage, now_ns)
        self.mover.arrived(trajectory, step, usage.cached_tokens)
        self.beliefs.seen_of(trajectory.run).grew(trajectory, usage)
        trajectory.grow(step, usage)
        trajectory.last_end_ns = now_ns
        if step.whose.final or step.whose.is_anonymous or trajectory.final:
            self._leave(trajectory)
            self._decider.freed()
        else:
            self.journal.pin(trajectory.pin)
            self.beliefs.survives(trajectory)
            self.foresight.stepped(trajectory)
        if self._decider.due(trajectory.run) is not None:
            self._look()

    def drop(self, step: Step, error: str, usage: Usage | None = None, late_s: float = 0.0) -> None:
        """The step ends without a whole answer: the client left, the engine failed, an abort."""
        ended_ns = step.ended_ns(self.clock, late_s)
        step.trajectory.changed()
        if step in step.trajectory.waiting:
            step.trajectory.waiting.remove(step)
            if not step.trajectory.waiting:
                self._decider.decided(step.trajectory)
        self._stop_running(step, ended_ns, usage)
        self.mover.stopped(step.trajectory)
        self.spans.ended(step, usage or Usage(), ended_ns, error=error)
        step.trajectory.last_end_ns = ended_ns
        step.trajectory.errors += 1
        if step.whose.is_anonymous or step.trajectory.final:
            self._leave(step.trajectory)
        self.poke()

    def finish(self, run: str, trajectory_id: str, *, truncated: bool = False) -> bool:
        """The trajectory is over; False when it is not known. Running steps end first."""
        trajectory = self.trajectories.get(f"{run}/{trajectory_id}")
        if trajectory is None:
            return False
        trajectory.final = True
        trajectory.changed()
        self._leave(trajectory, truncated=truncated)
        self.poke()
        return True

    def abort(self, *, rid: str | None, trajectory_id: str | None, every: bool) -> list[Step]:
        """Reject what is held of it; returns the running steps, for the engines to stop."""
        found = self.table.matching(rid=rid, trajectory_id=trajectory_id, every=every)
        for step in found:
            if step.granted is None:
                self._reject(step, Aborted("the step was aborted before an engine had it"))
        return [step for step in found if step.granted is not None]

    # decisions

    def moves(self, run: str) -> bool:
        """Whether trajectories of that run may be moved."""
        return self.switchboard.of(run).migration != "off"

    def switched(self) -> None:
        """Other policies are in force: for what waits here, and for what waits in engines."""
        self.poke()
        self.steering.ask()

    def poke(self) -> None:
        """Something changed that may let go what is held: decide soon."""
        self._decider.freed()
        self._look()

    def _look(self) -> None:
        """See who returned and what is to be decided on, once at the end of this turn."""
        if not self._poked:
            self._poked = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _returns(self, trajectory: LiveTrajectory) -> None:
        self._returned[trajectory] = None
        self._look()

    def _turn(self) -> None:
        self._poked = False
        if self._returned:
            returned, self._returned = self._returned, {}
            by_run: dict[str, list[LiveTrajectory]] = {}
            for trajectory in returned:
                by_run.setdefault(trajectory.run, []).append(trajectory)
            for run, those in by_run.items():
                self._guarded(run, self._send_home, those)
        self._decider.look()

    def _send_home(self, run: str, returned: list[LiveTrajectory]) -> None:
        """Release steps of started trajectories whose worker lives; the rest needs a decision."""
        home, workers = list[Trajectory](), self.fleet.workers
        switches = self.switchboard.of(run)
        may_stay = not roams(switches)
        for trajectory in returned:
            if not trajectory.waiting or trajectory.moving:
                continue
            worker = workers.get(trajectory.worker or "")
            at_home = may_stay and not trajectory.parked
            if at_home and worker is not None and worker.takes:
                self.foresight.refresh(trajectory, switches.prediction)
                home.append(trajectory.fact())
            else:
                self.foresight.settle(trajectory)
                self._decider.wants(trajectory)
        if home:
            releases = decide_at_home(home, self.beliefs.rates(run), switches)
            for release in releases:
                self._release(self.trajectories[release.trajectory], release, switches)
            self.decisions.note(self.clock.now_ns(), run, switches.order, releases)

    def _guarded(self, run: str, decision: Callable[..., None], *args: object) -> None:
        try:
            decision(run, *args)
        except Exception as error:  # noqa: BLE001 (the loop must live; counted, held steps told)
            self._failed(run, error)

    def _failed(self, run: str, error: Exception) -> None:
        self.failures += 1
        self.last_failure = f"{type(error).__name__}: {error}"
        for step in self.table.waiting(run):
            self._reject(step, ControllerError(f"the decision failed: {error}"))

    def _carry_out(self, seen: Seen, plan: Plan) -> None:
        run, switches = seen.run, seen.switches
        if not self.fleet.taking:
            for step in [] if self.fleet.serves else self.table.waiting(run):
                if not step.trajectory.moving:
                    self._reject(step, NoWorker(NOBODY))
            return
        for release in plan.releases:
            self._release(self.trajectories[release.trajectory], release, switches)
        for move in plan.moves:
            self.mover.asked(self.trajectories[move.trajectory], move)
        for park in plan.parks:
            self.trajectories[park.trajectory].park()
        made = (*plan.releases, *plan.moves, *plan.parks)
        self.decisions.note(self.clock.now_ns(), run, switches.order, made)

    def _release(self, trajectory: LiveTrajectory, release: Release, switches: Switches) -> None:
        worker = self.fleet.workers[release.worker]
        if trajectory.worker != worker.id:
            trajectory.worker = worker.id
            self.journal.pin(trajectory.pin)
        now_ns, rank = self.clock.now_ns(), release.rank
        self._decider.decided(trajectory)
        trajectory.parked = False
        waiting, trajectory.waiting = trajectory.waiting, []
        trajectory.changed()
        decision = f"{switches.order},{switches.placement};rank={rank}"
        for step in waiting:
            step.released_ns = now_ns
            step.predicted = trajectory.remaining
            step.predictor_version = trajectory.predictor_version
            rid = f"{trajectory.digest}-{step.index:05d}-{step.attempt:02d}"
            step.granted = grant = _grant(
                (worker, rid, rank, release.priority, release.because, decision)
            )
            step.priority = release.priority if step.asked_priority is None else step.asked_priority
            trajectory.running.add(step)
            worker.running += 1
            if not step.grant.done():
                step.grant.set_result(grant)

    def _end_tool(self, trajectory: LiveTrajectory, now_ns: int) -> Gap | None:
        since_ns = trajectory.last_end_ns
        if trajectory.waiting or trajectory.running or not since_ns:
            return None
        seen = self.beliefs.seen_of(trajectory.run)
        tool_ns = now_ns - since_ns
        tool_s = tool_ns / 1e9 if tool_ns > 0 else 0.0
        seen.tools, seen.tool_s = seen.tools + 1, seen.tool_s + tool_s
        trajectory.shape.tool_ended(tool_s)
        is_tool = tool_ns >= TOOL_GAP_NS
        return Gap(since_ns, trajectory.last_step) if is_tool else None

    def _leave(self, trajectory: LiveTrajectory, *, truncated: bool = False) -> None:
        if trajectory.waiting or trajectory.running:
            trajectory.final = True
            trajectory.changed()
            return
        if not self.table.remove(trajectory):
            return
        self.mover.arrived(trajectory, None, None)
        self.foresight.forget(trajectory)
        self.beliefs.finished(trajectory, truncated=truncated)
        self.journal.unpin(trajectory.run, trajectory.id)
        self._decider.decided(trajectory)

    def _stop_running(self, step: Step, ended_ns: int, usage: Usage | None = None) -> None:
        running = step.trajectory.running
        if step in running:
            running.discard(step)
            step.trajectory.changed()
            if step.granted is not None:
                step.granted.worker.left(step, ended_ns, usage)

    def _reject(self, step: Step, error: ControllerError) -> None:
        self.drop(step, type(error).__name__)
        if not step.grant.done():
            step.grant.set_exception(error)

    def _sweep(self, now_ns: int) -> None:
        """Drop those that stay away; thousands are not walked through at every beat."""
        if now_ns < self._next_sweep_ns:
            return
        self._next_sweep_ns = now_ns + int(FORGET_S * 1e7)
        for trajectory in self.table.away(now_ns - int(FORGET_S * 1e9)):
            self._leave(trajectory, truncated=True)

    async def _beating(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await self.fleet.revive()
            except Exception as error:  # noqa: BLE001 (the loop must live; counted)
                self.failures += 1
                self.last_failure = f"{type(error).__name__}: {error}"
            self._sweep(self.clock.now_ns())
            self._decider.forget()
            self.poke()
