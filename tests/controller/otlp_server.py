"""An OTLP/HTTP server whose answers a test decides."""

from __future__ import annotations

import contextlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


def spans_of(body: bytes) -> list[Span]:
    """Every span of a request, whatever resource and scope it came with."""
    request = ExportTraceServiceRequest.FromString(body)
    return [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]


class OtlpServer:
    """Takes spans on a fixed port, or refuses them with `status`, or is away."""

    def __init__(self) -> None:
        self.spans: list[str] = []
        self.status = 200
        self.statuses: list[int] = []
        """Answers that come before `status`."""
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self._open: list[socket.socket] = []
        self.port = 0
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # An idle connection is closed soon, as a collector behind a proxy does.
            timeout = 0.3

            def setup(self) -> None:
                outer.connections += 1
                outer._open.append(self.request)
                super().setup()

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                outer.headers.append(dict(self.headers))
                status = outer.statuses.pop(0) if outer.statuses else outer.status
                if status == 200:
                    outer.spans += [span.name for span in spans_of(raw)]
                self.send_response(status)
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
        for link in self._open:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        self._open.clear()


class Kept:
    """A sender that takes everything; `open` shut, it waits."""

    refused = 0

    def __init__(self):
        self.bodies, self.open = [], threading.Event()
        self.open.set()

    def send(self, body):
        self.open.wait(20)
        self.bodies.append(body)
        return True

    def shutdown(self):
        self.open.set()

    @property
    def spans(self):
        return [span for body in self.bodies for span in spans_of(body)]
