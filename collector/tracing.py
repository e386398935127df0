"""How does a trainer or a controller send its spans without ever waiting for the collector?

`Emitter` takes finished spans and start markers with ids and times of the caller's choosing;
`Tracer` wraps it for a trainer's agent loop. Neither raises and neither blocks: what cannot be sent
is counted in `dropped`. `opentelemetry` and the standard library only, Python 3.10.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from heddle.collector import conventions as c
from heddle.collector import ids

# The SDK's own 2048 lost 6,443 of 20,000 spans in a burst; 65,536 lost none.
QUEUE_SPANS: Final = 65_536
BATCH_SPANS: Final = 2_048
DELAY_MS: Final = 200
SEND_TIMEOUT_S: Final = 10
_SCOPE: Final = InstrumentationScope("heddle", c.VERSION)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_INT64: Final = 1 << 63


class _Counted(SpanExporter):
    """Passes batches on and keeps count of how many spans are still queued and how many failed."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._ended = False
        self.queued = 0
        self.dropped = 0

    def admit(self) -> bool:
        """Whether one more span fits the queue; if not it counts as dropped."""
        with self._lock:
            fits = self.queued < QUEUE_SPANS
            self.queued += fits
            self.dropped += not fits
        return fits

    def lose(self) -> None:
        """One span was not sendable."""
        with self._lock:
            self.dropped += 1

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send one batch; a refused batch counts as dropped."""
        result = SpanExportResult.FAILURE
        try:
            result = self._inner.export(spans)
        finally:
            with self._lock:
                self.queued -= len(spans)
                if result is not SpanExportResult.SUCCESS:
                    self.dropped += len(spans)
        return result

    def shutdown(self) -> None:
        """Give up on a request under way."""
        # Asked twice, by us and by the processor; the exporter would warn of the second time.
        if not self._ended:
            self._ended = True
            self._inner.shutdown()


class Emitter:
    """Sends spans to a collector from a thread of its own; `endpoint` is http://host:port."""

    def __init__(
        self,
        endpoint: str,
        *,
        service: str,
        instance: str | None = None,
        resource: Mapping[str, Any] | None = None,
        token: str | None = None,
        exporter: SpanExporter | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else None
        url = endpoint.rstrip("/") + "/v1/traces"
        self._sender = _Counted(
            exporter or OTLPSpanExporter(url, headers=headers, timeout=SEND_TIMEOUT_S)
        )
        self._processor = BatchSpanProcessor(
            self._sender,
            max_queue_size=QUEUE_SPANS,
            max_export_batch_size=BATCH_SPANS,
            schedule_delay_millis=DELAY_MS,
        )
        name = instance or f"{socket.gethostname()}-{os.getpid()}"
        own = {"service.name": service, "service.instance.id": name}
        self._resource = Resource.create({**own, **_clean(resource or {})})
        self._closed = False
        # A script that ends without close() keeps its last spans; a dead Emitter is not held alive.
        atexit.register(_send_the_rest, weakref.ref(self))

    @property
    def dropped(self) -> int:
        """Spans that were refused, lost or not sendable so far."""
        return self._sender.dropped

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
    ) -> None:
        """Queue one finished span; `error` sets its status and `error.type`."""
        try:
            span = self._span(
                name, trace_id, span_id, parent_span_id, start_ns, end_ns, attributes, error
            )
            if self._closed:
                self._sender.lose()
            elif self._sender.admit():
                self._processor.on_end(span)
        except Exception:  # noqa: BLE001 (a trainer must not fail for its telemetry; counted)
            self._sender.lose()

    def start(
        self,
        op: str,
        *,
        trace_id: str,
        span_id: str,
        parent_span_id: str | None = None,
        at_ns: int,
        attributes: Mapping[str, Any],
    ) -> None:
        """Announce the span `span_id` of operation `op`, which will be emitted when it ends."""
        marker = {
            "heddle.starts": span_id,
            "heddle.starts.op": op,
            "gen_ai.operation.name": c.START,
        }
        self.emit(
            c.START,
            trace_id=trace_id,
            span_id=ids.marker_id(span_id),
            parent_span_id=parent_span_id,
            start_ns=at_ns,
            end_ns=at_ns,
            attributes={**attributes, **marker},
        )

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until all that was emitted so far has been sent or lost; False when time ran out."""
        return _within(timeout_s, self._processor.force_flush)

    def close(self, timeout_s: float = 10.0) -> None:
        """Flush, then end; what is not sent within the timeout is lost."""
        if self._closed:
            return
        self._closed = True
        self.flush(timeout_s)
        # First the exporter: a request that waits to be retried then gives up at once.
        self._sender.shutdown()
        _within(timeout_s, self._processor.shutdown)

    def finish_at_exit(self) -> None:
        """Send what is queued from the thread that ends the program: no new thread starts then."""
        if not self._closed:
            self._closed = True
            self._processor.shutdown()

    def _span(
        self,
        name: str,
        trace_id: str,
        span_id: str,
        parent_span_id: str | None,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, Any],
        error: str | None,
    ) -> ReadableSpan:
        known = _clean(attributes)
        if error:
            known["error.type"] = error
        return ReadableSpan(
            name,
            _context(trace_id, span_id),
            _context(trace_id, parent_span_id) if parent_span_id else None,
            self._resource,
            known,
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, error) if error else Status(StatusCode.UNSET),
            start_time=start_ns,
            end_time=end_ns,
            instrumentation_scope=_SCOPE,
        )


def _send_the_rest(emitter: weakref.ref[Emitter]) -> None:
    alive = emitter()
    if alive is not None:
        alive.finish_at_exit()


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=_SAMPLED)


def _within(timeout_s: float, call: Callable[[], Any]) -> bool:
    # force_flush takes a timeout and ignores it, so the waiting is bounded from outside.
    thread = threading.Thread(target=call, name="heddle-emitter-flush", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return not thread.is_alive()


def _clean(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What OTLP can carry: one value it cannot would lose the whole batch it travels in."""
    return {str(k): _value(v) for k, v in attributes.items() if v is not None}


def _value(value: Any) -> Any:
    if isinstance(value, bool | float | bytes):
        return value
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return json.dumps(value, default=str)
    if isinstance(value, Sequence | set | frozenset):
        return [_value(v) for v in value]
    return str(value)


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
