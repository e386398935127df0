"""Who plays the trajectories of a workload against the loop, in virtual time?

What the agents and the data plane do between them, without bytes: a step arrives, waits for its
grant, runs on the granted engine, its usage goes back, the tool waits, the next step arrives.
Decisions are the loop's; nothing here chooses.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from heddle.collector.conventions import WORKER
from heddle.controller.dataplane.carrier import full_pause_s
from heddle.controller.dataplane.identity import Whose
from heddle.controller.dataplane.spans import Gap, StepSpans
from heddle.controller.dataplane.usage import Usage
from heddle.controller.emulator.errors import BadRequest
from heddle.controller.emulator.port import VirtualEngine
from heddle.controller.emulator.records import (
    LeaseRecord,
    MoveRecord,
    RolloutResult,
    StepRecord,
    ToolRecord,
    TrajectoryRecord,
)
from heddle.controller.emulator.request import Finished, Request
from heddle.controller.emulator.span import Span
from heddle.controller.emulator.virtual import VirtualLoop
from heddle.controller.emulator.workload import TrajectorySpec
from heddle.controller.errors import ControllerError, EngineFull, EngineLost
from heddle.controller.live import Call, Grant, LiveMove, LiveTrajectory, Step
from heddle.controller.loop import Loop
from heddle.controller.service import NoSpans

ATTEMPTS: Final = 3
"""Engines one step may lose, as in the data plane."""
_step_record: Final = StepRecord._make
_tool_record: Final = ToolRecord._make


class Player:
    """One trajectory on its way."""

    __slots__ = (
        "_context", "branches", "key", "left", "record", "size", "spec", "step", "waited_s",
        "whose",
    )  # fmt: skip

    def __init__(self, spec: TrajectorySpec, key: bytes, run: str, rollout: str) -> None:
        self.spec = spec
        self.key = key
        self.whose = Whose(
            run=run,
            trajectory=spec.trajectory_id,
            source="virtual",
            rollout=rollout,
            group=spec.group_id,
            sample=spec.sample_index,
            task=spec.task,
        )
        self.step = 0
        self.left = 0
        """Output tokens the present step still has to make (an abort leaves some)."""
        self.waited_s = 0.0
        """Wall seconds it has waited for a place in an engine's queue."""
        self.branches = 0
        prompt = spec.prompt_tokens
        # Prompts of one group are equal where they are equally long.
        self._context = Span(f"{spec.group_id}/{prompt}", prompt, f"{spec.trajectory_id}/0", 0)
        self.size = 0
        """Tokens of its context."""
        self.record = TrajectoryRecord(
            spec.trajectory_id, spec.group_id, spec.sample_index, spec.task, 0.0
        )

    @property
    def context(self) -> Span:
        """What an engine would have to hold of it now."""
        if self._context.size != self.size:
            self._context = self._context.to(self.size)
        return self._context

    def grow(self) -> None:
        """Append what precedes the present step."""
        step, context = self.spec.steps[self.step], self._context
        if step.reset:
            self.branches += 1
            branch = f"{self.spec.trajectory_id}/{self.branches}"
            self.size = context.prompt_tokens
            self._context = Span(context.prompt, self.size, branch, self.size)
        self.size += step.observation_tokens
        self.left = step.output_tokens


class Players:
    """All trajectories of one rollout."""

    def __init__(
        self, loop: VirtualLoop, workload: Sequence[TrajectorySpec], run: str, rollout: str
    ) -> None:
        self.players = [Player(spec, b"%d" % i, run, rollout) for i, spec in enumerate(workload)]
        self.open = len(self.players)
        self.finished = 0
        self.over = False
        """Nothing that comes now counts any more."""
        self.result: RolloutResult
        self.controller: Loop
        self._loop = loop
        self._run = run
        self._by_key = {player.key: player for player in self.players}
        self._origin_s = 0.0
        self._first = 0

    def context_of(self, key: bytes) -> Span:
        """The context a trajectory has now, by the bytes that stand for its ids."""
        return self._by_key[key].context

    def begin(self, arrivals_s: Sequence[float] | None, first: int | None) -> None:
        """Let everybody arrive, all now or at those seconds from now; stop after the first."""
        self._origin_s = self._loop.now_s
        self._first = first or len(self.players)
        for index, player in enumerate(self.players):
            after_s = 0.0 if arrivals_s is None else arrivals_s[index]
            player.record.start_s = after_s
            self._loop.at(self._origin_s + after_s, self._next, player)

    def _next(self, player: Player) -> None:
        player.grow()
        self._send(player)

    def _send(self, player: Player) -> None:
        player.waited_s = 0.0
        try:
            step = self.controller.arrive(player.whose, Call(player.size, player.key))
        except ControllerError as error:
            self._fail(player, type(error).__name__)
            return
        self._await(player, step)

    def _await(self, player: Player, step: Step) -> None:
        step.grant.add_done_callback(partial(self._granted, player, step))

    def _granted(self, player: Player, step: Step, future: asyncio.Future[Grant]) -> None:
        error = future.exception()
        if self.over:
            return
        if error is not None:
            self._fail(player, type(error).__name__)
            return
        grant = future.result()
        request = Request(
            rid=grant.rid,
            ids=player.context,
            max_new_tokens=player.left,
            priority=grant.priority or 0,
        )
        engine = grant.worker.engine
        assert isinstance(engine, VirtualEngine)
        try:
            engine.submit(request, partial(self._ended, player, step))
        except EngineLost:
            self._ended(player, step, None)
        except EngineFull:
            task = asyncio.create_task(self._later(player, step))
            task.add_done_callback(lambda done: done.result())
        except BadRequest:
            # As the data plane: the engine's refusal ends the step and goes to the client.
            self.controller.drop(step, "http_400")
            self._fail(player, "http_400")

    def _ended(self, player: Player, step: Step, ended: Finished | None) -> None:
        if ended is None:
            task = asyncio.create_task(self._lost(player, step))
            task.add_done_callback(lambda done: done.result())
            return
        at_s, output_tokens = ended.at_s, ended.output_tokens
        prefilled_s = at_s if ended.prefill_end_s is None else ended.prefill_end_s
        entry_s = at_s if ended.entry_s is None else ended.entry_s
        usage = Usage(
            input_tokens=ended.prompt_tokens,
            output_tokens=output_tokens,
            cached_tokens=ended.cached_tokens,
            retractions=ended.retractions,
            finish_reason=ended.reason,
            queue_s=ended.queue_s,
            prefill_s=prefilled_s - entry_s if prefilled_s > entry_s else 0.0,
            decode_s=at_s - prefilled_s,
            policy_version=ended.weight_version,
        )
        player.size += output_tokens
        player.left -= output_tokens
        self.controller.served(step, usage)
        if player.left > 0:
            self._send(player)
        else:
            self._tool(player, step)

    async def _later(self, player: Player, step: Step) -> None:
        """As the data plane does: again after a while, or the end."""
        pause_s = full_pause_s(player.waited_s)
        if pause_s is None:
            self.controller.drop(step, "engine_full")
            self._fail(player, "engine_full")
            return
        player.waited_s += pause_s
        await asyncio.sleep(pause_s)
        if not step.trajectory.steps:
            step.trajectory.worker = None
        self.controller.again(step, "engine_full")
        self._await(player, step)

    async def _lost(self, player: Player, step: Step) -> None:
        """As the data plane does: is the engine gone? then another attempt elsewhere."""
        assert step.granted is not None
        fleet = self.controller.fleet
        await fleet.suspect(step.granted.worker)
        if step.attempt + 1 >= ATTEMPTS or not fleet.alive:
            self.controller.drop(step, "engine_lost")
            self._fail(player, "engine_lost")
        else:
            self.controller.again(step)
            self._await(player, step)

    def _tool(self, player: Player, step: Step) -> None:
        done = player.spec.steps[player.step]
        player.step += 1
        now_s = self._loop.now_s
        if player.step == len(player.spec.steps):
            self.controller.finish(
                self._run, player.spec.trajectory_id, truncated=player.spec.truncated
            )
            self._end(player)
            return
        record = player.record
        record.tool_s += done.tool_s
        since_s = now_s - self._origin_s
        name = done.tool_name or ""
        row = (record.trajectory_id, step.index, name, since_s, since_s + done.tool_s)
        self.result.tools.append(_tool_record(row))
        self._loop.at(now_s + done.tool_s, self._next, player)

    def _end(self, player: Player) -> None:
        player.record.end_s = self._loop.now_s - self._origin_s
        player.record.truncated = player.spec.truncated
        self.finished += 1
        self._leave()

    def _fail(self, player: Player, error: str) -> None:
        player.record.error = error
        player.record.end_s = self._loop.now_s - self._origin_s
        self.controller.finish(self._run, player.spec.trajectory_id, truncated=True)
        self._leave()

    def _leave(self) -> None:
        self.open -= 1
        if not self.open or self.finished >= self._first:
            self._loop.stop()


class RecordingLeases(NoSpans):
    """Rows instead of the spans of workers' leases."""

    def __init__(self, result: RolloutResult) -> None:
        self._result = result
        self._known: Counter[str] = Counter()
        self.origin_ns = 0

    def emit(self, name: str, **said: Any) -> None:
        """A lease ended."""
        if name != WORKER:
            return
        about = said["attributes"]
        worker_id, generation = about["heddle.worker.id"], self._known[about["heddle.worker.id"]]
        self._known[worker_id] += 1
        start_s = (said["start_ns"] - self.origin_ns) / 1e9
        end_s = (said["end_ns"] - self.origin_ns) / 1e9
        # A fleet joins before its rollout begins, and belongs to it from there.
        row = (worker_id, generation, about["heddle.degree"], max(start_s, 0.0), end_s)
        self._result.leases.append(LeaseRecord(*row))


class RecordingSpans(StepSpans):
    """Rows instead of spans."""

    def __init__(self, result: RolloutResult, clock_speed: float) -> None:
        super().__init__(NoSpans(), clock_speed)
        self._result = result
        self.origin_ns = 0
        self.over = False
        self.records: dict[str, TrajectoryRecord] = {}

    def arrived(self, step: Step, after: Gap | None = None) -> None:
        """Nothing: nobody watches, and the player knows its tools."""

    def ended(self, step: Step, usage: Usage, end_ns: int, error: str | None = None) -> None:
        """The step's row, and its part of the trajectory's."""
        if self.over:
            return
        grant, predicted, origin_ns = step.granted, step.predicted, self.origin_ns
        arrived_ns = step.arrived_ns
        row = (
            step.trajectory.id,
            step.index,
            step.attempt,
            grant.worker.id if grant else "",
            (arrived_ns - origin_ns) / 1e9,
            (end_ns - origin_ns) / 1e9,
            (end_ns - arrived_ns) / 1e9 if grant is None else step.held_s,
            usage.queue_s or 0.0,
            usage.prefill_s or 0.0,
            usage.decode_s or 0.0,
            usage.input_tokens,
            usage.output_tokens,
            usage.cached_tokens or 0,
            usage.retractions or 0,
            grant.rank if grant else -1,
            grant.priority if grant else None,
            predicted.p50 if predicted is not None else None,
            usage.policy_version or "",
            error,
        )
        # In the order of its fields: by name it costs three times as much, and every step does.
        record = _step_record(row)
        self._result.steps.append(record)
        self._add(self.records[step.trajectory.id], record)

    def moved(
        self,
        trajectory: LiveTrajectory,
        move: LiveMove,
        step_index: int | None,
        needed_ns: int | None,
        hit_tokens: int | None,
    ) -> None:
        """The move's row."""
        if self.over:
            return
        whole_ns = move.ended_ns - move.started_ns
        exposed_ns = max(move.ended_ns - needed_ns, 0) if needed_ns is not None else 0
        exposed_ns = min(exposed_ns, whole_ns)
        row = MoveRecord(
            trajectory_id=trajectory.id,
            step_index=step_index,
            source=move.source,
            target=move.target,
            start_s=(move.started_ns - self.origin_ns) / 1e9,
            end_s=(move.ended_ns - self.origin_ns) / 1e9,
            tokens=move.tokens,
            hit_tokens=hit_tokens,
            hidden_s=(whole_ns - exposed_ns) / 1e9,
            exposed_s=exposed_ns / 1e9,
            because=move.because,
            error=move.error,
        )
        self._result.moves.append(row)
        self.records[trajectory.id].moves += move.error is None

    def _add(self, record: TrajectoryRecord, row: StepRecord) -> None:
        if record.steps == 0 and record.predicted_p50 is None:
            record.predicted_p50 = row.predicted_p50
        record.steps += row.error is None
        record.held_s += row.held_s
        record.queue_s += row.queue_s
        record.prefill_s += row.prefill_s
        record.decode_s += row.decode_s
        record.input_tokens += row.input_tokens
        record.output_tokens += row.output_tokens
        record.cached_tokens += row.cached_tokens
        record.retractions += row.retractions
        record.worker_id = row.worker_id or record.worker_id
