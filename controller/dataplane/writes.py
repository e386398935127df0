"""How does an answer leave in one write, when its head and its body are two?

uvicorn writes the head of a response and then its body; uvloop makes each a system call at once,
and each wakes the client. The head waits here until the body follows it or the turn of the event
loop ends, whichever is first: 15 us of CPU a request, and as much again for the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import (
    HEADER_VALUE_RE,
    STATUS_LINE,
    RequestResponseCycle,
)

from heddle.collector.heads import BoundedHeads

Headers = Sequence[tuple[bytes, bytes]]


class Held:
    """A transport whose first write in a turn waits for the second."""

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._head = b""

    def write(self, data: bytes) -> None:
        """Now, where something waits already; else with what follows, at the latest next turn."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        elif data:
            self._head = data
            self._loop.call_soon(self.flush)

    def through(self, data: bytes) -> None:
        """Now, behind what waits."""
        head, self._head = self._head, b""
        self._transport.write(head + data if head else data)

    def flush(self) -> None:
        """Nothing followed."""
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)

    def is_closing(self) -> bool:
        """Whether it ends; asked after every answer."""
        return self._transport.is_closing()

    def close(self) -> None:
        """What waits goes out before."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Cycle(RequestResponseCycle):
    """uvicorn's request and its answer, which may come whole."""

    def whole(self, status: int, headers: Headers, body: bytes) -> bool:
        """Answer at once; False, and nothing done, where uvicorn's own way has to say more.

        That way is two messages, each a coroutine, and two searches in each header.
        """
        stopped = self.response_started or self.disconnected or self.flow.write_paused
        plain = self.keep_alive and not self.access_log and self.scope["method"] != "HEAD"
        if stopped or not plain or self.default_headers:
            return False
        parts = [STATUS_LINE[status]]
        for name, value in headers:
            if name == b"connection":
                return False
            parts += (name, b": ", value, b"\r\n")
        if HEADER_VALUE_RE.search(b"".join(parts[3::4])):
            return False
        parts += (b"content-length: %d\r\n\r\n" % len(body), body)
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        cast("Held", self.transport).through(b"".join(parts))
        self.message_event.set()
        self.on_response()
        return True


class OneWrite(BoundedHeads):
    """uvicorn's protocol on such a transport, with such answers."""

    def connection_made(self, transport: Any) -> None:
        """A client connected."""
        super().connection_made(Held(transport))  # pyright: ignore[reportArgumentType] (all of a transport that uvicorn uses)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.__class__ = Cycle
        super()._start_asgi_task(cycle, app)
