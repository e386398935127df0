"""Head and body leave together, in order, and nothing stays behind."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.controller.dataplane.writes import Held


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
