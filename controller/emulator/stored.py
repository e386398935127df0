"""When does a request find its context in a storage that other engines wrote?

It is looked for when the request arrives, and what is found is read to the host before the request
is queued; others go on meanwhile (SGLang's wait_complete: no time limit).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any, Final

from heddle.controller.emulator.batch import Live
from heddle.controller.emulator.engine import Engine
from heddle.controller.emulator.request import EngineConfig, Request
from heddle.controller.emulator.tiers import Storage
from heddle.controller.emulator.truth import Truth

FETCH_LEAST_TOKENS: Final = 256
"""Fewer are not looked for (prefetch_threshold)."""


class StoredEngine(Engine):
    """An engine that looks into a storage when a request comes, and queues it once that is read."""

    def __init__(
        self, config: EngineConfig, truth: Truth | None, storage: Storage, *, spans: bool
    ) -> None:
        super().__init__(config, truth, spans=spans)
        assert self.scheduler.host is not None
        assert config.host is not None
        self._host = self.scheduler.host
        self._host.storage = self._storage = storage
        self._rate = config.host.storage_bytes_per_s
        self._coming: list[tuple[float, int, Live, int]] = []

    def submit(self, request: Request, now_s: float) -> None:
        """As any engine; what was read until now goes first."""
        self._run(now_s)
        super().submit(request, now_s)

    def next_event_s(self) -> float:
        """A request may be read before a pass ends."""
        if not self._coming:
            return super().next_event_s()
        only_reading = self._pass is None and not self._events
        if only_reading and len(self._coming) == len(self._live):
            return self._coming[0][0]
        return min(super().next_event_s(), self._coming[0][0])

    def abort(self, rid: str | None, now_s: float) -> int:
        """What is still being read ends at once."""
        self._run(now_s)
        gone = [e for e in self._coming if rid is None or e[2].request.rid.startswith(rid)]
        for entry in gone:
            self._coming.remove(entry)
            entry[2].queue_s += now_s - entry[2].arrival_s
            self._finish(entry[2], now_s, "abort")
        heapify(self._coming)
        return len(gone) + super().abort(rid, now_s)

    def _enqueue(self, live: Live, now_s: float) -> None:
        size, cache = live.size - 1, self.scheduler.cache
        context: Any = live.ids
        known = max(cache.match(context, size, now_s)[0], self._host.held(context, size, now_s))
        found = self._storage.held(context, size, now_s)
        if found - known < FETCH_LEAST_TOKENS:
            super()._enqueue(live, now_s)
            return
        read_s = (found - known) * self.truth.kv_bytes / self._rate
        heappush(self._coming, (now_s + read_s, live.sequence, live, found))

    def _run(self, now_s: float) -> None:
        while self._coming and self._coming[0][0] <= now_s:
            ready_s, _, live, found = heappop(self._coming)
            super()._run(ready_s)
            self._host.write(live.ids, found, ready_s)
            live.queue_s += ready_s - live.arrival_s
            super()._enqueue(live, ready_s)
        super()._run(now_s)


def make_engine(
    config: EngineConfig,
    truth: Truth | None = None,
    *,
    storage: Storage | None = None,
    spans: bool = False,
) -> Engine:
    """An engine with the tiers that its settings name."""
    if storage is not None and config.host is not None:
        return StoredEngine(config, truth, storage, spans=spans)
    return Engine(config, truth, spans=spans)
