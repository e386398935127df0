"""Where do spans go while the collector is away, so that none is lost afterwards?

To files in the data folder, oldest first back to the collector once it answers, also after a
restart. Bounded by bytes: above the bound new batches are counted as dropped. Requests never wait:
all of it happens in the exporter's own threads.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

SPOOL_BYTES: Final = 512 << 20
"""About 700,000 spans of 750 bytes: a minute and more of 10,000 a second."""
RETRY_S: Final = 1.0
TIMEOUT_S: Final = 5.0
_AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})


class SpoolingExporter(SpanExporter):
    """OTLP over HTTP, or a file when that does not work now."""

    def __init__(
        self,
        endpoint: str,
        folder: Path,
        *,
        token: str | None = None,
        limit_bytes: int = SPOOL_BYTES,
        retry_s: float = RETRY_S,
    ) -> None:
        self._url = urlsplit(endpoint.rstrip("/") + "/v1/traces")
        self._headers = {"Content-Type": "application/x-protobuf"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._limit = limit_bytes
        self._retry_s = retry_s
        self._lock = threading.Lock()
        self._files = sorted(folder.glob("*.otlp"))
        self._bytes = sum(path.stat().st_size for path in self._files)
        self._number = int(self._files[-1].stem) if self._files else 0
        self._failed_s = float("-inf")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._drain, name="heddle-spool", daemon=True)
        self._thread.start()

    @property
    def spooled_bytes(self) -> int:
        """Bytes that wait for the collector."""
        return self._bytes

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send one batch, or keep it for later."""
        body = encode_spans(spans).SerializeToString()
        # What waits goes first: the store copes with any order, a reader of it less so.
        away = self._files or time.monotonic() - self._failed_s < self._retry_s
        status = None if away else self._post(body)
        if status is None or status in _AGAIN:
            return self._keep(body)
        return SpanExportResult.SUCCESS if status < 300 else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """One last try for what waits; the rest is there at the next start."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join(TIMEOUT_S)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Whether nothing waits any more."""
        _ = timeout_millis
        return not self._files

    def _keep(self, body: bytes) -> SpanExportResult:
        with self._lock:
            if self._bytes + len(body) > self._limit:
                return SpanExportResult.FAILURE
            self._number += 1
            path = self._folder / f"{self._number:012d}.otlp"
            try:
                part = path.with_suffix(".part")
                part.write_bytes(body)
                part.replace(path)
            except OSError:
                return SpanExportResult.FAILURE
            self._files.append(path)
            self._bytes += len(body)
        return SpanExportResult.SUCCESS

    def _drain(self) -> None:
        while not self._ended.wait(self._retry_s):
            self._send_kept()
        self._send_kept()

    def _send_kept(self) -> None:
        while self._files:
            path = self._files[0]
            try:
                body = path.read_bytes()
            except OSError:
                body = b""
            status = self._post(body) if body else 0
            if status is None or status in _AGAIN:
                return
            with self._lock:
                self._files.pop(0)
                self._bytes -= len(body)
            with contextlib.suppress(OSError):
                path.unlink()

    def _post(self, body: bytes) -> int | None:
        kind = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        link = kind(self._url.hostname or "", self._url.port, timeout=TIMEOUT_S)
        try:
            link.request("POST", self._url.path, body, self._headers)
            reply = link.getresponse()
            reply.read()
        except (OSError, HTTPException):
            self._failed_s = time.monotonic()
            return None
        finally:
            link.close()
        if reply.status in _AGAIN:
            self._failed_s = time.monotonic()
        return reply.status
