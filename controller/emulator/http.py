"""How does a client that knows SGLang talk to an emulated engine?

Raw ASGI on uvicorn: SGLang 0.5.23's HTTP API in real time x speed. Light on purpose: eight of these
processes share two cores in a demo. It decides nothing; the engine does.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

import orjson
import uvicorn

from heddle.controller.clock import Clock
from heddle.controller.emulator import replies, streams
from heddle.controller.emulator.control import CONTROL, Answer
from heddle.controller.emulator.errors import EngineError, PortInUse
from heddle.controller.emulator.parse import (
    Body,
    body_of,
    chat_request,
    completion_request,
    generate_request,
    streams_of,
)
from heddle.controller.emulator.request import EngineConfig, Finished, Request
from heddle.controller.emulator.runner import Runner
from heddle.controller.emulator.stored import make_engine
from heddle.controller.emulator.tiers import FolderStorage
from heddle.controller.emulator.tracing import EngineSpans
from heddle.controller.emulator.truth import Truth
from heddle.controller.pauses import keep_short

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

GENERATE: Final = "/generate"
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
GENERATIONS: Final = (GENERATE, CHAT, COMPLETIONS)
FLUSH: Final = "/flush_cache"
"""The last thing that is asked of a new engine before it takes steps."""


class EngineApp:
    """The ASGI application of one engine."""

    def __init__(
        self,
        config: EngineConfig,
        clock: Clock,
        port: int = 0,
        truth: Truth | None = None,
        otlp_endpoint: str | None = None,
        storage: Path | None = None,
    ) -> None:
        below = FolderStorage(storage, config.model, config.degree) if storage else None
        spans = EngineSpans.to(otlp_endpoint, config, clock.origin_ns) if otlp_endpoint else None
        self.runner = Runner(make_engine(config, truth, storage=below), clock, port, spans)
        self.config = config
        self.logs = False
        """Whether it writes its launch/exit log."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        raw = await _body(receive)
        if raw is None:
            return
        try:
            if path in GENERATIONS and method != "POST":
                await _json(send, {"detail": "Method Not Allowed"}, 405)
            elif path in GENERATIONS:
                await self._generation(scope, body_of(raw), receive, send)
            else:
                await self._control(scope, raw, send)
        except EngineError as error:
            await _json(send, _error(path, error), error.code)

    async def _control(self, scope: Scope, raw: bytes, send: Send) -> None:
        known, method = CONTROL.get(scope["path"]), scope["method"]
        if known is None:
            await _json(send, {"detail": "Not Found"}, 404)
        elif method not in known.methods:
            await _json(send, {"detail": "Method Not Allowed"}, 405)
        else:
            asked = dict(parse_qsl(scope["query_string"].decode("ascii", "replace")))
            body = {**asked, **body_of(raw)} if method == "POST" else asked
            answer: Answer = await known.call(self.runner, body)
            if self.logs and scope["path"] == FLUSH:
                _log(self, "flushed")
            if isinstance(answer, str):
                await _send(send, answer.encode(), 200, b"text/plain; charset=utf-8")
            else:
                await _json(send, answer, 200)

    async def _generation(self, scope: Scope, body: Body, receive: Receive, send: Send) -> None:
        path = scope["path"]
        piecewise = streams_of(body)
        request = self._request(path, body)
        future = self.runner.submit(request, _traceparent(scope))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            if piecewise:
                await self._stream(path, body, request, future, send, gone)
            else:
                await asyncio.wait({future, gone}, return_when=asyncio.FIRST_COMPLETED)
                if future.done():
                    await _json(send, self._reply(path, body, request, future.result()), 200)
        finally:
            gone.cancel()
            if not future.done():
                self.runner.abort(request.rid)

    def _request(self, path: str, body: Body) -> Request:
        if path == GENERATE:
            return generate_request(body)
        parse = chat_request if path == CHAT else completion_request
        return parse(body)

    def _reply(self, path: str, body: Body, request: Request, done: Finished) -> dict[str, Any]:
        if path == GENERATE:
            return replies.generated(done, request, self.runner.stamp)
        return streams.openai_reply(self.runner, request, done, body, path == CHAT)

    async def _stream(
        self,
        path: str,
        body: Body,
        request: Request,
        future: asyncio.Future[Finished],
        send: Send,
        gone: asyncio.Future[None],
    ) -> None:
        events = self._events(path, body, request, future)
        await send(_start(200, b"text/event-stream; charset=utf-8"))
        async for chunk in events:
            if gone.done():
                return
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _events(
        self, path: str, body: Body, request: Request, future: asyncio.Future[Finished]
    ) -> AsyncIterator[bytes]:
        if path == GENERATE:
            return streams.generate_events(self.runner, request, future)
        return streams.openai_events(self.runner, request, future, body, path == CHAT)


def serve(
    config: EngineConfig,
    *,
    host: str = "127.0.0.1",
    port: int = 30_000,
    clock: Clock | None = None,
    launch_s: float = 0.0,
    truth: Truth | None = None,
    otlp_endpoint: str | None = None,
    storage: Path | None = None,
) -> None:
    """Serve one engine until it is told to stop; a port in use raises PortInUse.

    For `launch_s` fleet seconds it loads, as a real one does: nobody listens until then.
    """
    time.sleep(max(0.0, (clock or Clock()).wall_s(launch_s)))
    listener = bind(host, port)
    port = listener.getsockname()[1]
    with listener:
        app = EngineApp(config, clock or Clock(), port, truth, otlp_endpoint, storage)
        keep_short()
        app.logs = True
        # uvicorn ends at a SIGTERM and raises it again, which would end this before its log.
        signal.signal(signal.SIGTERM, lambda *_: None)
        _log(app, "serving")
        make_server(app).run(sockets=[listener])
        _log(app, "ended")
    app.runner.close()


def _log(app: EngineApp, event: str) -> None:
    """A line of its launch/exit log: what happened when, and since when nothing ended."""
    runner, origin_ns = app.runner, app.runner.clock.origin_ns
    line = {
        "event": event,
        "worker": app.config.worker_id,
        "degree": app.config.degree,
        "at_ns": runner.clock.now_ns(),
        "idle_since_ns": origin_ns + round(runner.ended_s * 1e9),
    }
    sys.stdout.write(orjson.dumps(line).decode() + "\n")
    sys.stdout.flush()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, or PortInUse."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(4096)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from None
        sentence = f"cannot listen on {host}:{port}: {error.strerror}"
        raise EngineError(sentence) from error
    return listener


def make_server(app: EngineApp) -> uvicorn.Server:
    """uvicorn without what an engine does not need."""
    config = uvicorn.Config(
        app,
        interface="asgi3",
        lifespan="off",
        ws="none",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=2,
        server_header=False,
        date_header=False,
        backlog=4096,
    )
    return uvicorn.Server(config)


async def _body(receive: Receive) -> bytes | None:
    """The whole body; None when the client left before it was sent."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _traceparent(scope: Scope) -> str | None:
    return next((v.decode("latin-1") for k, v in scope["headers"] if k == b"traceparent"), None)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _error(path: str, error: EngineError) -> dict[str, Any]:
    if path in (CHAT, COMPLETIONS):
        kind = "BadRequestError"
        return {"object": "error", "message": str(error), "type": kind, "param": None, "code": 400}
    return {"error": {"message": str(error)}}


def _start(status: int, kind: bytes, length: int | None = None) -> Message:
    headers = [(b"content-type", kind)]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    return {"type": "http.response.start", "status": status, "headers": headers}


async def _json(send: Send, payload: Any, status: int) -> None:
    await _send(
        send, orjson.dumps(payload, option=orjson.OPT_SERIALIZE_NUMPY), status, b"application/json"
    )


async def _send(send: Send, payload: bytes, status: int, kind: bytes) -> None:
    await send(_start(status, kind, len(payload)))
    await send({"type": "http.response.body", "body": payload})
