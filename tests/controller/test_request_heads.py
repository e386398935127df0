"""Does a head that never ends cost its sender the connection, and nobody else anything?"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from heddle.collector.heads import MAX_HEAD_BYTES, BoundedHeads
from heddle.controller.dataplane import asgi
from heddle.controller.dataplane.writes import OneWrite

BEGUN = b"POST /x HTTP/1.1\r\nHost: h\r\nX-Big: "


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    body = await asgi.read_body(receive, 1 << 30)
    await asgi.answer(send, 200, b"%d" % len(body), "text/plain")


async def asked(url, *pieces, pause_s=0.01):
    """What comes back until the server closes, or stands still after an answer."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause_s)
    try:
        return await asyncio.wait_for(reader.read(4096), 10)
    finally:
        writer.close()


@pytest.mark.parametrize("http", [BoundedHeads, OneWrite])
async def test_a_head_without_an_end_is_431_and_the_connection_ends(serve_app, http):
    pieces = [BEGUN, *[b"a" * 8_192] * (MAX_HEAD_BYTES // 8_192 + 1)]
    async with serve_app(app, http=http) as url:
        answer = await asked(url, *pieces)
        # Whoever else is there is served.
        other = await asked(url, b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"65536 bytes; put what is longer into the body" in answer
    assert other.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("http", [BoundedHeads, OneWrite])
async def test_bodies_and_heads_in_pieces_within_the_limit_pass(serve_app, http):
    size = 4 * MAX_HEAD_BYTES
    end = b"a" * 100 + b"\r\nContent-Length: %d\r\n\r\n" % size
    pieces = [BEGUN, b"a" * 30_000, end, *[b"b" * 8_192] * (size // 8_192)]
    async with serve_app(app, http=http) as url:
        first = await asked(url, *pieces)
        # On one connection the next head counts from its own beginning.
        both = b"".join(pieces)
        second = await asked(url, both, BEGUN, b"a" * 40_000, end, b"b" * size)
    assert first.endswith(b"\r\n\r\n%d" % size)
    assert second.count(b"HTTP/1.1 200 ") >= 1
    assert b"431" not in second


CHUNKED = b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("http", [BoundedHeads, OneWrite])
async def test_the_beginning_of_the_next_head_behind_a_large_body_is_no_large_head(serve_app, http):
    size = 3 * MAX_HEAD_BYTES
    whole = BEGUN + b"\r\nContent-Length: %d\r\n\r\n" % size + b"b" * size
    pieces = [whole + BEGUN, b"a\r\nConnection: close\r\n\r\n"]
    async with serve_app(app, http=http) as url:
        answers = await asked(url, *pieces, pause_s=0.2)
    assert answers.count(b"HTTP/1.1 200 ") == 2
    assert b"\r\n\r\n%d" % size in answers


@pytest.mark.parametrize("http", [BoundedHeads, OneWrite])
async def test_trailers_without_an_end_are_431_like_heads(serve_app, http):
    pieces = [CHUNKED, b"1\r\nb\r\n0\r\nX-T: ", *[b"a" * 8_192] * (MAX_HEAD_BYTES // 8_192 + 1)]
    async with serve_app(app, http=http) as url:
        answer = await asked(url, *pieces)
    assert answer.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("http", [BoundedHeads, OneWrite])
async def test_a_body_in_chunks_of_a_byte_may_have_more_frame_than_the_limit(serve_app, http):
    size = MAX_HEAD_BYTES // 4
    chunks = b"1\r\nb\r\n" * size
    pieces = [CHUNKED, chunks[:50_000], chunks[50_000:], b"0\r\nConnection: close\r\n\r\n"]
    async with serve_app(app, http=http) as url:
        answer = await asked(url, *pieces, b"GET /x HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert b"\r\n\r\n%d" % size in answer
    assert b"431" not in answer.split(b"\r\n", 1)[0]


@pytest.mark.parametrize("http", [BoundedHeads, OneWrite])
async def test_who_sends_a_large_head_all_at_once_reads_why_it_was_refused(serve_app, http):
    async with serve_app(app, http=http) as url:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(BEGUN + b"a" * (16 * MAX_HEAD_BYTES))
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("http", [BoundedHeads, OneWrite])
async def test_an_endless_head_behind_a_request_is_not_that_request_s_answer(serve_app, http):
    async def slow(scope, receive, send):
        if scope["type"] == "http":
            await asyncio.sleep(1)
            await app(scope, receive, send)

    pieces = [b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n" + BEGUN, *[b"a" * 8_192] * 9]
    async with serve_app(slow, http=http) as url:
        answer = await asked(url, *pieces)
    assert answer == b""
