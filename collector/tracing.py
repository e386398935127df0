"""How does a trainer's agent loop tell what its trajectories do, without ever waiting?

Trajectories, steps and tool calls are announced when they start and told when they end, through an
`Emitter`; a trajectory without news says that it lives. Nothing here raises into the host or waits
for the collector. `opentelemetry` and the standard library only, Python 3.10.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Final
from urllib.parse import quote

from heddle.collector import conventions as c
from heddle.collector import ids
from heddle.collector.beats import BEATS
from heddle.collector.emitter import Emitter, in_this_process
from heddle.collector.opened import Opened
from heddle.collector.scopes import Scope

__all__ = [
    "Emitter",
    "Step",
    "Tracer",
    "Trajectory",
    "attach",
    "configure",
    "current",
    "step",
    "tool",
    "trajectory",
]
_SPELLED: Final = "UTF-8''"
DEFAULT_ENDPOINT: Final = "http://127.0.0.1:4318"
_CURRENT: Final[ContextVar[Trajectory | None]] = ContextVar("heddle_trajectory", default=None)


class Trajectory:
    """One trajectory under way: what its agent loop sends along, its steps and tool calls."""

    def __init__(
        self,
        emitter: Emitter,
        now_ns: Callable[[], int],
        attributes: Mapping[str, Any],
        branch: str = "",
    ) -> None:
        self.emitter = emitter
        self._now_ns = now_ns
        self.attributes: dict[str, Any] = dict(attributes)
        self.run: str = attributes["heddle.run.id"]
        self.id: str = attributes["gen_ai.conversation.id"]
        self.trace_id = ids.trace_id(self.run, self.id)
        self.span_id = ids.trajectory_span_id(self.run, self.id)
        self.branch = branch
        """Where in the tree of processes this is; empty where the trajectory began."""
        self.steps = 0
        """The number of the next step, as counted here."""
        self._calls: dict[int, int] = {}
        self._branches = 0

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
        return {name: _spelled(str(v)) for name, v in known.items() if v is not None}

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

    def step(self, *, model: str | None = None, index: int | None = None) -> Scope[Step]:
        """One LLM call, counted unless `index` says which; the yielded Step takes its tokens."""
        return Scope(lambda: self._step(model, index), lambda: _nobody(self)._step(None, None))

    def tool(
        self, name: str, *, step: int | None = None, synthetic: bool = False
    ) -> Scope[dict[str, Any]]:
        """One tool call after that step, by default the latest; what is put into the yielded dict
        goes on its span."""
        return Scope(
            lambda: self._tool(name, step, synthetic=synthetic),
            lambda: _nobody(self)._tool("", None, synthetic=False),
        )

    def carrier(self) -> dict[str, str]:
        """What another process needs to go on inside this trajectory: give it to `attach`."""
        self._branches += 1
        said = {k: str(v) for k, v in _shared(self.attributes).items() if v is not None}
        branch = f"{self.branch}.{self._branches}"
        return {**said, "branch": branch, "step": str(self.steps), "to": self.emitter.endpoint}

    @contextmanager
    def _step(self, model: str | None, index: int | None) -> Generator[Step, None, None]:
        number = self.steps if index is None else index
        self.steps = max(self.steps, number + 1)
        it = Step(self, number, {**_shared(self.attributes), "heddle.step.index": number})
        it.attributes["gen_ai.request.model"] = model
        span_id = ids.step_span_id(self.run, self.id, number)
        name = f"{c.CHAT} {model or ''}".rstrip()
        span = Opened(
            self.trace_id, c.CHAT, name, span_id, it.attributes, told=lambda: not it.elsewhere
        )
        with span.running(self.emitter, self._now_ns, self.span_id):
            yield it

    @contextmanager
    def _tool(
        self, name: str, step: int | None, *, synthetic: bool
    ) -> Generator[dict[str, Any], None, None]:
        after = max(self.steps - 1, 0) if step is None else step
        call = self._calls[after] = self._calls.get(after, -1) + 1
        own = {"gen_ai.tool.name": name, "heddle.step.index": after}
        attributes = {**_shared(self.attributes), **own}
        if synthetic:
            attributes["heddle.synthetic"] = True
        where = (self.branch, call) if self.branch else (call,)
        span_id = ids.span_id(self.run, self.id, "tool", after, *where)
        span = Opened(
            self.trace_id, c.EXECUTE_TOOL, f"{c.EXECUTE_TOOL} {name}", span_id, attributes
        )
        with span.running(self.emitter, self._now_ns, self.span_id):
            yield attributes

    def alive(self) -> None:
        """Say that it is: for a while there was nothing else to say."""
        at_ns = self._now_ns()
        self.emitter.emit(
            c.ALIVE,
            trace_id=self.trace_id,
            span_id=ids.span_id(self.run, self.id, "alive", at_ns),
            parent_span_id=self.span_id,
            start_ns=at_ns,
            end_ns=at_ns,
            attributes={**_shared(self.attributes), "gen_ai.operation.name": c.ALIVE},
        )


class Step:
    """One LLM call under way."""

    def __init__(self, owner: Trajectory, index: int, attributes: dict[str, Any]) -> None:
        self._owner = owner
        self.index = index
        self.attributes = attributes
        self.elsewhere = False
        """Whether the controller tells of this step, since the call goes through it."""

    def headers(self, *, final: bool = False) -> dict[str, str]:
        """For a call through Heddle's controller, which then tells of the step itself."""
        self.elsewhere = True
        return self._owner.headers(step=self.index, final=final)

    def usage(
        self,
        *,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        **more: Any,
    ) -> None:
        """What the answer said; `more` are attributes by their own names."""
        self.attributes |= {
            "gen_ai.usage.input_tokens": input_tokens,
            "gen_ai.usage.output_tokens": output_tokens,
            "gen_ai.usage.cache_read.input_tokens": cached_tokens,
            **more,
        }


class Tracer:
    """Trajectories of one rollout of one run; `now_ns` tells the fleet's time."""

    def __init__(
        self,
        emitter: Emitter,
        run: str,
        rollout: str | None = None,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.emitter = emitter
        self._now_ns = now_ns
        self._shared = {"heddle.run.id": str(run), "heddle.rollout.id": rollout and str(rollout)}

    def trajectory(
        self,
        id: str,
        *,
        group: str | None,
        sample_index: int | None = None,
        task: str | None = None,
        agent: str = "agent",
    ) -> Scope[Trajectory]:
        """One trajectory: announced at once, its span sent when the block ends."""
        known = {
            **self._shared,
            "gen_ai.conversation.id": str(id),
            "heddle.group.id": group,
            "heddle.sample.index": sample_index,
            "heddle.task": task,
            "gen_ai.agent.name": agent,
        }
        return Scope(lambda: self._trajectory(known, agent), lambda: nullcontext(_nobody(self)))

    @contextmanager
    def phase(self, name: str, *, trainer_step: int) -> Generator[None, None, None]:
        """One phase of the trainer's step (gen, reward, update_actor ...; step is all of it)."""
        run, start_ns = str(self._shared["heddle.run.id"]), self._now_ns()
        said = {
            **self._shared,
            "gen_ai.operation.name": c.TRAINER,
            "heddle.trainer.step": trainer_step,
            "heddle.trainer.phase": name,
        }
        try:
            yield
        finally:
            self.emitter.emit(
                f"{c.TRAINER} {name}",
                trace_id=ids.trace_id(run, f"trainer/{trainer_step}"),
                span_id=ids.span_id(run, "trainer", trainer_step, name),
                start_ns=start_ns,
                end_ns=max(self._now_ns(), start_ns),
                attributes=said,
            )

    @contextmanager
    def _trajectory(
        self, known: Mapping[str, Any], agent: str
    ) -> Generator[Trajectory, None, None]:
        it = Trajectory(self.emitter, self._now_ns, known)
        name = f"{c.INVOKE_AGENT} {agent}"
        span = Opened(it.trace_id, c.INVOKE_AGENT, name, it.span_id, it.attributes)
        with _as_current(it), span.running(self.emitter, self._now_ns, None):
            BEATS.begin(id(it), it.alive)
            try:
                yield it
            finally:
                BEATS.end(id(it))


def configure(
    endpoint: str | None = None,
    *,
    run: str,
    rollout: str | None = None,
    service: str = "trainer",
    token: str | None = None,
) -> Tracer:
    """What `trajectory()` uses from now on; the endpoint by default OTEL_EXPORTER_OTLP_ENDPOINT."""
    global _default
    said = endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or DEFAULT_ENDPOINT
    made_with = {"service": service, "resource": None, "token": token, "scope": "heddle"}
    _default = Tracer(in_this_process(said, made_with), run, rollout)
    return _default


def trajectory(id: str, *, group: str | None = None, **more: Any) -> Scope[Trajectory]:
    """One trajectory of the configured run; `tool` and `step` inside it know that they are."""
    return (_default or configure(run="default")).trajectory(id, group=group, **more)


def step(*, model: str | None = None, index: int | None = None) -> Scope[Step]:
    """One LLM call of the trajectory that the caller is in; outside of one nothing is told."""
    return Scope(lambda: _here().step(model=model, index=index))


def tool(name: str, *, step: int | None = None) -> Scope[dict[str, Any]]:
    """One tool call of the trajectory that the caller is in; outside of one nothing is told."""
    return Scope(lambda: _here().tool(name, step=step))


def current() -> Trajectory | None:
    """The trajectory that the caller is in."""
    return _CURRENT.get()


def attach(carrier: Mapping[str, str]) -> Scope[Trajectory]:
    """Go on in a trajectory that began in another process, from what its `carrier()` gave."""
    return Scope(lambda: _attached(dict(carrier)), lambda: nullcontext(_nobody(None)))


@contextmanager
def _attached(said: dict[str, str]) -> Generator[Trajectory, None, None]:
    branch, steps = said.pop("branch", ".0"), said.pop("step", "0")
    made_with = {"service": "trainer", "resource": None, "token": None, "scope": "heddle"}
    to = said.pop("to", DEFAULT_ENDPOINT)
    emitter = _default.emitter if _default else in_this_process(to, made_with)
    attributes: dict[str, Any] = dict(said)
    if "heddle.sample.index" in said:
        attributes["heddle.sample.index"] = int(said["heddle.sample.index"])
    it = Trajectory(emitter, time.time_ns, attributes, branch)
    it.steps = int(steps)
    with _as_current(it):
        yield it


@contextmanager
def _as_current(it: Trajectory) -> Generator[None, None, None]:
    token = _CURRENT.set(it)
    try:
        yield
    finally:
        try:
            _CURRENT.reset(token)
        except ValueError:
            # A generator that another context ends: its own variable is gone with it.
            _CURRENT.set(None)


def _here() -> Trajectory:
    return _CURRENT.get() or Trajectory(_NOWHERE, time.time_ns, _NOBODY)


def _nobody(by: Trajectory | Tracer | None) -> Trajectory:
    """What the host gets whose call cannot be told of; it counts as lost where it was to go."""
    if by is not None:
        by.emitter.lose()
    return Trajectory(_NOWHERE, time.time_ns, _NOBODY)


def _spelled(value: str) -> str:
    """As a header may say it: HTTP clients refuse what is not ASCII, or a line break."""
    plain = value.isascii() and value.isprintable() and value == value.strip()
    if plain and not value.startswith(_SPELLED):
        return value
    return _SPELLED + quote(value, safe="", errors="replace")


def _shared(attributes: Mapping[str, Any]) -> dict[str, Any]:
    own = ("heddle.reward", "heddle.outcome", "heddle.truncated", "gen_ai.operation.name")
    return {k: v for k, v in attributes.items() if k not in own}


class _Nowhere(Emitter):
    """Takes what is told outside of any trajectory."""

    def __init__(self) -> None:
        self.endpoint = DEFAULT_ENDPOINT

    def emit(self, name: str, **said: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Nowhere."""


_NOWHERE: Final = _Nowhere()
_NOBODY: Final = {"heddle.run.id": "default", "gen_ai.conversation.id": "nobody"}
_default: Tracer | None = None
