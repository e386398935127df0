"""How does an answer leave in one write, when its head and its body are two?

uvicorn writes the head of a response and then its body; uvloop makes each a system call at once,
and each wakes the client. The head waits here until the body follows it or the turn of the event
loop ends, whichever is first: 15 us of CPU a request, and as much again for the client.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


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

    def flush(self) -> None:
        """Nothing followed."""
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)

    def close(self) -> None:
        """What waits goes out before."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class OneWrite(HttpToolsProtocol):
    """uvicorn's protocol on such a transport."""

    def connection_made(self, transport: Any) -> None:
        """A client connected."""
        super().connection_made(Held(transport))  # pyright: ignore[reportArgumentType] (all of a transport that uvicorn uses)
