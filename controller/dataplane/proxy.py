"""How does a request become a step on an engine, and its answer come back?

Raw ASGI: read, find whose it is, wait for a grant, splice, forward, pass the answer on, say how it
went. A client that leaves stops its step on the engine; an engine that dies before anything was
streamed costs another attempt elsewhere, after that a clear error.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from heddle.controller.dataplane import asgi
from heddle.controller.dataplane.asgi import Receive, Scope, Send
from heddle.controller.dataplane.identity import Request, resolve, strip_prefix
from heddle.controller.dataplane.spans import step_traceparent
from heddle.controller.dataplane.splice import MAX_BODY_BYTES, Body, split
from heddle.controller.dataplane.sse import Watch
from heddle.controller.dataplane.usage import Usage, of_generate, of_openai
from heddle.controller.errors import ControllerError, EngineError, EngineLost, NoWorker
from heddle.controller.fleet.engine import Stream
from heddle.controller.live import Call, Grant, Step
from heddle.controller.loop import NOBODY, Loop

GENERATE: Final = "/generate"
CHAT: Final = "/v1/chat/completions"
STEPS: Final = frozenset({GENERATE, CHAT, "/v1/completions"})
PATHS: Final = STEPS | {"/v1/models", "/abort_request"}
ATTEMPTS: Final = 3
"""Engines one step may lose before its client is told."""
_KEPT_BACK: Final = frozenset(
    {
        "host", "content-length", "connection", "keep-alive", "transfer-encoding", "upgrade", "te",
        "trailer", "proxy-authorization", "proxy-connection", "accept-encoding", "traceparent",
        "expect", "origin", "referer", "cookie",
    }
)  # fmt: skip


def serves(path: str) -> bool:
    """Whether this path belongs to the data plane."""
    return strip_prefix(path) in PATHS


@dataclass(slots=True)
class Exchange:
    """One request: what came in, and whether any of the answer has gone out."""

    path: str
    headers: dict[str, str]
    body: Body
    send: Send
    began: bool = False
    """Whether the head of the answer is out."""
    ended: bool = False
    """Whether its last byte is: a server then reports the client as gone."""

    @property
    def streams(self) -> bool:
        """Whether the client asked for a stream."""
        return self.body.head.get("stream") is True

    @property
    def swallows_usage(self) -> bool:
        """Whether the usage chunk is asked for on the client's behalf."""
        options = self.body.head.get("stream_options")
        asked = isinstance(options, Mapping) and options.get("include_usage")
        return self.streams and self.path != GENERATE and not asked

    @property
    def strips_meta(self) -> bool:
        """Whether meta_info is asked for on the client's behalf."""
        wanted = self.body.head.get("return_meta_info")
        return self.path == CHAT and not self.streams and not wanted

    @property
    def is_batch(self) -> bool:
        """Several requests in one body: a single rid would be wrong."""
        head = self.body.head
        nested = isinstance(head.get("text"), list) or isinstance(head.get("input_ids"), list)
        sampling = head.get("sampling_params")
        many = isinstance(sampling, Mapping) and (sampling.get("n") or 1) != 1
        return nested or many or isinstance(sampling, list)


class Proxy:
    """The data plane as an ASGI application; `api_keys` are no session ids."""

    def __init__(self, loop: Loop, api_keys: frozenset[str] = frozenset()) -> None:
        self._loop = loop
        self._api_keys = api_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every failure is a sentence."""
        path = strip_prefix(scope["path"])
        try:
            if path == "/v1/models":
                await self._models(send)
            else:
                raw = await asgi.read_body(receive, MAX_BODY_BYTES)
                body = split(raw)
                exchange = Exchange(path, asgi.headers_of(scope), body, send)
                if path == "/abort_request":
                    await self._abort(exchange)
                else:
                    await self._step(exchange, scope["path"], receive)
        except asgi.ClientLeft:
            return
        except ControllerError as error:
            await asgi.fail(send, error.status, str(error))

    async def _step(self, exchange: Exchange, path: str, receive: Receive) -> None:
        body, headers = exchange.body, exchange.headers
        whose = resolve(Request(headers, path, body.head, self._api_keys))
        rid = body.head.get("rid")
        call = Call(
            prompt_tokens=body.prompt_tokens,
            ids=body.ids,
            model=str(body.head.get("model") or ""),
            client_rid=rid if isinstance(rid, str) else None,
        )
        step = self._loop.arrive(whose, call)
        work = asyncio.ensure_future(self._carry(exchange, step))
        left = asyncio.ensure_future(asgi.until_left(receive))
        try:
            await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
            if not exchange.ended:
                work.cancel()
        except asyncio.CancelledError:
            work.cancel()
            raise
        finally:
            left.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work

    async def _carry(self, exchange: Exchange, step: Step) -> None:
        for attempt in range(ATTEMPTS):
            grant = await self._loop.granted(step)
            try:
                usage = await self._forward(exchange, step, grant)
            except asyncio.CancelledError:
                self._loop.drop(step, "client_left")
                self._stop_on(grant)
                raise
            except EngineLost as error:
                await self._loop.fleet.suspect(grant.worker)
                if attempt + 1 == ATTEMPTS:
                    self._loop.drop(step, "engine_lost")
                    raise
                if not self._loop.fleet.alive:
                    self._loop.drop(step, "engine_lost")
                    message = f"{error}; {NOBODY}"
                    raise NoWorker(message) from error
                self._loop.again(step)
            except EngineError as error:
                self._loop.drop(step, "engine_died")
                await self._cut_short(exchange, error)
                return
            except BaseException:
                self._loop.drop(step, "client_unreachable")
                raise
            else:
                self._done(step, usage)
                return

    def _done(self, step: Step, usage: Usage) -> None:
        if usage.error is None:
            self._loop.served(step, usage)
        else:
            self._loop.drop(step, usage.error)

    async def _forward(self, exchange: Exchange, step: Step, grant: Grant) -> Usage:
        body = exchange.body.dump(_injected(exchange, step, grant))
        headers = {k: v for k, v in exchange.headers.items() if _passes(k)}
        headers["content-type"] = "application/json"
        headers["traceparent"] = step_traceparent(step)
        extra = _out(step, grant)
        if exchange.streams:
            stream = await grant.worker.engine.stream(exchange.path, body, headers)
            return await self._pass_on(exchange, stream, extra, step.released_ns)
        reply = await grant.worker.engine.send(exchange.path, body, headers)
        usage, content = _read(exchange, reply.body)
        if reply.status >= 400:
            usage = Usage(error=f"http_{reply.status}")
        exchange.began = exchange.ended = True
        await asgi.answer(exchange.send, reply.status, content, reply.content_type, extra)
        return usage

    async def _pass_on(
        self,
        exchange: Exchange,
        stream: Stream,
        extra: list[tuple[bytes, bytes]],
        sent_ns: int,
    ) -> Usage:
        watch, now_ns = Watch(swallow_usage=exchange.swallows_usage), self._loop.clock.now_ns
        first_ns: int | None = None
        try:
            exchange.began = True
            await asgi.begin(exchange.send, stream.status, stream.content_type, extra)
            async for chunk in stream.chunks():
                passed = watch.feed(chunk)
                if watch.began and first_ns is None:
                    first_ns = now_ns()
                if passed:
                    await _more(exchange.send, passed)
            exchange.ended = True
            await exchange.send({"type": "http.response.body", "body": watch.flush()})
        finally:
            await stream.close()
        if stream.status >= 400:
            return Usage(error=f"http_{stream.status}")
        usage = _streamed(exchange, watch)
        usage.watched(sent_ns, first_ns, now_ns())
        return usage

    async def _cut_short(self, exchange: Exchange, error: EngineError) -> None:
        if not exchange.began:
            raise error
        # The head is out: an event that says so, then the end.
        event = b"data: " + orjson.dumps({"error": {"message": str(error)}}) + b"\n\n"
        await exchange.send({"type": "http.response.body", "body": event})

    def _stop_on(self, grant: Grant) -> None:
        task = asyncio.ensure_future(grant.worker.engine.abort(grant.rid))
        _BACKGROUND.add(task)
        task.add_done_callback(_BACKGROUND.discard)

    async def _models(self, send: Send) -> None:
        for worker in self._loop.fleet.alive:
            with contextlib.suppress(EngineError):
                reply = await worker.engine.send("/v1/models", b"", {})
                await asgi.answer(send, reply.status, reply.body, reply.content_type)
                return
        raise NoWorker(NOBODY)

    async def _abort(self, exchange: Exchange) -> None:
        head = exchange.body.head
        every = head.get("abort_all") is True
        rid = head.get("rid") or None
        running = self._loop.abort(rid=rid, trajectory_id=head.get("trajectory_id"), every=every)
        if every:
            body = orjson.dumps({"abort_all": True})
            sends = [
                w.engine.send("/abort_request", body, {"content-type": "application/json"})
                for w in self._loop.fleet.alive
            ]
            await asyncio.gather(*sends, return_exceptions=True)
        else:
            grants = [step.granted for step in running if step.granted is not None]
            await asyncio.gather(*(g.worker.engine.abort(g.rid) for g in grants))
        said = orjson.dumps({"success": True, "running": len(running)})
        await asgi.answer(exchange.send, 200, said, "application/json")


_BACKGROUND: Final[set[asyncio.Future[None]]] = set()


async def _more(send: Send, chunk: bytes) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": True})


def _passes(name: str) -> bool:
    return name not in _KEPT_BACK and not name.startswith("x-heddle-")


def _injected(exchange: Exchange, step: Step, grant: Grant) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    if not exchange.is_batch:
        keys["rid"] = grant.rid
        if "session_id" not in exchange.body.head and exchange.path != "/v1/completions":
            keys["session_id"] = step.trajectory.id
    if grant.priority is not None and "priority" not in exchange.body.head:
        keys["priority"] = grant.priority
    if exchange.strips_meta:
        keys["return_meta_info"] = True
    if exchange.swallows_usage:
        options = exchange.body.head.get("stream_options")
        keys["stream_options"] = {
            **(options if isinstance(options, Mapping) else {}),
            "include_usage": True,
        }
    return keys


def _read(exchange: Exchange, content: bytes) -> tuple[Usage, bytes]:
    """Usage of a whole answer, and the answer without what was asked on the client's behalf."""
    try:
        answer: Any = orjson.loads(content)
    except orjson.JSONDecodeError:
        return Usage(), content
    if exchange.path == GENERATE:
        return of_generate(answer), content
    usage = of_openai(answer)
    if not exchange.strips_meta or not isinstance(answer, dict):
        return usage, content
    stripped = [c.pop("meta_info", None) for c in answer.get("choices") or []]
    return usage, orjson.dumps(answer) if any(stripped) else content


def _streamed(exchange: Exchange, watch: Watch) -> Usage:
    last = watch.last()
    if exchange.path == GENERATE:
        return of_generate(last)
    found = dict(last) if isinstance(last, Mapping) else {}
    return of_openai({**found, "usage": watch.usage or found.get("usage")})


def _out(step: Step, grant: Grant) -> list[tuple[bytes, bytes]]:
    said = {
        "x-heddle-worker": grant.worker.id,
        "x-heddle-trajectory-id": step.trajectory.id,
        "x-heddle-step": str(step.index),
        "x-heddle-decision": grant.decision,
        "x-heddle-queue-ms": f"{step.held_s * 1e3:.3f}",
        "traceparent": step_traceparent(step),
    }
    return [(k.encode(), _safe(v)) for k, v in said.items()]


def _safe(value: str) -> bytes:
    # A trajectory id comes from the client: no line break of it may reach a header.
    return value.replace("\r", " ").replace("\n", " ").encode("latin-1", "replace")
