"""The controller's own connections to engines: what any HTTP/1.1 server may do to them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.controller.errors import EngineError, EngineLost
from heddle.controller.fleet.links import HIGH_BYTES, EngineLinks, Links

Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class Server:
    """Answers each request with raw bytes of the test's choosing."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(length))
                await self._answer(self.bodies[-1], writer)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def at(answer: Answer) -> AsyncGenerator[tuple[Server, EngineLinks]]:
    served, links = Server(answer), Links()
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    engine = links.to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert engine is not None
    try:
        yield served, engine
    finally:
        links.close()
        server.close()
        for writer in served.writers:
            writer.close()
        await asyncio.sleep(0)


def says(*pieces: bytes, ends: bool = False) -> Answer:
    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.001)
        if ends:
            writer.close()

    return answer


async def test_one_connection_serves_one_request_after_another_and_bodies_arrive_whole():
    async with at(says(OK)) as (server, engine):
        sizes = [0, 1, 70_000, 3_000_000, 5]
        for size in sizes:
            reply = await engine.send("/generate", b"x" * size, {"X-Who": "me"})
            assert (reply.status, reply.content_type, reply.body) == (
                200,
                "application/json",
                b"{}",
            )
    assert server.connections == 1
    assert [len(b) for b in server.bodies] == sizes
    assert server.heads[0].startswith(b"GET /generate HTTP/1.1\r\nHost: 127.0.0.1:")
    assert server.heads[1].startswith(b"POST ")
    assert b"\r\nX-Who: me\r\n" in server.heads[1]


async def test_requests_at_once_have_a_connection_each_and_leave_them_for_the_next():
    async with at(says(b"", OK)) as (server, engine):
        for _ in range(3):
            await asyncio.gather(*(engine.send("/x", b"%d" % i, {}) for i in range(8)))
    assert server.connections == 8
    assert len(server.bodies) == 24


@pytest.mark.parametrize(
    ("pieces", "ends", "body"),
    [
        ([CHUNKED + b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"], False, b"abcde"),
        ([b"HTTP/1.0 200 OK\r\n\r\nab", b"cd"], True, b"abcd"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", OK], False, b"{}"),
        ([b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"], True, b"ok"),
        ([OK[:20], OK[20:60], OK[60:]], False, b"{}"),
    ],
)  # fmt: skip
async def test_an_answer_is_whole_however_it_is_framed(pieces, ends, body):
    async with at(says(*pieces, ends=ends)) as (server, engine):
        for _ in range(2):
            assert (await engine.send("/x", b"y", {})).body == body
    assert server.connections == (2 if ends else 1)


async def test_a_connection_that_ends_before_an_answer_is_lost_and_not_used_again():
    async with at(says(b"", ends=True)) as (server, engine):
        for _ in range(2):
            with pytest.raises(EngineLost, match="did not answer"):
                await engine.send("/x", b"y", {})
    assert server.connections == 2


async def test_a_cut_answer_and_one_that_is_no_http_are_lost():
    for said in (OK[:-1], b"220 mail.example ESMTP\r\n"):
        async with at(says(said, ends=True)) as (_, engine):
            with pytest.raises(EngineLost, match="did not answer"):
                await engine.send("/x", b"y", {})


async def test_a_kept_connection_that_the_engine_closed_is_replaced():
    async with at(says(OK)) as (server, engine):
        await engine.send("/x", b"1", {})
        server.writers[0].close()
        await asyncio.sleep(0.02)
        assert (await engine.send("/x", b"2", {})).body == b"{}"
    assert server.connections == 2


async def test_bytes_that_answer_nothing_close_the_connection():
    async with at(says(OK + OK)) as (server, engine):
        assert (await engine.send("/x", b"1", {})).body == b"{}"
        assert (await engine.send("/x", b"2", {})).body == b"{}"
    assert server.connections == 2


async def test_who_gives_up_closes_the_connection_and_the_next_has_its_own_answer():
    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        if body == b"slow":
            await asyncio.sleep(0.05)
        writer.write(OK.replace(b"{}", body[:2]))

    async with at(answer) as (server, engine):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.send("/x", b"slow", {}), 0.01)
        assert (await engine.send("/x", b"ok", {})).body == b"ok"
    assert server.connections == 2


async def test_a_stream_comes_piece_by_piece_and_its_connection_is_used_again():
    pieces = [b"5\r\nabcde\r\n", b"3\r\nfgh\r\n", b"0\r\n\r\n"]
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    async with at(says(head, *pieces)) as (server, engine):
        for _ in range(2):
            stream = await engine.stream("/x", b"y", {})
            assert (stream.status, stream.content_type) == (200, "text/event-stream")
            assert b"".join([chunk async for chunk in stream.chunks()]) == b"abcdefgh"
            await stream.close()
            await stream.close()
    assert server.connections == 1


async def test_a_stream_that_breaks_gives_what_came_and_then_says_so():
    async with at(says(CHUNKED + b"5\r\nabcde\r\n", ends=True)) as (_, engine):
        stream = await engine.stream("/x", b"y", {})
        chunks = stream.chunks()
        assert await anext(chunks) == b"abcde"
        with pytest.raises(EngineError, match="died in the middle"):
            await anext(chunks)
        await stream.close()


async def test_a_stream_that_nobody_reads_holds_the_engine_up():
    sent = 0

    async def answer(__: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 80000000\r\n\r\n")
        for _ in range(800):
            writer.write(b"z" * 100_000)
            await writer.drain()
            sent += 100_000

    async with at(answer) as (_, engine):
        stream = await engine.stream("/x", b"y", {})
        await asyncio.sleep(0.1)
        held_up = sent
        got = sum([len(chunk) async for chunk in stream.chunks()])
        await stream.close()
    # What waits here, and what the two kernels' buffers hold.
    assert held_up < HIGH_BYTES + 30_000_000
    assert got == 80_000_000


async def test_a_header_with_a_line_break_reaches_no_engine():
    async with at(says(OK)) as (server, engine):
        for value in ("a\r\nX-Evil: 1", "a\nb", "a\rb"):
            with pytest.raises(EngineError, match="line break"):
                await engine.send("/x", b"y", {"X-Id": value})
    assert server.heads == []


async def test_nobody_there_is_lost_and_other_schemes_are_left_to_aiohttp():
    links = Links()
    nobody = links.to("http://127.0.0.1:9")
    assert nobody is not None
    with pytest.raises(EngineLost, match=r"127\.0\.0\.1:9 did not answer"):
        await nobody.send("/x", b"", {})
    assert links.to("https://engine.example") is None
    assert links.to("http://me:secret@engine.example") is None
    links.close()


@given(cuts=st.lists(st.integers(1, 150), max_size=6), size=st.integers(0, 90))
@settings(max_examples=40, deadline=None)
def test_wherever_an_answer_is_cut_into_pieces_it_is_the_same(cuts, size):
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"q" * size
    ends = sorted({min(cut, len(whole)) for cut in cuts} | {len(whole)})
    pieces = [whole[a:b] for a, b in zip([0, *ends], ends, strict=False)]

    async def asked() -> bytes:
        async with at(says(*pieces)) as (_, engine):
            return (await engine.send("/x", b"y", {})).body

    assert asyncio.run(asked()) == b"q" * size
