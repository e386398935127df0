"""What becomes of a scope's span between its start marker and its end?

Opentelemetry and the standard library only, Python 3.10.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from heddle.collector.emitter import Emitter


class Opened:
    """A span between its start marker and its end."""

    def __init__(
        self,
        trace_id: str,
        op: str,
        name: str,
        span_id: str,
        attributes: dict[str, Any],
        told: Callable[[], bool] = lambda: True,
    ) -> None:
        self._trace_id = trace_id
        self._op, self._name, self._span_id = op, name, span_id
        self._attributes = attributes
        self._told = told
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
            if self._told():
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
