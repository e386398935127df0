"""Which spans does an emulated engine send of a request?

SGLang 0.5.23's trace level 1: ` Req <rid>` below the request's `traceparent`, the scheduler's
thread below it, and there what the request waited, prefilled and decoded; `decode_forward` is the
time in the running batch. In fleet time, sent by a thread of the emitter's own. Levels 2 and above
add nothing here: their spans are about SGLang's processes. `retract` is seen as another waiting.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from heddle.controller.dataplane.identity import parse_trace
from heddle.controller.emulator.request import EngineConfig, Finished, Request

if TYPE_CHECKING:
    from heddle.collector.emitter import Emitter

SCOPE: Final = "sglang server"
STAGES: Final = ("prefill_waiting", "prefill_forward", "decode_forward")


@dataclass(frozen=True, slots=True)
class Traced:
    """A request under way, and the trace and span it came below (None: it brought none)."""

    request: Request
    parent: tuple[str, str] | None


class EngineSpans:
    """Spans of one engine; `origin_ns` is when its seconds begin."""

    def __init__(self, emitter: Emitter, config: EngineConfig, origin_ns: int) -> None:
        self.level = 1
        self._emitter = emitter
        self._origin_ns = origin_ns
        self._open: dict[str, Traced] = {}
        host = blake2b(os.uname().nodename.encode(), digest_size=4).hexdigest()
        self._model = config.model
        self._label = f"Scheduler [TP 0] (host:{host} | pid:{os.getpid()})"
        self._thread = {
            "host_id": host, "pid": os.getpid(), "thread_label": "Scheduler", "tp_rank": 0
        }  # fmt: skip

    @classmethod
    def to(cls, endpoint: str, config: EngineConfig, origin_ns: int) -> EngineSpans:
        """To an OTLP/HTTP address, http://host:port."""
        # OpenTelemetry's SDK takes 0.3 s to import: an engine without spans need not.
        from heddle.collector.emitter import Emitter

        service = f"sglang-{config.worker_id}"
        return cls(Emitter(endpoint, service=service, scope=SCOPE), config, origin_ns)

    def begun(self, request: Request, traceparent: str | None) -> None:
        """A request arrived; one whose parent was not sampled makes no spans."""
        parent = parse_trace(traceparent)
        if self.level > 0 and (parent is None or _is_sampled(traceparent or "")):
            self._open[request.rid] = Traced(request, parent)

    def ended(self, done: Finished) -> None:
        """It finished or was aborted: its spans go out."""
        traced = self._open.pop(done.rid, None)
        if traced is None:
            return
        # Alone, SGLang draws 64 random bits; here they are the rid's, so that a run repeats.
        own = blake2b(done.rid.encode(), digest_size=8).hexdigest().rjust(32, "0")
        trace, above = traced.parent or (own, None)
        root, thread = _id(trace, done.rid, "root"), _id(trace, done.rid, "thread")
        name = f" Req {_short(done.rid)[:8]}"
        whole = (done.arrival_s, done.at_s)
        self._emit(name, (trace, root, above), whole, self._said(done, traced.request))
        error = "abort" if done.reason == "abort" else None
        self._emit(self._label, (trace, thread, root), whole, self._thread, error)
        for place, (stage, start_s, end_s) in enumerate(stages(done)):
            span = _id(trace, done.rid, f"{place}")
            self._emit(stage, (trace, span, thread), (start_s, end_s), {})

    def close(self) -> None:
        """Send what is left."""
        self._emitter.close(timeout_s=2.0)

    def _emit(
        self,
        name: str,
        ids: tuple[str, str, str | None],
        whole: tuple[float, float],
        attributes: dict[str, Any],
        error: str | None = None,
    ) -> None:
        start_ns, end_ns = (self._origin_ns + round(at_s * 1e9) for at_s in whole)
        trace, span, above = ids
        self._emitter.emit(
            name, trace_id=trace, span_id=span, parent_span_id=above, start_ns=start_ns,
            end_ns=end_ns, attributes=attributes, error=error,
        )  # fmt: skip

    def _said(self, done: Finished, request: Request) -> dict[str, Any]:
        first_s = done.at_s if done.prefill_end_s is None else done.prefill_end_s
        entry_s = done.at_s if done.entry_s is None else done.entry_s
        return {
            "rid": _short(done.rid),
            "module": "sglang::request",
            "gen_ai.request.id": done.rid,
            "gen_ai.request.max_tokens": request.max_new_tokens,
            "gen_ai.response.model": self._model,
            "gen_ai.response.finish_reasons": json.dumps([done.reason]),
            "gen_ai.usage.prompt_tokens": done.prompt_tokens,
            "gen_ai.usage.completion_tokens": done.output_tokens,
            "gen_ai.usage.cached_tokens": done.cached_tokens,
            "gen_ai.latency.e2e": done.at_s - done.arrival_s,
            "gen_ai.latency.time_to_first_token": first_s - done.arrival_s,
            "gen_ai.latency.time_in_model_prefill": max(first_s - entry_s, 0.0),
            "gen_ai.latency.time_in_model_decode": done.at_s - first_s,
            "gen_ai.latency.time_in_model_inference": max(done.at_s - entry_s, 0.0),
        }


def stages(done: Finished) -> Iterator[tuple[str, float, float]]:
    """(stage, start_s, end_s) in order, once more after each retraction; none of no length."""
    at_s = done.arrival_s
    for _, entered_s, prefilled_s, until_s in done.laps:
        for stage, edge_s in zip(STAGES, (entered_s, prefilled_s, until_s), strict=True):
            end_s = until_s if edge_s is None else edge_s
            if end_s > at_s:
                yield stage, at_s, end_s
            at_s = end_s


def _short(rid: str) -> str:
    """SGLang strips what precedes the last underscore."""
    return rid.rsplit("_", 1)[-1]


def _is_sampled(traceparent: str) -> bool:
    return bool(int(traceparent.strip()[-2:], 16) & 1)


def _id(trace: str, rid: str, part: str) -> str:
    return blake2b(f"{trace}/{rid}/{part}".encode(), digest_size=8).hexdigest()
