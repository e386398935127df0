"""How does raw ASGI read a body, notice that the client left, and answer?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping
from itertools import chain
from typing import Any, Final

import orjson

from heddle.controller.dataplane.writes import Cycle
from heddle.controller.errors import ControllerError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]


SHORT_S: Final = 0.05
"""Wall seconds after which somebody looks whether the client is still there."""


class TooLarge(ControllerError):
    """The body is larger than the data plane takes."""

    status = 413


class ClientLeft(Exception):
    """The connection closed before the body was whole."""


async def read_body(receive: Receive, limit: int) -> bytes:
    """The whole body; TooLarge beyond the limit."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            message_ = f"the body is larger than {limit >> 20} MiB"
            raise TooLarge(message_)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def check_length(headers: Mapping[str, str], limit: int) -> None:
    """TooLarge at once where the client says how much will come."""
    said = headers.get("content-length", "")
    if said.isdigit() and int(said) > limit:
        message = f"the body is larger than {limit >> 20} MiB"
        raise TooLarge(message)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives that body first."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again


async def while_there(
    receive: Receive, work: Coroutine[Any, Any, None], ended: Callable[[], bool]
) -> None:
    """Run `work`; a client that leaves before it `ended` cancels it, and that is no error."""
    task = asyncio.current_task()
    watcher: asyncio.Task[None] | None = None
    left = False

    async def watch() -> None:
        nonlocal left
        while (await receive())["type"] != "http.disconnect":
            await asyncio.sleep(0)
        # A server reports the client as gone after the last byte of the answer too.
        if task is not None and not ended():
            left = True
            task.cancel()

    def begin() -> None:
        nonlocal watcher
        watcher = asyncio.ensure_future(watch())

    # A task beside the caller's own costs a tenth of a request: for one that is short it is none.
    timer = asyncio.get_running_loop().call_later(SHORT_S, begin)
    try:
        await work
    except asyncio.CancelledError:
        if not left or task is None or task.uncancel():
            raise
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()


def headers_of(scope: Scope) -> dict[str, str]:
    """Names in lower case, as ASGI has them; of repeated ones the last counts."""
    headers = scope["headers"]
    # In one piece: a dozen of them, one by one, are 2 us of a request.
    raw = b"\n".join(chain.from_iterable(headers))
    parts = raw.decode("latin-1").split("\n")
    # A server that lets a line break into a header would shift them all.
    if len(parts) == 2 * len(headers) and raw.isascii():
        return dict(zip(parts[::2], parts[1::2], strict=True))
    return {k.decode("latin-1"): _text(v) for k, v in headers}


def _text(value: bytes) -> str:
    # aiohttp sends a name such as t-é as UTF-8, requests as Latin-1, which is hardly ever UTF-8.
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


async def answer(
    send: Send, status: int, body: bytes, content_type: str, extra: Headers = ()
) -> None:
    """One whole response; in one go where our own server's `send` can."""
    headers = [(b"content-type", content_type.encode("latin-1", "replace")), *extra]
    cycle = getattr(send, "__self__", None)
    if isinstance(cycle, Cycle) and cycle.whole(status, headers, body):
        return
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def begin(send: Send, status: int, content_type: str, extra: Headers = ()) -> None:
    """The head of a response."""
    headers = [(b"content-type", content_type.encode("latin-1", "replace")), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def fail(send: Send, status: int, sentence: str, extra: Headers = ()) -> None:
    """An error as JSON: {"error": sentence}."""
    await answer(send, status, orjson.dumps({"error": sentence}), "application/json", extra)
