"""How do spans of one's own OpenTelemetry SDK leave through Heddle's queue, not the SDK's?

`provider.add_span_processor(HeddleProcessor(emitter))`: nothing of a burst is dropped that fits the
Emitter's bounds, what is dropped is counted there, nothing raises into the host. Opentelemetry and
the standard library only, Python 3.10.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import StatusCode, format_span_id, format_trace_id

from heddle.collector.emitter import Emitter


class HeddleProcessor(SpanProcessor):
    """Hands every sampled span to an Emitter; with `announce` its start too."""

    def __init__(self, emitter: Emitter, *, announce: bool = True) -> None:
        self._emitter = emitter
        self._announce = announce

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Announce a span that says which operation it is, so that it shows while it runs."""
        _ = parent_context
        attributes = dict(span.attributes or {})
        op, context = attributes.get("gen_ai.operation.name"), span.get_span_context()
        if not self._announce or not op:
            return
        self._emitter.start(
            str(op),
            **_ids(context.trace_id, context.span_id, span),
            at_ns=span.start_time or 0,
            attributes=attributes,
        )

    def on_end(self, span: ReadableSpan) -> None:
        """Queue it."""
        context = span.get_span_context()
        if context is None or not context.trace_flags.sampled:
            return
        attributes = dict(span.attributes or {})
        failed = span.status.status_code is StatusCode.ERROR
        error = attributes.get("error.type") or span.status.description or "error"
        self._emitter.emit(
            span.name,
            **_ids(context.trace_id, context.span_id, span),
            start_ns=span.start_time or 0,
            end_ns=span.end_time or 0,
            attributes=attributes,
            error=str(error) if failed else None,
        )

    def shutdown(self) -> None:
        """Send what is queued; the Emitter is its owner's to close."""
        self._emitter.flush()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Whether everything went out in time."""
        return self._emitter.flush(timeout_millis / 1e3)


def _ids(trace_id: int, span_id: int, span: ReadableSpan) -> dict[str, Any]:
    parent = span.parent
    return {
        "trace_id": format_trace_id(trace_id),
        "span_id": format_span_id(span_id),
        "parent_span_id": format_span_id(parent.span_id) if parent else None,
    }
