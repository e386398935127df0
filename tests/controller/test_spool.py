"""Collector away: nothing is lost, nothing waits, the bound holds, a restart sends the rest."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from heddle.collector.tracing import Emitter
from heddle.controller.spool import SpoolingExporter

RETRY_S = 0.05


class Collector:
    """Takes spans on a fixed port, or refuses them with `status`, or is away."""

    def __init__(self) -> None:
        self.spans: list[str] = []
        self.status = 200
        self.port = 0
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                if outer.status == 200:
                    told = ExportTraceServiceRequest.FromString(raw)
                    outer.spans += [
                        s.name
                        for r in told.resource_spans
                        for scope in r.scope_spans
                        for s in scope.spans
                    ]
                self.send_response(outer.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.stop()


def emitter(collector, folder, **how):
    spool = SpoolingExporter(collector.url, folder, retry_s=RETRY_S, **how)
    return Emitter(collector.url, service="test", exporter=spool), spool


def emit(to, names):
    for name in names:
        to.emit(
            name, trace_id="ab" * 16, span_id="cd" * 8, start_ns=1, end_ns=2, attributes={"k": name}
        )


def until(true):
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def names(first, count):
    return [f"s{first + i}" for i in range(count)]


def test_an_outage_loses_nothing(collector, tmp_path):
    to, spool = emitter(collector, tmp_path)
    emit(to, names(0, 50))
    until(lambda: len(collector.spans) == 50)
    collector.stop()
    for burst in range(5):
        emit(to, names(50 + 100 * burst, 100))
        to.flush()
    assert spool.spooled_bytes > 0
    collector.start()
    until(lambda: len(collector.spans) == 550)
    emit(to, names(550, 10))
    until(lambda: len(collector.spans) == 560)
    to.close()
    assert sorted(collector.spans) == sorted(names(0, 560))
    assert (to.dropped, spool.spooled_bytes) == (0, 0)


def test_a_full_collector_is_waited_for_and_a_refusal_is_counted(collector, tmp_path):
    collector.status = 429
    to, spool = emitter(collector, tmp_path)
    emit(to, ["later"])
    to.flush()
    until(lambda: spool.spooled_bytes)
    assert to.dropped == 0
    collector.status = 200
    until(lambda: collector.spans == ["later"])
    until(lambda: not spool.spooled_bytes)
    collector.status = 400
    emit(to, ["wrong"])
    to.flush()
    until(lambda: to.dropped == 1)
    to.close()


def test_what_waits_is_sent_after_a_restart(collector, tmp_path):
    collector.stop()
    to, _ = emitter(collector, tmp_path)
    emit(to, names(0, 7))
    to.close()
    assert list(tmp_path.glob("*.otlp"))
    collector.start()
    again, _ = emitter(collector, tmp_path)
    until(lambda: len(collector.spans) == 7)
    again.close()
    assert not list(tmp_path.iterdir())


def test_the_spool_is_bounded_and_counts_what_it_cannot_keep(collector, tmp_path):
    collector.stop()
    to, spool = emitter(collector, tmp_path, limit_bytes=4096)
    for burst in range(8):
        emit(to, names(10 * burst, 10))
        to.flush()
    assert 0 < spool.spooled_bytes <= 4096
    assert to.dropped > 0
    to.close()
