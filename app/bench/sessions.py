"""What do many open tabs ask of the services, without twenty browsers drawing on the same cores?

Each is a session of Streamlit's own over its websocket: it opens the page at an address, and runs
a fragment again whenever the timer that the page asked for is due, as a browser does. What is left
out is the drawing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import aiohttp
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

STREAM: Final = "/_stcore/stream"
OPENED_S: Final = 180.0
"""All of them must have stood once by then."""


@dataclass(slots=True)
class Seen:
    """What the sessions got so far."""

    opened: int = 0
    refreshed: int = 0
    """Runs of fragments: panels and the watch over the collector."""
    received_bytes: int = 0


@dataclass(slots=True)
class _Session:
    socket: aiohttp.ClientWebSocketResponse
    address: str
    seen: Seen
    timers: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]])
    wanted: dict[str, float] = field(default_factory=dict[str, float])
    """Fragments that asked for a timer in this run of the script, and its seconds."""
    stands: bool = False

    async def ask(self, fragment: str = "") -> None:
        message = BackMsg()
        message.rerun_script.query_string = self.address
        message.rerun_script.fragment_id = fragment
        message.rerun_script.is_auto_rerun = bool(fragment)
        await self.socket.send_bytes(message.SerializeToString())

    async def follow(self) -> None:
        await self.ask()
        async for frame in self.socket:
            if frame.type is aiohttp.WSMsgType.BINARY:
                self.seen.received_bytes += len(frame.data)
                self.hear(ForwardMsg.FromString(frame.data))

    def hear(self, message: ForwardMsg) -> None:
        kind = message.WhichOneof("type")
        if kind == "auto_rerun":
            self.wanted[message.auto_rerun.fragment_id] = message.auto_rerun.interval
        elif kind == "script_finished":
            if message.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY:
                self.whole()
            else:
                self.seen.refreshed += self.stands

    def whole(self) -> None:
        """The whole script ran: timers of fragments that are gone end, new ones begin."""
        self.seen.opened += not self.stands
        self.stands = True
        for fragment in [*self.timers]:
            if fragment not in self.wanted:
                self.timers.pop(fragment).cancel()
        for fragment, seconds in self.wanted.items():
            if fragment not in self.timers:
                self.timers[fragment] = asyncio.create_task(self.tick(fragment, seconds))
        self.wanted.clear()

    async def tick(self, fragment: str, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self.ask(fragment)


async def _one(http: aiohttp.ClientSession, url: str, address: str, seen: Seen) -> None:
    async with http.ws_connect(url + STREAM, protocols=("streamlit",), max_msg_size=0) as socket:
        session = _Session(socket, address, seen)
        try:
            await session.follow()
        finally:
            for timer in session.timers.values():
                timer.cancel()


async def _all(url: str, address: str, count: int, seen: Seen, ended: asyncio.Event) -> None:
    async with aiohttp.ClientSession() as http:
        tabs = [asyncio.create_task(_one(http, url, address, seen)) for _ in range(count)]
        await ended.wait()
        for tab in tabs:
            tab.cancel()
        await asyncio.gather(*tabs, return_exceptions=True)


@contextmanager
def sessions(url: str, address: str, count: int) -> Generator[Seen]:
    """So many tabs at that address (`run=...`), each standing, until the block ends."""
    seen, loop, ended = Seen(), asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(
        target=lambda: loop.run_until_complete(_all(url, address, count, seen, ended)),
        name="bench-tabs",
    )
    thread.start()
    waited = threading.Event()
    try:
        for _ in range(round(OPENED_S / 0.1)):
            if seen.opened >= count:
                break
            waited.wait(0.1)
        else:
            message = f"{seen.opened} of {count} tabs stood within {OPENED_S:g} s"
            raise TimeoutError(message)
        yield seen
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
