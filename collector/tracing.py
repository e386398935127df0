"""How does a trainer's agent loop tell what its trajectories do, without ever waiting?

`Tracer` announces trajectories and tool calls when they start and sends their spans when they end,
through an `Emitter`. Neither raises into the host. `opentelemetry` and the standard library only,
Python 3.10.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from heddle.collector import conventions as c
from heddle.collector import ids
from heddle.collector.emitter import Emitter

__all__ = ["Emitter", "Tracer", "Trajectory"]


class Trajectory:
    """One trajectory under way: what its agent loop sends along, and its tool calls."""

    def __init__(
        self, emitter: Emitter, now_ns: Callable[[], int], attributes: Mapping[str, Any]
    ) -> None:
        self._emitter = emitter
        self._now_ns = now_ns
        self.attributes: dict[str, Any] = dict(attributes)
        self.run: str = attributes["heddle.run.id"]
        self.id: str = attributes["gen_ai.conversation.id"]
        self.trace_id = ids.trace_id(self.run, self.id)
        self.span_id = ids.trajectory_span_id(self.run, self.id)
        self._calls: dict[int, int] = {}

    @property
    def traceparent(self) -> str:
        """The W3C header that makes the steps children of this trajectory."""
        return f"00-{self.trace_id}-{self.span_id}-01"

    def headers(self, *, step: int | None = None, final: bool = False) -> dict[str, str]:
        """What a request to Heddle's controller carries so that it need not guess whose it is."""
        known = {
            "X-Heddle-Run": self.run,
            "X-Heddle-Rollout-Id": self.attributes.get("heddle.rollout.id"),
            "X-Heddle-Trajectory-Id": self.id,
            "X-Heddle-Group-Id": self.attributes.get("heddle.group.id"),
            "X-Heddle-Sample-Index": self.attributes.get("heddle.sample.index"),
            "X-Heddle-Task": self.attributes.get("heddle.task"),
            "X-Heddle-Step": step,
            "X-Heddle-Final": "1" if final else None,
            "traceparent": self.traceparent,
        }
        return {name: str(value) for name, value in known.items() if value is not None}

    def finish(
        self,
        *,
        reward: float | None = None,
        outcome: str | None = None,
        truncated: bool | None = None,
    ) -> None:
        """What the trainer says of it; the span goes out when the `with` block ends."""
        said = {"heddle.reward": reward, "heddle.outcome": outcome, "heddle.truncated": truncated}
        self.attributes.update({k: v for k, v in said.items() if v is not None})

    @contextmanager
    def tool(
        self, name: str, *, step: int, synthetic: bool = False
    ) -> Generator[dict[str, Any], None, None]:
        """One tool call after that step; what is put into the yielded dict goes on its span."""
        call = self._calls[step] = self._calls.get(step, -1) + 1
        own = {"gen_ai.tool.name": name, "heddle.step.index": step}
        attributes = {**_shared(self.attributes), **own}
        if synthetic:
            attributes["heddle.synthetic"] = True
        span_id = ids.tool_span_id(self.run, self.id, step, call)
        span = _Open(self, c.EXECUTE_TOOL, f"{c.EXECUTE_TOOL} {name}", span_id, attributes)
        with span.running(self._emitter, self._now_ns, self.span_id):
            yield attributes


class Tracer:
    """Trajectories of one rollout of one run; `now_ns` tells the fleet's time."""

    def __init__(
        self,
        emitter: Emitter,
        run: str,
        rollout: str,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._emitter = emitter
        self._now_ns = now_ns
        self._shared = {"heddle.run.id": run, "heddle.rollout.id": rollout}

    @contextmanager
    def trajectory(
        self,
        id: str,
        *,
        group: str | None,
        sample_index: int | None = None,
        task: str | None = None,
        agent: str = "agent",
    ) -> Generator[Trajectory, None, None]:
        """One trajectory: announced at once, its span sent when the block ends."""
        known = {
            **self._shared,
            "gen_ai.conversation.id": id,
            "heddle.group.id": group,
            "heddle.sample.index": sample_index,
            "heddle.task": task,
            "gen_ai.agent.name": agent,
        }
        it = Trajectory(self._emitter, self._now_ns, known)
        name = f"{c.INVOKE_AGENT} {agent}"
        span = _Open(it, c.INVOKE_AGENT, name, it.span_id, it.attributes)
        with span.running(self._emitter, self._now_ns, None):
            yield it

    @contextmanager
    def phase(self, name: str, *, trainer_step: int) -> Generator[None, None, None]:
        """One phase of the trainer's step (gen, reward, update_actor ...; step is all of it)."""
        run, start_ns = self._shared["heddle.run.id"], self._now_ns()
        said = {
            **self._shared,
            "gen_ai.operation.name": c.TRAINER,
            "heddle.trainer.step": trainer_step,
            "heddle.trainer.phase": name,
        }
        try:
            yield
        finally:
            self._emitter.emit(
                f"{c.TRAINER} {name}",
                trace_id=ids.trace_id(run, f"trainer/{trainer_step}"),
                span_id=ids.span_id(run, "trainer", trainer_step, name),
                start_ns=start_ns,
                end_ns=max(self._now_ns(), start_ns),
                attributes=said,
            )


def _shared(attributes: Mapping[str, Any]) -> dict[str, Any]:
    own = ("heddle.reward", "heddle.outcome", "heddle.truncated", "gen_ai.operation.name")
    return {k: v for k, v in attributes.items() if k not in own}


class _Open:
    """A span between its start marker and its end."""

    def __init__(
        self, owner: Trajectory, op: str, name: str, span_id: str, attributes: dict[str, Any]
    ) -> None:
        self._trace_id = owner.trace_id
        self._op, self._name, self._span_id = op, name, span_id
        self._attributes = attributes
        attributes["gen_ai.operation.name"] = op

    @contextmanager
    def running(
        self, emitter: Emitter, now_ns: Callable[[], int], parent: str | None
    ) -> Generator[None, None, None]:
        start_ns = now_ns()
        emitter.start(
            self._op,
            trace_id=self._trace_id,
            span_id=self._span_id,
            parent_span_id=parent,
            at_ns=start_ns,
            attributes=self._attributes,
        )
        error: str | None = None
        try:
            yield
        except BaseException as failure:
            error = type(failure).__name__
            self._attributes.setdefault("heddle.outcome", "failed")
            raise
        finally:
            emitter.emit(
                self._name,
                trace_id=self._trace_id,
                span_id=self._span_id,
                parent_span_id=parent,
                start_ns=start_ns,
                end_ns=max(now_ns(), start_ns),
                attributes=self._attributes,
                error=error,
            )
