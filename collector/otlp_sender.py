"""How does an encoded batch of spans reach a collector over HTTP?

One connection kept open, standard library only. `OtlpPost` asks once; `OtlpSender` asks again, with
growing pauses, while the collector is away or full, within its time limit. TLS and headers follow
the OTEL_EXPORTER_OTLP_* environment variables that other exporters read too.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final, Protocol
from urllib.parse import urlsplit

from opentelemetry.util.re import parse_env_headers

from heddle.collector import conventions as c

AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses that say: later."""
PROTOCOL_HEADER: Final = "X-Heddle-Protocol"
"""Carries the version of the conventions, both ways."""
TIMEOUT_S: Final = 5.0
FIRST_PAUSE_S: Final = 0.5
_log: Final = logging.getLogger("heddle")


class Sender(Protocol):
    """Where an Emitter hands its batches; both methods may be called from any thread."""

    @property
    def refused(self) -> int:
        """Spans of batches that were taken, kept for later, and refused then."""
        ...

    def send(self, body: bytes) -> bool:
        """Take an ExportTraceServiceRequest; False when it is lost. May block, never raises."""
        ...

    def shutdown(self) -> None:
        """Give up on what is under way; called once."""
        ...


class OtlpPost:
    """POSTs to `endpoint`/v1/traces; used by one thread at a time."""

    def __init__(self, endpoint: str, *, token: str | None = None) -> None:
        self._url = urlsplit(endpoint.rstrip("/") + "/v1/traces")
        self._headers = {**_said("HEADERS"), "Content-Type": "application/x-protobuf"}
        self._headers[PROTOCOL_HEADER] = c.VERSION
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._link: HTTPConnection | None = None
        self._pid = os.getpid()
        self.peer: str | None = None
        """The protocol version that the collector says it speaks."""

    def post(self, body: bytes) -> tuple[int | None, float]:
        """Status (None: nobody answered) and the seconds the collector asks to wait."""
        if self._pid != os.getpid():
            # A forked child must not write into its parent's connection.
            self._link, self._pid = None, os.getpid()
        fresh = self._link is None
        try:
            return self._post(body)
        except (OSError, HTTPException):
            self.close()
            # A connection that idled may have been closed by the other side: that is no outage.
            if fresh:
                return None, 0.0
        try:
            return self._post(body)
        except (OSError, HTTPException):
            self.close()
            return None, 0.0

    def close(self) -> None:
        """Let the connection go."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _post(self, body: bytes) -> tuple[int, float]:
        link = self._link = self._link or self._connect()
        link.request("POST", self._url.path, body, self._headers)
        reply = link.getresponse()
        reply.read()
        wait = reply.getheader("Retry-After") or ""
        self.peer = reply.getheader(PROTOCOL_HEADER)
        return reply.status, float(wait) if wait.isascii() and wait.isdigit() else 0.0

    def _connect(self) -> HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme != "https":
            return HTTPConnection(host, port, timeout=TIMEOUT_S)
        context = ssl.create_default_context(cafile=_environment("CERTIFICATE") or None)
        certificate = _environment("CLIENT_CERTIFICATE")
        if certificate:
            context.load_cert_chain(certificate, _environment("CLIENT_KEY") or None)
        return HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)


class OtlpSender:
    """Sends a batch, again and again until `limit_s` is over."""

    refused = 0

    def __init__(self, endpoint: str, *, token: str | None = None, limit_s: float = 10.0) -> None:
        self._post = OtlpPost(endpoint, token=token)
        self._limit_s = limit_s
        self._busy = threading.Lock()
        self._ended = threading.Event()
        self._warned = ""

    def send(self, body: bytes) -> bool:
        """Whether the collector has it."""
        with self._busy:
            taken = self._send(body)
            if self._ended.is_set():
                self._post.close()
        return taken

    def shutdown(self) -> None:
        """Give up on a batch that waits to be sent again."""
        self._ended.set()
        # Whoever is sending closes the link when it is done.
        if self._busy.acquire(blocking=False):
            self._post.close()
            self._busy.release()

    def _compare(self) -> None:
        """One warning where library and collector speak different versions."""
        peer = self._post.peer
        if peer is not None and peer != c.VERSION and peer != self._warned:
            self._warned = peer
            _log.warning(
                "the collector speaks version %s of Heddle's spans, this library %s: upgrade %s; "
                "until then attributes that changed are stored as they come",
                *(peer, c.VERSION, "the library" if peer > c.VERSION else "the collector"),
            )

    def _send(self, body: bytes) -> bool:
        until_s, pause_s = time.monotonic() + self._limit_s, FIRST_PAUSE_S
        while not self._ended.is_set():
            status, wait_s = self._post.post(body)
            if status is not None and status not in AGAIN:
                self._compare()
                return status < 300
            pause_s = max(wait_s, pause_s)
            if time.monotonic() + pause_s > until_s:
                return False
            self._ended.wait(pause_s)
            pause_s *= 2
        return False


def _environment(name: str) -> str:
    traces = os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}")
    return traces or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}", "")


def _said(name: str) -> Mapping[str, str]:
    return parse_env_headers(_environment(name), liberal=True)
