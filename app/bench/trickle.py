"""How does a rollout go on while a bench looks at it? A few steps a second, over OTLP."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from heddle.app.bench.query_data import START_NS
from heddle.collector import ids

EVERY_S: Final = 0.5
AT_ONCE: Final = 25
MEDIA: Final = {"content-type": "application/x-protobuf"}


@contextmanager
def trickling(url: str, run_id: str, rollout: str) -> Generator[None]:
    """AT_ONCE new steps of the rollout every EVERY_S, until the block ends."""
    ended = threading.Event()

    def post() -> None:
        with httpx.Client(base_url=url, timeout=60) as http:
            for number in itertools.count():
                body = _body(run_id, rollout, number)
                http.post("/v1/traces", content=body, headers=MEDIA).raise_for_status()
                if ended.wait(EVERY_S):
                    return

    thread = threading.Thread(target=post, name="bench-trickle")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _body(run_id: str, rollout: str, number: int) -> bytes:
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    start_ns = START_NS + int(rollout[1:]) * 600 * 10**9 + (400 + number) * 10**9
    for index in range(AT_ONCE):
        trajectory, step = f"t{int(rollout[1:])}-{index}", 100 + number
        made = spans.add(
            trace_id=bytes.fromhex(ids.trace_id(run_id, trajectory)),
            span_id=bytes.fromhex(ids.step_span_id(run_id, trajectory, step)),
            name="chat",
            start_time_unix_nano=start_ns,
            end_time_unix_nano=start_ns + 10**9,
        )
        texts = {
            "heddle.run.id": run_id,
            "heddle.rollout.id": rollout,
            "gen_ai.conversation.id": trajectory,
            "gen_ai.operation.name": "chat",
            "heddle.worker.id": f"w{index % 8}",
        }
        for key, text in texts.items():
            made.attributes.add(key=key).value.string_value = text
        for key, count in (("heddle.step.index", step), ("gen_ai.usage.output_tokens", 80)):
            made.attributes.add(key=key).value.int_value = count
    return request.SerializeToString()
