"""How large may the head of a request be?

httptools sets no limit: a header that never ends was collected whole, each piece copied onto the
rest, and held up the event loop for seconds. Beyond the limit the answer is 431 and the connection
ends. A head that comes in one read (256 KiB at most) passes whatever its size.
"""

from __future__ import annotations

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 64 << 10
"""Names of trajectories, traces and tokens are some hundred bytes."""
_SAID: Final = (
    b'{"error":"the head of a request has at most %d bytes; put what is longer into the body"}'
)
_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b"
)


class BoundedHeads(HttpToolsProtocol):
    """uvicorn's protocol with a limit on heads that are still coming."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._head_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Part of a head, of a body, or whole requests."""
        super().data_received(data)
        if self.cycle and self.cycle.scope is self.scope:
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            said = _SAID % MAX_HEAD_BYTES
            self.transport.write(_TOO_LARGE % (len(said), said))
            self.transport.close()
