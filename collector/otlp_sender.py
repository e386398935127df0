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
import weakref
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final, Protocol
from urllib.parse import SplitResult, urlsplit

from opentelemetry.util.re import parse_env_headers

from heddle.collector import conventions as c

AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses that say: later."""
PROTOCOL_HEADER: Final = "X-Heddle-Protocol"
"""Carries the version of the conventions, both ways."""
TIMEOUT_S: Final = 5.0
FIRST_PAUSE_S: Final = 0.5
NO_ADDRESS: Final = 599
"""What a post to no address at all gives: as final as a refusal, and told of already."""
# A token with a line break is a ValueError, and so is a name that no DNS can have.
_LOST: Final = (OSError, HTTPException, ValueError)
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


class Forked(Protocol):
    """What must begin anew in a forked child."""

    def forked(self) -> None:
        """This is the child."""
        ...


class OtlpPost:
    """POSTs to `endpoint`/v1/traces; used by one thread at a time."""

    def __init__(self, endpoint: str, *, token: str | None = None) -> None:
        self._url = _address(endpoint)
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
        if self._url is None:
            return NO_ADDRESS, 0.0
        if self._pid != os.getpid():
            # A forked child must not write into its parent's connection.
            self._link, self._pid = None, os.getpid()
        fresh = self._link is None
        try:
            return self._post(self._url, body)
        except _LOST:
            self.close()
            # A connection that idled may have been closed by the other side: that is no outage.
            if fresh:
                return None, 0.0
        try:
            return self._post(self._url, body)
        except _LOST:
            self.close()
            return None, 0.0

    def close(self) -> None:
        """Let the connection go."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _post(self, url: SplitResult, body: bytes) -> tuple[int, float]:
        link = self._link = self._link or _connect(url)
        link.request("POST", url.path, body, self._headers)
        reply = link.getresponse()
        reply.read()
        wait = reply.getheader("Retry-After") or ""
        self.peer = reply.getheader(PROTOCOL_HEADER)
        return reply.status, float(wait) if wait.isascii() and wait.isdigit() else 0.0


class OtlpSender:
    """Sends a batch, again and again until `limit_s` is over."""

    refused = 0

    def __init__(self, endpoint: str, *, token: str | None = None, limit_s: float = 10.0) -> None:
        self._post = OtlpPost(endpoint, token=token)
        self._endpoint = endpoint
        self._limit_s = limit_s
        self._warned: set[str] = set()
        self.forked()
        in_children(self)

    def forked(self) -> None:
        """A child's own: the parent's may be held by the thread that was sending."""
        self._busy = threading.Lock()
        self._ended = threading.Event()
        self._last = threading.Event()

    def hurry(self) -> None:
        """The program ends: what nobody answers is not asked again."""
        self._last.set()

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
        self._last.set()
        # Whoever is sending closes the link when it is done.
        if self._busy.acquire(blocking=False):
            self._post.close()
            self._busy.release()

    def _compare(self) -> None:
        """One warning where library and collector speak different versions."""
        peer = self._post.peer
        if peer is not None and peer != c.VERSION:
            older = "the library" if peer > c.VERSION else "the collector"
            self._warn(
                f"the collector speaks version {peer} of Heddle's spans, this library {c.VERSION}: "
                f"upgrade {older}; until then attributes that changed are stored as they come"
            )

    def _warn(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            _log.warning(sentence)

    def _lost(self, status: int | None) -> bool:
        if status == NO_ADDRESS:
            return False
        said = "nobody answers there" if status is None else f"it answered {status}"
        if status in (401, 403):
            said += ": the ingest token is missing or wrong"
        self._warn(f"spans do not reach the collector at {self._endpoint} ({said}); they are lost")
        return False

    def _send(self, body: bytes) -> bool:
        until_s, pause_s = time.monotonic() + self._limit_s, FIRST_PAUSE_S
        while not self._ended.is_set():
            status, wait_s = self._post.post(body)
            if status is not None and status not in AGAIN:
                self._compare()
                return status < 300 or self._lost(status)
            pause_s = max(wait_s, pause_s)
            if status is None and self._last.is_set():
                self._ended.set()
            if self._ended.is_set() or time.monotonic() + pause_s > until_s:
                return self._lost(status)
            (self._ended if self._last.is_set() else self._last).wait(pause_s)
            pause_s *= 2
        return False


def in_children(known: Forked) -> None:
    """Tell it in every forked child, for as long as it lives."""
    weakly = weakref.ref(known)

    def reset() -> None:
        alive = weakly()
        if alive is not None:
            alive.forked()

    os.register_at_fork(after_in_child=reset)


def _address(endpoint: str) -> SplitResult | None:
    """Where spans go; None, and one warning, for what is no address: a host goes on without."""
    said = str(endpoint).rstrip("/")
    try:
        url = urlsplit((said if "://" in said else f"http://{said}") + "/v1/traces")
        if url.hostname and url.scheme in ("http", "https") and url.port != 0:
            return url
    except ValueError:
        pass
    _log.warning("spans go to an address like http://127.0.0.1:4318, not %r: all are lost", said)
    return None


def _connect(url: SplitResult) -> HTTPConnection:
    host, port = url.hostname or "", url.port
    if url.scheme != "https":
        return HTTPConnection(host, port, timeout=TIMEOUT_S)
    context = ssl.create_default_context(cafile=_environment("CERTIFICATE") or None)
    certificate = _environment("CLIENT_CERTIFICATE")
    if certificate:
        context.load_cert_chain(certificate, _environment("CLIENT_KEY") or None)
    return HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)


def _environment(name: str) -> str:
    traces = os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}")
    return traces or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}", "")


def _said(name: str) -> Mapping[str, str]:
    return parse_env_headers(_environment(name), liberal=True)
