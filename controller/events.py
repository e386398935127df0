"""How does a watcher hear at once what was decided and what happened?

Stands where spans go out and passes each on; those that matter to a person go to every subscriber
too. A subscriber that stops reading loses events, is told how many, and costs nothing more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

import orjson

from heddle.collector import conventions as c
from heddle.controller.dataplane.spans import Spans

KEPT: Final = 1000
"""Events that wait for a slow subscriber."""
SUBSCRIBERS: Final = 64
ALIVE_S: Final = 15.0
TOLD: Final = frozenset(
    {c.SWITCH, c.ROLLOUT, c.PLAN, c.REALLOCATE, c.MOVE, c.WORKER, c.CHAT, c.INVOKE_AGENT,
     "heddle.weight_sync", "heddle.engine"}
)  # fmt: skip


class Subscriber:
    """One watcher's queue."""

    def __init__(self, run: str | None) -> None:
        self.run = run
        self.queue: asyncio.Queue[bytes] = asyncio.Queue(KEPT)
        self.lost = 0

    def tell(self, event: bytes) -> None:
        """Queue it, or count it as lost."""
        try:
            self.queue.put_nowait(event)
        except asyncio.QueueFull:
            self.lost += 1


class Events:
    """Takes spans, as an Emitter does; every method runs on the controller's event loop."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._subscribers: set[Subscriber] = set()

    def emit(self, name: str, **said: Any) -> None:
        """A span ended."""
        self._spans.emit(name, **said)
        if self._subscribers:
            self._tell("ended", said["attributes"], said["end_ns"], said.get("error"))

    def start(self, op: str, **said: Any) -> None:
        """A span began."""
        self._spans.start(op, **said)
        if self._subscribers:
            known = {**said["attributes"], "gen_ai.operation.name": op}
            self._tell("began", known, said["at_ns"], None)

    async def stream(self, run: str | None) -> AsyncGenerator[bytes]:
        """Server-sent events until the watcher leaves."""
        subscriber = Subscriber(run)
        self._subscribers.add(subscriber)
        try:
            yield b": heddle\n\n"
            while True:
                try:
                    yield await asyncio.wait_for(subscriber.queue.get(), ALIVE_S)
                except TimeoutError:
                    yield b": alive\n\n"
                if subscriber.lost:
                    lost, subscriber.lost = subscriber.lost, 0
                    yield b"event: lost\ndata: " + orjson.dumps({"events": lost}) + b"\n\n"
        finally:
            self._subscribers.discard(subscriber)

    @property
    def full(self) -> bool:
        """Whether one more subscriber would be too many."""
        return len(self._subscribers) >= SUBSCRIBERS

    def _tell(
        self, kind: str, attributes: Mapping[str, Any], at_ns: int, error: str | None
    ) -> None:
        op = attributes.get("gen_ai.operation.name")
        if op not in TOLD:
            return
        known = {k: v for k, v in attributes.items() if v is not None}
        said = {"op": op, "what": kind, "at_ns": at_ns, "error": error, "attributes": known}
        event = b"event: %s\ndata: %s\n\n" % (str(op).encode(), orjson.dumps(said, default=str))
        run = attributes.get("heddle.run.id")
        for subscriber in self._subscribers:
            if subscriber.run is None or subscriber.run == run:
                subscriber.tell(event)
