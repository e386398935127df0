"""Head and body leave together, in order, and nothing stays behind."""

from __future__ import annotations

import asyncio

import pytest
from app_server import served
from hypothesis import given
from hypothesis import strategies as st

from heddle.controller.dataplane import asgi
from heddle.controller.dataplane.writes import Held, OneWrite


class Wire:
    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.writes.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


async def test_a_head_waits_for_its_body_and_for_no_longer_than_a_turn():
    wire = Wire()
    held = Held(wire)
    held.write(b"head")
    held.write(b"body")
    assert wire.writes == [b"headbody"]
    held.write(b"head of a stream")
    assert wire.writes == [b"headbody"]
    await asyncio.sleep(0)
    assert wire.writes == [b"headbody", b"head of a stream"]


async def test_closing_sends_what_waits_and_nothing_is_written_after():
    wire = Wire()
    held = Held(wire)
    held.write(b"last words")
    held.close()
    assert (wire.writes, held.closed) == ([b"last words"], True)
    held.write(b"too late")
    await asyncio.sleep(0)
    assert wire.writes == [b"last words"]
    with pytest.raises(AttributeError):
        held.no_such_thing  # noqa: B018 (reading it is the test)


ASKED = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"HEAD / HTTP/1.1\r\n\r\n",
    b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
    b"GET /closes HTTP/1.1\r\n\r\n",
    b"GET /forged HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
]
EXTRA = {"/closes": [(b"connection", b"close")], "/forged": [(b"x-said", b"a\x01b")]}


async def answers_once(scope, receive, send):
    extra = EXTRA.get(scope["path"], [(b"x-said", b"a\tb")])
    await asgi.answer(send, 200, b"" if scope["path"] == "/none" else b"body", "text/plain", extra)


@pytest.mark.parametrize("last", ASKED)
async def test_an_answer_in_one_go_is_what_uvicorn_says_in_two(last):
    said = list[bytes]()
    for http in (OneWrite, "httptools"):
        how = {"http": http, "server_header": False, "date_header": False}
        async with served(answers_once, log_config=None, **how) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[-1]))
            # Those behind it on the connection show that the first left it usable.
            writer.write(b"GET /none HTTP/1.1\r\n\r\n" + last + ASKED[-2])
            said.append(await reader.read())
            writer.close()
            await writer.wait_closed()
    assert said[0] == said[1]
    assert said[0].startswith(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nx-said: a\tb\r\n")


@given(st.lists(st.one_of(st.binary(max_size=5), st.none()), max_size=30))
def test_all_bytes_arrive_in_order_whatever_the_turns(actions):
    async def played() -> bytes:
        wire = Wire()
        held = Held(wire)
        for action in actions:
            if action is None:
                await asyncio.sleep(0)
            else:
                held.write(action)
        await asyncio.sleep(0)
        return b"".join(wire.writes)

    assert asyncio.run(played()) == b"".join(a for a in actions if a is not None)
