"""What happens to one trace request, whichever door it came through?

Admit, decode off the event loop, queue, wait for the commit, answer. Bodies that have arrived and
spans that wait are bounded by bytes. Counts what is refused and rejected and why, because exporters
ignore what they are told.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from heddle.collector import conventions as c
from heddle.collector import otlp
from heddle.collector.content import Capture
from heddle.collector.decoding import Decoding
from heddle.collector.errors import Overloaded
from heddle.collector.inflate import inflate
from heddle.collector.limits import SenderLimits
from heddle.collector.store import Store
from heddle.collector.waking import Woken

MAX_BODY_BYTES: Final = 64 << 20
ROW_BYTES: Final = 3_000
"""What a decoded span takes in memory beside its body, while it waits for the disk."""
# Below this a hop to a thread costs more than it frees.
_INFLATED_HERE_BYTES: Final = 2_048
MAX_PROTOCOLS: Final = 16
"""Versions counted: the header is the sender's to write."""
_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class Counts:
    """Since the start of the process."""

    requests: int = 0
    spans: int = 0
    rejected_spans: int = 0
    refused_requests: int = 0
    overloaded_requests: int = 0
    last_rejection: str = ""
    rejected: Counter[str] = field(default_factory=Counter[str])
    """Spans by reason: id, time, attribute, shape."""
    refused: Counter[str] = field(default_factory=Counter[str])
    """Requests by reason, as the doors name it."""
    sender_drops: dict[str, int] = field(default_factory=dict[str, int])
    """What each sender says it could not send, by service."""
    protocols: Counter[str] = field(default_factory=Counter[str])
    """Requests by the version of the conventions that a Heddle library says it speaks."""


class Ingest:
    """Takes bodies to the store."""

    def __init__(
        self,
        store: Store,
        token: str | None = None,
        limits: SenderLimits | None = None,
        capture: Capture = "drop",
        decoders: int = 0,
    ) -> None:
        self._store = store
        self.limits = limits or SenderLimits(None)
        self.token = token
        self.counts = Counts()
        self.arrived_bytes = 0
        self._waiting_since: dict[int, float] = {}
        self._number = 0
        self._decoding = Decoding(capture, processes=decoders)
        self._woken = Woken()

    def report(self) -> dict[str, Any]:
        """The counts, for /healthz."""
        counts = {each.name: getattr(self.counts, each.name) for each in fields(self.counts)}
        left_out, deaths = self.content_left_out, self.deaths
        return {
            "lag_s": self.lag_s, "content_left_out": left_out, "decoder_deaths": deaths, **counts
        }  # fmt: skip

    @property
    def content_left_out(self) -> int:
        """Values of messages, arguments and results that were not kept as sent."""
        return self._decoding.content.left_out

    @property
    def deaths(self) -> int:
        """Decoding processes that ended by themselves."""
        return self._decoding.deaths

    @property
    def lag_s(self) -> float:
        """Since when the request that waits longest has been here."""
        oldest = min(self._waiting_since.values(), default=None)
        return 0.0 if oldest is None else time.monotonic() - oldest

    def refuse(self, reason: str, sentence: str) -> None:
        """Count a request that a door turns away."""
        self.counts.refused_requests += 1
        self.counts.refused[reason] += 1
        self.counts.last_rejection = sentence

    def heard(self, protocol: str | None) -> None:
        """A library said which version it speaks; another than ours is said once in the log."""
        if protocol is None:
            return
        version = protocol[:8]
        known = self.counts.protocols
        if version not in known and len(known) < MAX_PROTOCOLS and version != c.VERSION:
            _log.warning(
                "a library speaks version %s of Heddle's spans, this collector %s; its spans are "
                "kept as they come, upgrade the older of the two",
                *(version, c.VERSION),
            )
        if version in known or len(known) < MAX_PROTOCOLS:
            known[version] += 1

    @contextmanager
    def arriving(self) -> Generator[Arrival, None, None]:
        """Room for one body from its first byte to its answer."""
        arrival = Arrival(self, self._store.bound_bytes)
        self._number += 1
        number = self._number
        self._waiting_since[number] = time.monotonic()
        try:
            yield arrival
        finally:
            self.arrived_bytes -= arrival.size_bytes
            del self._waiting_since[number]

    async def inflate(self, body: bytes, encoding: str, limit_bytes: int) -> bytes:
        """The body as it was before compression."""
        if len(body) <= _INFLATED_HERE_BYTES or not encoding:
            return inflate(body, encoding, limit_bytes)
        return await self._decoding.inflate(inflate, body, encoding, limit_bytes)

    async def take(self, body: bytes, media: str) -> otlp.Decoded:
        """Durably store the spans of one request; raises what the door must translate."""
        self.counts.requests += 1
        try:
            decoded = await self._decoding.decode(body, media)
            rows = len(decoded.rows)
            if rows:
                done = self._store.append(decoded.rows, len(body) + ROW_BYTES * rows)
                await self._woken.wait(done)
        except Overloaded:
            self.counts.overloaded_requests += 1
            raise
        except otlp.BadRequest as error:
            self.refuse("unreadable", str(error))
            raise
        self._count(decoded)
        return decoded

    def close(self) -> None:
        """End what decodes."""
        self._decoding.close()

    def _count(self, decoded: otlp.Decoded) -> None:
        self.counts.spans += len(decoded.rows)
        self.counts.rejected_spans += decoded.rejected
        if decoded.rejected:
            self.counts.rejected.update(decoded.rows.reasons)
            self.counts.last_rejection = decoded.message
        for service, dropped in decoded.rows.sender_drops.items():
            self.counts.sender_drops[service] = max(
                dropped, self.counts.sender_drops.get(service, 0)
            )


class Arrival:
    """One body on its way in; `grow` raises Overloaded when there is no room for more of it."""

    def __init__(self, ingest: Ingest, bound_bytes: int) -> None:
        self._ingest = ingest
        self._bound_bytes = bound_bytes
        self.size_bytes = 0

    def grow(self, more_bytes: int) -> None:
        """Make room for so many bytes; one body alone always has it."""
        others = self._ingest.arrived_bytes - self.size_bytes
        if others and others + self.size_bytes + more_bytes > self._bound_bytes:
            self._ingest.counts.overloaded_requests += 1
            raise Overloaded(others + self.size_bytes, self._bound_bytes)
        self.size_bytes += more_bytes
        self._ingest.arrived_bytes += more_bytes


def response(decoded: otlp.Decoded) -> ExportTraceServiceResponse:
    """Full success leaves partial_success unset."""
    if not decoded.rejected:
        return ExportTraceServiceResponse()
    partial = ExportTracePartialSuccess(
        rejected_spans=decoded.rejected, error_message=decoded.message
    )
    return ExportTraceServiceResponse(partial_success=partial)
