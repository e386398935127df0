"""Where do spans go while the collector is away, so that none is lost afterwards?

To files in the data folder, oldest first back to the collector once it answers, also after a
restart. Bounded by bytes: above the bound new batches are counted as dropped, as are those that the
collector refuses when their turn comes. Requests never wait: all of it happens in the exporter's
own threads.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from heddle.collector.otlp_sender import AGAIN, OtlpPost

SPOOL_BYTES: Final = 512 << 20
"""About 700,000 spans of 750 bytes: a minute and more of 10,000 a second."""
RETRY_S: Final = 1.0
TIMEOUT_S: Final = 5.0


class Spool:
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
        # One link for each of the two threads that send: new batches, and those that waited.
        self._fresh = OtlpPost(endpoint, token=token)
        self._late = OtlpPost(endpoint, token=token)
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._limit = limit_bytes
        self._retry_s = retry_s
        self._lock = threading.Lock()
        self._files = sorted(folder.glob("*.otlp"))
        self._bytes = sum(path.stat().st_size for path in self._files)
        self._number = int(self._files[-1].stem) if self._files else 0
        self._failed_s = float("-inf")
        self.refused = 0
        """Spans that waited here and were refused when their turn came."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._drain, name="heddle-spool", daemon=True)
        self._thread.start()

    @property
    def spooled_bytes(self) -> int:
        """Bytes that wait for the collector."""
        return self._bytes

    def send(self, body: bytes) -> bool:
        """Send one batch, or keep it for later; False when neither was possible."""
        # What waits goes first: the store copes with any order, a reader of it less so.
        recent = time.monotonic() - self._failed_s < self._retry_s
        away = self._files or recent or self._ended.is_set()
        status = None if away else self._post(self._fresh, body)
        if status is None or status in AGAIN:
            return self._keep(body)
        return status < 300

    def shutdown(self) -> None:
        """One last try for what waits; the rest is there at the next start."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join(TIMEOUT_S)
            self._fresh.close()
            self._late.close()

    def _keep(self, body: bytes) -> bool:
        with self._lock:
            if self._bytes + len(body) > self._limit:
                return False
            self._number += 1
            path = self._folder / f"{self._number:012d}.otlp"
            try:
                part = path.with_suffix(".part")
                part.write_bytes(body)
                part.replace(path)
            except OSError:
                return False
            self._files.append(path)
            self._bytes += len(body)
        return True

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
            status = self._post(self._late, body) if body else 0
            if status is None or status in AGAIN:
                return
            if status >= 300:
                self.refused += _spans(body)
            with self._lock:
                self._files.pop(0)
                self._bytes -= len(body)
            with contextlib.suppress(OSError):
                path.unlink()

    def _post(self, link: OtlpPost, body: bytes) -> int | None:
        status, _ = link.post(body)
        if status is None or status in AGAIN:
            self._failed_s = time.monotonic()
        return status


def _spans(body: bytes) -> int:
    """How many a batch of ours holds."""
    batch = ExportTraceServiceRequest.FromString(body)
    return sum(len(scope.spans) for one in batch.resource_spans for scope in one.scope_spans)
