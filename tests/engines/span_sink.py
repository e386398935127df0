"""Which spans does an engine send, as whoever stands behind its OTLP endpoint sees them?

OTLP over HTTP on an ephemeral port, in this process; what comes is kept by trace.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otlp_server import spans_of


class SpanSink:
    """Spans by trace id; `url` is what an exporter is told."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1/traces"
        self._spans: dict[str, list[Span]] = defaultdict(list)
        self._lock = threading.Lock()

    def take(self, body: bytes) -> None:
        with self._lock:
            for span in spans_of(body):
                self._spans[span.trace_id.hex()].append(span)

    def of(self, trace_id: str, *names: str, within_s: float = 20.0) -> list[Span]:
        """A trace's spans once each of these is in the name of one: every process of an engine
        sends its own, in batches."""
        deadline = time.monotonic() + within_s
        while True:
            with self._lock:
                spans = list(self._spans[trace_id])
            here = all(any(name in span.name for span in spans) for name in names)
            if here or time.monotonic() > deadline:
                return spans
            time.sleep(0.05)


def attributes(span: Span) -> dict[str, Any]:
    """Its attributes as plain values."""
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes
    }


@contextmanager
def sink(port: int = 0) -> Generator[SpanSink]:
    """A receiver for as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    made = SpanSink(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
