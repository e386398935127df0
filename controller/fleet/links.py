"""How does a step reach an engine for a quarter of what a client library takes?

Kept-alive HTTP/1.1 connections on httptools, for plain http:// alone: a POST or GET whose body is
known, an answer whole or as it comes. aiohttp's client costs 230 us a request here, this 60. No
redirects, cookies, proxies, compression or retries; everything else goes through aiohttp.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import httptools

from heddle.controller.errors import EngineError, EngineLost
from heddle.controller.fleet.engine import Reply

CONNECT_S: Final = 5.0
KEEP_ALIVE_S: Final = 75.0
HIGH_BYTES: Final = 256 << 10
"""Of a stream that nobody reads: the engine is then read no further, and stops too."""
JOINED_BYTES: Final = 64 << 10
"""A shorter body is copied behind its head: one write costs less than two buffers."""
_GONE: Final = "the connection ended"


class Link(asyncio.Protocol):
    """One connection; answers come in the order of what was asked, one at a time."""

    def __init__(self) -> None:
        self.idle_since_s = 0.0
        self.usable = False
        """Whether it can be asked: open, in step, and not told to close."""
        self.ended = False
        self.status = 0
        self.content_type = "application/json"
        self._parser = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._waiter: asyncio.Future[None] | None = None
        self._parts: list[bytes] = []
        self._waiting_bytes = 0
        self._streams = self._asked = self._begun = self._sized = self._paused = False
        self._lost: EngineError | None = None

    # what its owner calls

    def ask(self, head: bytes, body: bytes, *, streams: bool) -> asyncio.Future[None]:
        """Send it; the future is done with the whole answer, or with its head where it streams."""
        self._streams, self._asked, self._begun, self._sized = streams, True, False, False
        self.ended, self.content_type = False, "application/json"
        if len(body) < JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        return self._wait()

    def body(self) -> bytes:
        """What has come and was not taken yet."""
        parts, self._parts, self._waiting_bytes = self._parts, [], 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def more(self) -> bytes:
        """The next bytes of a stream; none at its end; EngineError where it broke."""
        while not self._parts:
            if self._lost is not None:
                raise self._lost
            if self.ended:
                return b""
            await self._wait()
        return self.body()

    def abort(self) -> None:
        """Whatever is under way is not wanted any more."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def _wait(self) -> asyncio.Future[None]:
        self._waiter = asyncio.get_running_loop().create_future()
        if self._lost is not None:
            self._wake()
        return self._waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            return
        if self._lost is not None:
            waiter.set_exception(self._lost)
        else:
            waiter.set_result(None)

    # what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport, self.usable = transport, True

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer; of none, when nothing was asked: then it is out of step."""
        if not self._asked:
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._lost = EngineLost(f"what it answered is no HTTP: {error}")
            self.abort()
            self._wake()

    def eof_received(self) -> None:
        """It sends no more: `connection_lost` comes next, and no question in between."""
        self.usable = False

    def connection_lost(self, exc: Exception | None) -> None:
        """It ended: that is the end of an answer without a length, else its loss."""
        self.usable = False
        if not self._asked:
            return
        if self._begun and not self._sized and exc is None:
            self._end()
            return
        if self._lost is None:
            said = f"{_GONE} ({exc})" if exc else _GONE
            self._lost = EngineError(said) if self._begun else EngineLost(said)
        self._wake()

    # what the parser calls

    def on_message_begin(self) -> None:
        """An answer begins; one to nothing shows that the connection is out of step."""
        self.usable = self.usable and not self.ended

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of the answer's headers."""
        known = name.lower()
        if known == b"content-type":
            self.content_type = value.decode("latin-1")
        elif known in (b"content-length", b"transfer-encoding"):
            self._sized = True

    def on_headers_complete(self) -> None:
        """The head is there."""
        if self.ended:
            return
        self.status = self._parser.get_status_code()
        if self.status < 200:
            return
        self._begun = True
        if self._streams:
            self._wake()

    def on_body(self, body: bytes) -> None:
        """A piece of the answer."""
        if not self.ended:
            self._parts.append(body)
        if self.ended or not self._streams:
            return
        self._waiting_bytes += len(body)
        if self._waiting_bytes > HIGH_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        """The answer is whole; one of status 1xx only comes before it."""
        if self.status >= 200 and not self.ended:
            self.usable = self.usable and self._parser.should_keep_alive()
            self._end()

    def _end(self) -> None:
        self.ended, self._asked = True, False
        self._wake()


class LinkStream:
    """An answer that is still coming."""

    def __init__(self, to: EngineLinks, link: Link) -> None:
        self._to, self._link, self._open = to, link, True
        self.status, self.content_type = link.status, link.content_type

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes as they arrive."""
        try:
            while chunk := await self._link.more():
                yield chunk
        except EngineError as error:
            message = f"the engine at {self._to.url} died in the middle of its answer ({error})"
            raise EngineError(message) from error

    async def close(self) -> None:
        """Let the connection go; one whose answer was not read to its end is closed."""
        if self._open:
            self._open = False
            self._to.put(self._link)


class EngineLinks:
    """The connections to one engine."""

    def __init__(self, url: str) -> None:
        at = urlsplit(url)
        self.url = url
        self._host, self._port = at.hostname or "", at.port or 80
        self._path = at.path.rstrip("/")
        self._named = f"Host: {at.netloc}\r\n"
        self._idle: dict[Link, None] = {}
        """The one put back last is taken first."""

    async def send(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """POST, or GET where the body is empty, and the whole answer."""
        link = await self._asked(path, body, headers, streams=False)
        reply = Reply(status=link.status, content_type=link.content_type, body=link.body())
        self.put(link)
        return reply

    async def stream(self, path: str, body: bytes, headers: Mapping[str, str]) -> LinkStream:
        """The same, and the answer's head."""
        return LinkStream(self, await self._asked(path, body, headers, streams=True))

    def put(self, link: Link) -> None:
        """It is not needed for now."""
        if not (link.usable and link.ended):
            link.abort()
            return
        link.body()
        now_s = link.idle_since_s = asyncio.get_running_loop().time()
        self._idle[link] = None
        oldest = next(iter(self._idle))
        if now_s - oldest.idle_since_s > KEEP_ALIVE_S:
            del self._idle[oldest]
            oldest.abort()

    def close(self) -> None:
        """Close those that nobody uses."""
        while self._idle:
            self._idle.popitem()[0].abort()

    async def _asked(
        self, path: str, body: bytes, headers: Mapping[str, str], *, streams: bool
    ) -> Link:
        head = self._head(path, len(body), headers)
        try:
            link = self._kept() or await self._opened()
            try:
                await link.ask(head, body, streams=streams)
            except BaseException:
                link.abort()
                raise
        except (OSError, TimeoutError, EngineError) as error:
            said = str(error) or type(error).__name__
            message = f"the engine at {self.url} did not answer ({said})"
            raise EngineLost(message) from error
        return link

    def _kept(self) -> Link | None:
        while self._idle:
            link, _ = self._idle.popitem()
            if link.usable:
                return link
        return None

    async def _opened(self) -> Link:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_S):
            _, link = await loop.create_connection(Link, self._host, self._port)
        return link

    def _head(self, path: str, length: int, headers: Mapping[str, str]) -> bytes:
        lines = "\r\n".join(map(": ".join, headers.items()))
        start = f"POST {self._path}{path} HTTP/1.1\r\n" if length else self._get(path)
        between = "\r\n" if lines else ""
        head = f"{start}{self._named}{lines}{between}Content-Length: {length}\r\n\r\n"
        # One line break more than there are lines would be a header or a request of the client's.
        breaks = len(headers) + 4
        if head.count("\n") != breaks or head.count("\r") != breaks:
            message = f"a header for the engine at {self.url} holds a line break"
            raise EngineError(message)
        return head.encode("latin-1", "replace")

    def _get(self, path: str) -> str:
        return f"GET {self._path}{path} HTTP/1.1\r\n"


class Links:
    """The engines of one controller."""

    def __init__(self) -> None:
        self._engines: dict[str, EngineLinks] = {}

    def to(self, url: str) -> EngineLinks | None:
        """Connections to that engine; None where it needs more than plain HTTP."""
        at = urlsplit(url)
        if at.scheme != "http" or "@" in at.netloc:
            return None
        known = self._engines.get(url)
        if known is None:
            known = self._engines[url] = EngineLinks(url)
        return known

    def close(self) -> None:
        """Close all that nobody uses."""
        for engine in self._engines.values():
            engine.close()
