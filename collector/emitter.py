"""How does a span leave a trainer or a controller without anybody waiting for the collector?

`Emitter` takes finished spans and start markers with ids and times of the caller's choosing. It
neither raises nor blocks: what cannot be sent is counted in `dropped`. `opentelemetry` and the
standard library only, Python 3.10.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from heddle.collector import conventions as c
from heddle.collector import ids
from heddle.collector.otlp_sender import OtlpSender, Sender, in_children
from heddle.collector.span_bytes import Envelope, span_bytes

# The SDK's own 2048 lost 6,443 of 20,000 spans in a burst. 50,000 tool calls are 100,000 messages,
# each announced and ended; they are about 600 bytes each.
QUEUE_SPANS: Final = 200_000
QUEUE_BYTES: Final = 128 << 20
BATCH_SPANS: Final = 2_048
DELAY_MS: Final = 200
SEND_TIMEOUT_S: Final = 10
# A collector takes 64 MB; 2,048 spans with 50 kB of a tool's output each would be 100 MB.
REQUEST_BYTES: Final = 8 << 20
_log: Final = logging.getLogger("heddle")


class _Sampled:
    """A span's context, as far as the SDK's queue looks at it; its own works it out each time."""

    trace_flags = SimpleNamespace(sampled=True)


class _Encoded:
    """What the SDK's queue holds instead of a span: its bytes. It looks at the context only."""

    __slots__ = ("body",)
    context = _Sampled

    def __init__(self, body: bytes) -> None:
        self.body = body


class _Counted(SpanExporter):
    """Passes batches on and keeps count of how many spans are still queued and how many failed."""

    def __init__(self, envelope: Envelope, sender: Sender) -> None:
        self._envelope = envelope
        self._sender = sender
        # Reentrant: the garbage collector may end a suspended agent in here, and its scopes.
        self._lock = threading.RLock()
        self._ended = False
        self.queued = 0
        self.queued_bytes = 0
        self._dropped = 0
        self.told = 0
        """Of those dropped, how many the collector knows of."""
        self.report: Callable[[int], bytes | None] = _nothing
        # A forked child has none of the queue, and a lock that may never be let go.
        in_children(self)

    @property
    def dropped(self) -> int:
        """Spans that did not fit, were not sendable or were refused."""
        return self._dropped + self._sender.refused

    def forked(self) -> None:
        """The queue is empty here: what it held is the parent's to send."""
        self._lock = threading.RLock()
        self.queued = self.queued_bytes = 0

    def admit(self, size: int) -> bool:
        """Whether one more span of so many bytes fits the queue; if not it counts as dropped."""
        with self._lock:
            fits = self.queued < QUEUE_SPANS and self.queued_bytes + size <= QUEUE_BYTES
            if fits:
                self.queued += 1
                self.queued_bytes += size
            else:
                self._dropped += 1
        return fits

    def lose(self) -> None:
        """One span was not sendable."""
        with self._lock:
            self._dropped += 1

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send one batch, in requests of a size a collector takes; what is refused was dropped."""
        parts = _parts([cast("_Encoded", span).body for span in spans])
        taken = [self._export(bodies) for bodies in parts]
        return SpanExportResult.SUCCESS if all(taken) else SpanExportResult.FAILURE

    def _export(self, bodies: list[bytes]) -> bool:
        taken = False
        try:
            dropped = self.dropped
            # What was lost is told with what is sent next, since it says so itself no more.
            told = self.report(dropped) if dropped > self.told else None
            taken = self._sender.send(self._envelope.request(bodies + ([told] if told else [])))
            self.told = dropped if taken and told else self.told
        except Exception:  # noqa: BLE001 (the parts after it are to be sent; counted below)
            _log.warning("spans were lost by their sender", exc_info=True)
        with self._lock:
            self.queued -= len(bodies)
            self.queued_bytes -= sum(map(len, bodies))
            self._dropped += 0 if taken else len(bodies)
        return taken

    def shutdown(self) -> None:
        """Give up on a request under way."""
        # Asked twice, by us and by the processor.
        if not self._ended:
            self._ended = True
            self._sender.shutdown()


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
        sender: Sender | None = None,
        scope: str = "heddle",
    ) -> None:
        name = instance or f"{socket.gethostname()}-{os.getpid()}"
        own = {"service.name": service, "service.instance.id": name}
        # Resource.create adds what OTEL_RESOURCE_ATTRIBUTES and the SDK say of this process.
        said = Resource.create({**own, **_plain(resource or {})}).attributes
        self._made_with: dict[str, Any] = {
            "service": service, "resource": resource, "token": token, "scope": scope,
        }  # fmt: skip
        self.endpoint = endpoint
        self._own: OtlpSender | None = None
        if sender is None:
            sender = self._own = OtlpSender(endpoint, token=token, limit_s=SEND_TIMEOUT_S)
        self._sender = _Counted(Envelope(said, scope, c.VERSION), sender)
        self._processor = BatchSpanProcessor(
            self._sender,
            max_queue_size=QUEUE_SPANS,
            max_export_batch_size=BATCH_SPANS,
            schedule_delay_millis=DELAY_MS,
        )
        self._closed = False
        self._run: str | None = None
        self._latest_ns = 0
        self._name = f"{service}/{name}"
        self._sender.report = self._report
        # A script that ends without close() keeps its last spans; a dead Emitter is not held alive.
        atexit.register(_send_the_rest, weakref.ref(self))

    def __reduce__(self) -> tuple[Callable[..., Emitter], tuple[str, dict[str, Any]]]:
        """In another process (a Ray actor) it is that process's own, to the same collector."""
        return in_this_process, (self.endpoint, self._made_with)

    @property
    def dropped(self) -> int:
        """Spans that were refused, lost or not sendable so far."""
        return self._sender.dropped

    @property
    def closed(self) -> bool:
        """Whether what is emitted from now on is lost."""
        return self._closed

    def lose(self) -> None:
        """Count a span that could not even be made."""
        self._sender.lose()

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
            body = span_bytes(
                name, trace_id, span_id, parent_span_id, start_ns, end_ns, attributes, error
            )
            self._run = attributes.get("heddle.run.id") or self._run
            if end_ns > self._latest_ns:
                self._latest_ns = end_ns
            if self._closed:
                self._sender.lose()
            elif self._sender.admit(len(body)):
                self._processor.on_end(cast("ReadableSpan", _Encoded(body)))
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

    def _report(self, dropped: int) -> bytes | None:
        """What this sender lost so far, as a span of the run it sends for; None before any."""
        if self._run is None:
            return None
        # In the time its spans speak of: an emulated fleet's is not the machine's.
        at_ns = self._latest_ns
        said = {
            "gen_ai.operation.name": c.SENDER,
            "heddle.run.id": self._run,
            "heddle.sender.dropped": dropped,
        }
        trace = ids.trace_id(self._run, f"sender/{self._name}")
        span = ids.span_id(self._run, "sender", self._name, dropped)
        return span_bytes(c.SENDER, trace, span, None, at_ns, at_ns, said, None)

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
            if self._own is not None:
                self._own.hurry()
            self._processor.shutdown()


_OURS: Final[dict[str, Emitter]] = {}


def in_this_process(endpoint: str, made_with: Mapping[str, Any]) -> Emitter:
    """One a process for each collector and service: unpickling twice opens one connection."""
    key = f"{os.getpid()} {endpoint} {sorted(made_with.items(), key=str)}"
    if key not in _OURS or _OURS[key].closed:
        _OURS[key] = Emitter(endpoint, **made_with)
    return _OURS[key]


def _parts(bodies: list[bytes]) -> list[list[bytes]]:
    """The same in order, each of about REQUEST_BYTES at most, or of one span that is larger."""
    parts: list[list[bytes]] = [[]]
    size = 0
    for body in bodies:
        if parts[-1] and size + len(body) > REQUEST_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(body)
        size += len(body)
    return parts


def _nothing(dropped: int) -> None:
    _ = dropped


def _send_the_rest(emitter: weakref.ref[Emitter]) -> None:
    alive = emitter()
    if alive is not None:
        alive.finish_at_exit()


def _within(timeout_s: float, call: Callable[[], Any]) -> bool:
    # force_flush takes a timeout and ignores it, so the waiting is bounded from outside.
    thread = threading.Thread(target=call, name="heddle-emitter-flush", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return not thread.is_alive()


def _plain(resource: Mapping[str, Any]) -> dict[str, str | bool | int | float]:
    """What the SDK takes as a resource's attribute; the rest as text."""
    known = {str(k): v for k, v in resource.items() if v is not None}
    return {k: v if isinstance(v, str | bool | int | float) else str(v) for k, v in known.items()}
