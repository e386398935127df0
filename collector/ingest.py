"""What happens to one trace request, whichever door it came through?

Decode off the event loop, queue, wait for the commit, answer. Counts what is refused and rejected,
because exporters ignore what they are told.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from heddle.collector import otlp
from heddle.collector.errors import Overloaded
from heddle.collector.limits import SenderLimits
from heddle.collector.store import Store

MAX_BODY_BYTES: Final = 64 << 20
ROW_BYTES: Final = 3_000
"""What a decoded span takes in memory beside its body, while it waits for the disk."""
# Decoding takes about 9 us a span; below this a hop to a thread costs more than it frees.
_INLINE_BYTES: Final = 32_768


@dataclass(slots=True)
class Counts:
    """Since the start of the process."""

    requests: int = 0
    spans: int = 0
    rejected_spans: int = 0
    refused_requests: int = 0
    overloaded_requests: int = 0
    last_rejection: str = ""


class Ingest:
    """Takes decoded bodies to the store."""

    def __init__(
        self, store: Store, token: str | None = None, limits: SenderLimits | None = None
    ) -> None:
        self._store = store
        self.limits = limits or SenderLimits(None)
        self.token = token
        self.counts = Counts()

    def report(self) -> dict[str, int | str]:
        """The counts, for /healthz."""
        return asdict(self.counts)

    async def take(self, body: bytes, media: str) -> otlp.Decoded:
        """Durably store the spans of one request; raises what the door must translate."""
        self.counts.requests += 1
        try:
            decoded = await self._decode(body, media)
            if len(decoded.rows):
                done = self._store.append(decoded.rows, len(body) + ROW_BYTES * len(decoded.rows))
                await asyncio.wrap_future(done)
        except Overloaded:
            self.counts.overloaded_requests += 1
            raise
        except otlp.BadRequest as error:
            self.counts.refused_requests += 1
            self.counts.last_rejection = str(error)
            raise
        self._count(decoded)
        return decoded

    async def _decode(self, body: bytes, media: str) -> otlp.Decoded:
        if len(body) <= _INLINE_BYTES:
            return otlp.decode(body, media)
        return await asyncio.to_thread(otlp.decode, body, media)

    def _count(self, decoded: otlp.Decoded) -> None:
        self.counts.spans += len(decoded.rows)
        self.counts.rejected_spans += decoded.rejected
        if decoded.rejected:
            self.counts.last_rejection = decoded.message


def response(decoded: otlp.Decoded) -> ExportTraceServiceResponse:
    """Full success leaves partial_success unset."""
    if not decoded.rejected:
        return ExportTraceServiceResponse()
    partial = ExportTracePartialSuccess(
        rejected_spans=decoded.rejected, error_message=decoded.message
    )
    return ExportTraceServiceResponse(partial_success=partial)
