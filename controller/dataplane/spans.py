"""Which spans tell the collector what happened to a step, a tool interval, a move?

The span of a step when its last byte left; its segments lie inside it in the order held, queue,
prefill, decode. A step that is still there after a tenth of a second is announced by a start
marker; what is over sooner is not, and the tool interval before it is told with either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from heddle.collector import conventions as c
from heddle.collector import ids
from heddle.controller.core.types import Length
from heddle.controller.dataplane.ledger import Entry, Ledger
from heddle.controller.dataplane.told import labels_of, of_step, of_tool, whose_step
from heddle.controller.dataplane.usage import Usage
from heddle.controller.live import LiveMove, LiveTrajectory, Step

TOOL_GAP_NS: Final = 1_000_000
"""A gap shorter than this is the client's own turn-around, not a tool."""
CLOCK_S: Final = 0.005
"""How far a timer may come before its time: event loops count in milliseconds."""
LOOK_S: Final = 0.02
"""Between two looks for those."""
ANNOUNCED_S: Final = 0.1
"""Wall seconds after which a step is announced: half of what spans wait for each other anyway. A
marker costs its sender and the collector as much as the step's own span."""


class Spans(Protocol):
    """What is used of `heddle.collector.tracing.Emitter`."""

    def emit(
        self,
        name: str,
        *,
        trace_id: str,
        span_id: str,
        parent_span_id: str | None = None,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, Any],
        error: str | None = None,
    ) -> None: ...

    def start(
        self,
        op: str,
        *,
        trace_id: str,
        span_id: str,
        parent_span_id: str | None = None,
        at_ns: int,
        attributes: Mapping[str, Any],
    ) -> None: ...


_NOBODY: Final = (0.0, None)


class Gap(NamedTuple):
    """The time between two steps, which somebody infers to be a tool's."""

    since_ns: int
    step_index: int


class Predicted(NamedTuple):
    """One answer of a trained predictor."""

    version: str
    length: Length
    steps: float
    tool_s: float
    exposed_ns: int


def trace_of(trajectory: LiveTrajectory) -> tuple[str, str]:
    """Trace id and the parent of its steps: what the client sent, or derived from its name."""
    return trajectory.trace or trajectory.own_trace


def step_traceparent(step: Step) -> str:
    """The header that makes the engine's own spans children of this step's."""
    span = ids.step_span_id(step.whose.run, step.whose.trajectory, step.index, step.attempt)
    return f"00-{trace_of(step.trajectory)[0]}-{span}-01"


class StepSpans:
    """Writes the spans of the data plane."""

    def __init__(self, spans: Spans, clock_speed: float) -> None:
        self._spans = spans
        self._speed = clock_speed
        self._ledger = Ledger()
        self._new: dict[Step, tuple[float, Gap | None]] = {}
        """Steps that nobody was told of yet, since when, in the order they came."""
        self._looks = False

    def arrived(self, step: Step, after: Gap | None = None) -> None:
        """It is there, after that gap; announced if it stays."""
        now_s = self._look_in(ANNOUNCED_S)
        self._new[step] = now_s, after

    def _look_in(self, delay_s: float) -> float:
        """Look once more after so long; returns the event loop's time."""
        loop = asyncio.get_running_loop()
        if not self._looks:
            self._looks = True
            loop.call_later(delay_s, self._announce)
        return loop.time()

    def _announce(self) -> None:
        """Tell of those that stayed so long; of one that came later no sooner."""
        self._looks = False
        now_s = asyncio.get_running_loop().time()
        while self._new:
            step, (since_s, after) = next(iter(self._new.items()))
            left_s = since_s + ANNOUNCED_S - now_s
            if left_s > CLOCK_S:
                self._look_in(max(left_s, LOOK_S))
                return
            del self._new[step]
            if after is not None:
                self._tool(step, after)
            trace, parent = trace_of(step.trajectory)
            self._spans.start(
                c.CHAT,
                trace_id=trace,
                span_id=_span_id(step),
                parent_span_id=parent,
                at_ns=step.arrived_ns,
                attributes={**whose_step(step, self._speed), "heddle.step.index": step.index},
            )

    def ended(self, step: Step, usage: Usage, end_ns: int, error: str | None = None) -> None:
        """The step's span; `error` names what failed."""
        _, after = self._new.pop(step, _NOBODY)
        if after is not None:
            self._tool(step, after)
        known = step.trajectory
        trace, parent = trace_of(known)
        end_ns = max(end_ns, step.arrived_ns)
        self._spans.emit(
            f"{c.CHAT} {step.model}".rstrip(),
            trace_id=trace,
            span_id=_span_id(step),
            parent_span_id=parent,
            start_ns=step.arrived_ns,
            end_ns=end_ns,
            attributes=of_step(step, usage, end_ns, self._speed),
            error=error,
        )
        entry = self._ledger.extend(known.run, known.id, labels_of(known), end_ns)
        entry = entry or self._ledger.note(self._entry(step, end_ns))
        if step.whose.final and error is None and step.trajectory.trace is None:
            self._spans.emit(**entry.span({}))

    def finished(self, run: str, trajectory: str, said: Mapping[str, Any]) -> bool:
        """The trajectory's own span, with what its trainer says; False when it was never here."""
        entry = self._ledger.get(run, trajectory)
        if entry is None:
            return False
        self._spans.emit(**entry.span(said))
        return True

    def _entry(self, step: Step, end_ns: int) -> Entry:
        trajectory = step.trajectory
        labels = labels_of(trajectory)
        trace, parent = trace_of(trajectory)
        own = ids.trajectory_span_id(trajectory.run, trajectory.id)
        return Entry(
            run=trajectory.run,
            trajectory=trajectory.id,
            trace_id=trace,
            parent=parent if parent != own else None,
            start_ns=step.arrived_ns,
            end_ns=end_ns,
            attributes={**labels, "heddle.clock.speed": self._speed},
            labels=labels,
        )

    def _tool(self, step: Step, gap: Gap) -> None:
        trajectory = step.trajectory
        trace, parent = trace_of(trajectory)
        self._spans.emit(
            f"{c.EXECUTE_TOOL} unknown",
            trace_id=trace,
            span_id=ids.span_id(trajectory.run, trajectory.id, "tool", gap.step_index, "inferred"),
            parent_span_id=parent,
            start_ns=gap.since_ns,
            end_ns=step.arrived_ns,
            attributes=of_tool(trajectory, gap.step_index, self._speed),
        )

    def predicted(
        self, trajectory: LiveTrajectory, said: Predicted, asked_ns: int, end_ns: int
    ) -> None:
        """What a trained predictor said after the latest step, and whether a step waited for it."""
        trace, parent = trace_of(trajectory)
        self._spans.emit(
            c.PREDICT,
            trace_id=trace,
            span_id=ids.span_id(trajectory.run, trajectory.id, "predict", asked_ns),
            parent_span_id=parent,
            start_ns=asked_ns,
            end_ns=end_ns,
            attributes={
                **labels_of(trajectory),
                "gen_ai.operation.name": c.PREDICT,
                "heddle.step.index": trajectory.last_step if trajectory.steps else None,
                "heddle.predictor.version": said.version,
                **_lengths(said.length),
                "heddle.predicted.steps": said.steps,
                "heddle.predicted.tool_s": said.tool_s,
                "heddle.hidden_s": (end_ns - asked_ns - said.exposed_ns) / 1e9,
                "heddle.exposed_s": said.exposed_ns / 1e9,
                "heddle.clock.speed": self._speed,
            },
        )

    def moved(
        self,
        trajectory: LiveTrajectory,
        move: LiveMove,
        step_index: int | None,
        needed_ns: int | None,
        hit_tokens: int | None,
    ) -> None:
        """The move, once the step after it has shown what it brought."""
        trace, parent = trace_of(trajectory)
        exposed_ns = max(move.ended_ns - needed_ns, 0) if needed_ns is not None else 0
        exposed_ns = min(exposed_ns, move.ended_ns - move.started_ns)
        self._spans.emit(
            c.MOVE,
            trace_id=trace,
            span_id=ids.span_id(trajectory.run, trajectory.id, "move", move.started_ns),
            parent_span_id=parent,
            start_ns=move.started_ns,
            end_ns=move.ended_ns,
            attributes={
                **labels_of(trajectory),
                "gen_ai.operation.name": c.MOVE,
                "heddle.step.index": step_index,
                "heddle.move.source": move.source,
                "heddle.move.target": move.target,
                "heddle.move.method": move.method,
                "heddle.move.tokens": move.tokens,
                "heddle.move.hit_tokens": hit_tokens,
                "heddle.move.useless": move.useless,
                "heddle.move.slow_down": move.slow_down,
                "heddle.hidden_s": (move.ended_ns - move.started_ns - exposed_ns) / 1e9,
                "heddle.exposed_s": exposed_ns / 1e9,
                "heddle.because": move.because,
                "heddle.worker.id": move.target,
                "heddle.clock.speed": self._speed,
            },
            error=move.error,
        )


def _span_id(step: Step) -> str:
    return ids.step_span_id(step.whose.run, step.whose.trajectory, step.index, step.attempt)


def _lengths(length: Length) -> dict[str, Any]:
    return {
        "heddle.predicted.p10": length.p10,
        "heddle.predicted.p50": length.p50,
        "heddle.predicted.p90": length.p90,
    }
