"""How large may the head of a request be?

httptools sets no limit: a header that never ends was collected whole, each piece copied onto the
rest, and held up the event loop for seconds; so were trailers behind a body in chunks. What comes
of neither a head's end nor a body is counted: beyond the limit the answer is 431 and the connection
ends. A head that comes in one read (256 KiB at most) passes whatever its size.
"""

from __future__ import annotations

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 64 << 10
"""Names of trajectories, traces and tokens are some hundred bytes."""
_LINGER_S: Final = 1.0
"""Closed at once with bytes unread, the system resets, and the client never reads the 431."""
_SAID: Final = (
    b'{"error":"the head of a request has at most %d bytes; put what is longer into the body"}'
)
_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b"
)


class BoundedHeads(HttpToolsProtocol):
    """uvicorn's protocol with a limit on heads and trailers that are still coming."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._head_bytes = 0
        self._body_came = self._refused = False

    def on_body(self, body: bytes) -> None:
        """Part of a body: what came with it may be its frame, or another head's beginning."""
        self._body_came = True
        super().on_body(body)

    def data_received(self, data: bytes) -> None:
        """Part of a head, of a body, or whole requests."""
        if self._refused:
            return
        before, self._body_came = self.cycle, False
        super().data_received(data)
        if self._body_came or self.cycle is not before:
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse()

    def _refuse(self) -> None:
        self._refused = True
        cycle = self.cycle
        answering = cycle and not cycle.response_complete
        if answering and (cycle.response_started or not cycle.more_body):
            # The client would take it for the answer that the request before still waits for.
            self.transport.close()
            return
        said = _SAID % MAX_HEAD_BYTES
        self.transport.write(_TOO_LARGE % (len(said), said))
        self.loop.call_later(_LINGER_S, self.transport.close)
