"""Which tool runs between two steps, as told by a client that sends no spans?

Start and end of a call become the trajectory's `execute_tool` span, and what is inferred from gaps
counts no more for it. Said twice is no mistake; an end without a start reaches back to the end of
the step before it. A client that sends spans of its tools has no need to call here.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter, Request

from heddle.collector import conventions as c
from heddle.collector import ids
from heddle.controller import wire
from heddle.controller.clock import Clock
from heddle.controller.dataplane.spans import Spans, trace_of
from heddle.controller.dataplane.told import labels_of
from heddle.controller.live import LiveTrajectory

router = APIRouter(prefix="/heddle/v1")
KEPT: Final = 65_536
"""Calls that are remembered; the oldest are forgotten first."""


@dataclass(slots=True)
class _Call:
    """The newest of that name in its trajectory."""

    step_index: int
    start_ns: int
    ended: bool = False


class ToolCalls:
    """Calls under way, and the newest that ended."""

    def __init__(self, clock: Clock, spans: Spans) -> None:
        self._clock = clock
        self._spans = spans
        self._calls: OrderedDict[tuple[str, str], _Call] = OrderedDict()

    def told(self, trajectory: LiveTrajectory, asked: wire.ToolCall) -> None:
        """A start makes it visible at once; an end makes its span."""
        key = trajectory.key, asked.call or asked.tool
        call = self._calls.get(key)
        if call is None or (call.ended and call.step_index != trajectory.last_step):
            begun_ns = self._clock.now_ns() if asked.status == "start" else trajectory.last_end_ns
            call = self._calls[key] = _Call(trajectory.last_step, begun_ns)
            if len(self._calls) > KEPT:
                self._calls.popitem(last=False)
            if asked.status == "start":
                self._started(trajectory, asked, call)
        if asked.status == "end" and not call.ended:
            call.ended = True
            self._ended(trajectory, asked, call)

    def _started(self, trajectory: LiveTrajectory, asked: wire.ToolCall, call: _Call) -> None:
        said = self._said(trajectory, asked, call)
        self._spans.start(c.EXECUTE_TOOL, at_ns=call.start_ns, **said)

    def _ended(self, trajectory: LiveTrajectory, asked: wire.ToolCall, call: _Call) -> None:
        self._spans.emit(
            f"{c.EXECUTE_TOOL} {asked.tool}",
            start_ns=call.start_ns,
            end_ns=max(self._clock.now_ns(), call.start_ns),
            error=asked.error,
            **self._said(trajectory, asked, call),
        )

    def _said(
        self, trajectory: LiveTrajectory, asked: wire.ToolCall, call: _Call
    ) -> dict[str, Any]:
        trace, parent = trace_of(trajectory)
        where = "tool", call.step_index, "told", asked.call or asked.tool
        return {
            "trace_id": trace,
            "span_id": ids.span_id(trajectory.run, trajectory.id, *where),
            "parent_span_id": parent,
            "attributes": {
                **labels_of(trajectory),
                "gen_ai.operation.name": c.EXECUTE_TOOL,
                "gen_ai.tool.name": asked.tool,
                "gen_ai.tool.call.id": asked.call,
                "heddle.step.index": max(call.step_index, 0),
                "heddle.clock.speed": self._clock.speed,
            },
        }


@router.post("/trajectories/{trajectory:path}/tool")
async def tool(request: Request, trajectory: str, asked: wire.ToolCall) -> dict[str, bool]:
    """A tool of the trajectory starts or has ended; telling it twice is no mistake."""
    up = request.app.state.up()
    live = up.loop.trajectories.get(f"{asked.run}/{trajectory}")
    if live is not None:
        up.tool_calls.told(live, asked)
    return {"known": live is not None}
