"""How does a request become a step on an engine, and its answer come back?

Raw ASGI: read, find whose it is, wait for a grant, splice, forward, pass the answer on, say how it
went. A client that leaves stops its step on the engine; an engine that dies before anything was
streamed costs another attempt elsewhere, after that a clear error.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from heddle.controller.dataplane import asgi
from heddle.controller.dataplane.asgi import Receive, Scope, Send
from heddle.controller.dataplane.exchange import CHAT, COMPLETIONS, GENERATE, Exchange, said_of
from heddle.controller.dataplane.identity import Request, Whose, resolve, strip_prefix
from heddle.controller.dataplane.lineage import Line, Lineage, prompt_group
from heddle.controller.dataplane.resume import Received
from heddle.controller.dataplane.splice import MAX_BODY_BYTES, split
from heddle.controller.dataplane.spoken import Spoken
from heddle.controller.dataplane.sse import Watch
from heddle.controller.dataplane.usage import Usage, of_generate, of_openai
from heddle.controller.errors import (
    BadRequest,
    ControllerError,
    EngineError,
    NoWorker,
    TooMany,
)
from heddle.controller.fleet.engine import Stream
from heddle.controller.live import Call, Grant, Step
from heddle.controller.loop import NOBODY, Loop
from heddle.controller.sync import WeightSyncs

STEPS: Final = frozenset({GENERATE, CHAT, COMPLETIONS})
PATHS: Final = STEPS | {"/v1/models", "/abort_request"}
INFERRED: Final = frozenset({"anonymous", "ambiguous", "lineage"})
MAX_LIVE: Final = 200_000
ATTEMPTS: Final = 3
"""Engines one step may lose before its client is told."""


def serves(path: str) -> bool:
    """Whether this path belongs to the data plane."""
    return strip_prefix(path) in PATHS


class _Interrupted(Exception):
    """Heddle stopped it in the middle (weight_sync or move): it goes on afterwards."""


class Proxy:
    """The data plane as an ASGI application; `api_keys` are no session ids."""

    def __init__(
        self, loop: Loop, syncs: WeightSyncs, api_keys: frozenset[str] = frozenset()
    ) -> None:
        self._loop = loop
        self._syncs = syncs
        self._lineage = Lineage()
        self._api_keys = api_keys

    async def answer(
        self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send
    ) -> None:
        """Answer one request with those headers; every failure is a sentence."""
        path = strip_prefix(scope["path"])
        try:
            if path == "/v1/models":
                await self._models(send)
            else:
                asgi.check_length(headers, MAX_BODY_BYTES)
                body = split(await asgi.read_body(receive, MAX_BODY_BYTES))
                exchange = Exchange(path, headers, body, send)
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
        rid, priority = body.head.get("rid"), _priority(body.head)
        call = Call(
            prompt_tokens=body.prompt_tokens,
            ids=body.ids,
            model=str(body.head.get("model") or ""),
            client_rid=rid if isinstance(rid, str) else None,
            priority=priority,
            resumable=exchange.can_resume,
        )
        whose = self._grouped(exchange, self._inferred(exchange, whose))
        self._admit(whose)
        step = self._loop.arrive(whose, call)
        await asgi.while_there(receive, self._carry(exchange, step), lambda: exchange.ended)

    def _inferred(self, exchange: Exchange, whose: Whose) -> Whose:
        """A request that names nobody may go on with a context that is known."""
        if not whose.is_anonymous or exchange.is_batch:
            return whose
        found = self._lineage.find(whose.run, exchange.body.ids, exchange.messages)
        if len(found) != 1:
            return replace(whose, source="ambiguous") if found else whose
        line = found[0]
        latest = self._lineage.latest(line.run, line.trajectory)
        live = self._loop.trajectories.get(f"{line.run}/{line.trajectory}")
        if live is None:
            self._loop.table.expect(line.run, line.trajectory, line.worker, latest, line.ended_ns)
        # Branches of parallel tools go on from one context and are steps of their own.
        step = max(latest, live.last_step if live else -1) + 1
        return replace(whose, trajectory=line.trajectory, step=step, source="lineage")

    def _grouped(self, exchange: Exchange, whose: Whose) -> Whose:
        """A trajectory that says no group belongs with those that begin with the same prompt."""
        begun = f"{whose.run}/{whose.trajectory}" in self._loop.trajectories
        if whose.group or begun or whose.source == "lineage" or exchange.is_batch:
            return whose
        return replace(whose, group=prompt_group(exchange.body.ids, exchange.messages))

    def _follow(self, exchange: Exchange, step: Step, usage: Usage) -> None:
        """Remember the context of a trajectory that does not say who it is."""
        skipped = exchange.is_batch or usage.error is not None
        if step.granted is None or step.whose.source not in INFERRED or skipped:
            return
        trajectory, ids = step.trajectory, exchange.body.ids
        line = Line(
            trajectory.run,
            trajectory.id,
            step.index,
            step.granted.worker.id,
            0,
            ended_ns=self._loop.clock.now_ns(),
        )
        if ids is not None and usage.output_ids:
            self._lineage.note(line, ids + b"," + usage.output_ids, None)
        elif ids is None:
            self._lineage.note(line, None, exchange.messages, exchange.answered)

    def _admit(self, whose: Whose) -> None:
        """Refuse more trajectories than memory is meant for."""
        known = self._loop.trajectories
        if len(known) >= MAX_LIVE and f"{whose.run}/{whose.trajectory}" not in known:
            message = f"{len(known)} trajectories are live; finish some, or let them end"
            raise TooMany(message)

    async def _carry(self, exchange: Exchange, step: Step) -> None:
        for attempt in range(ATTEMPTS):
            grant = await self._loop.granted(step)
            try:
                usage = await self._forward(exchange, step, grant)
            except _Interrupted as stop:
                self._loop.again(step, str(stop))
            except asyncio.CancelledError:
                self._loop.drop(step, "client_left")
                self._stop_on(grant)
                raise
            except EngineError as error:
                if await self._ends(exchange, step, grant, error, last=attempt + 1 == ATTEMPTS):
                    return
            except BaseException:
                self._loop.drop(step, "client_unreachable")
                raise
            else:
                self._done(exchange, step, usage)
                return

    async def _ends(
        self, exchange: Exchange, step: Step, grant: Grant, error: EngineError, *, last: bool
    ) -> bool:
        """Back in line for another engine, or the end: raises while the client can be told so."""
        goes_on = not exchange.began or exchange.received is not None
        await self._loop.fleet.suspect(grant.worker)
        if goes_on and not last and self._loop.fleet.serves:
            self._loop.again(step)
            return False
        self._loop.drop(step, "engine_died" if exchange.began else "engine_lost")
        if exchange.began:
            await self._cut_short(exchange, error)
            return True
        if not self._loop.fleet.serves:
            message = f"{error}; {NOBODY}"
            raise NoWorker(message) from error
        raise error

    def _done(self, exchange: Exchange, step: Step, usage: Usage) -> None:
        if usage.error is None:
            if exchange.path == CHAT and self._loop.moves(step.trajectory.run):
                step.trajectory.chat = exchange.carried()
            self._loop.served(step, usage)
        else:
            self._loop.drop(step, usage.error)

    async def _forward(self, exchange: Exchange, step: Step, grant: Grant) -> Usage:
        await self._syncs.passable()
        self._syncs.running.add(step)
        try:
            return await self._sent(exchange, step, grant)
        finally:
            self._syncs.running.discard(step)

    async def _sent(self, exchange: Exchange, step: Step, grant: Grant) -> Usage:
        body, headers = exchange.for_engine(step, grant)
        extra = said_of(step, grant)
        if exchange.streams:
            stream = await grant.worker.wire.stream(exchange.path, body, headers)
            return await self._pass_on(exchange, stream, extra, step)
        reply = await grant.worker.wire.send(exchange.path, body, headers)
        usage, content = exchange.read(reply.body)
        if reply.status >= 400:
            usage = Usage(error=f"http_{reply.status}")
        stop = self._stopped(step, usage)
        self._syncs.answered(step, usage, ours=bool(stop))
        if stop and exchange.interrupted(content):
            raise _Interrupted(stop)
        # Before the client has it: its next step may come before this call returns.
        self._follow(exchange, step, usage)
        exchange.began = exchange.ended = True
        await asgi.answer(exchange.send, reply.status, content, reply.content_type, extra)
        return usage

    def _stopped(self, step: Step, usage: Usage) -> str:
        """Why Heddle itself ended it, or nothing."""
        if step.leaving and usage.finish_reason == "abort":
            return "move"
        return "weight_sync" if self._syncs.is_ours(usage) else ""

    async def _pass_on(
        self,
        exchange: Exchange,
        stream: Stream,
        extra: list[tuple[bytes, bytes]],
        step: Step,
    ) -> Usage:
        before, spoken = exchange.received, Spoken()
        follows = step.whose.source in INFERRED and exchange.path == CHAT
        watch = Watch(
            swallow_usage=exchange.swallows_usage,
            whole=exchange.can_resume,
            rewrite=before.rewrite if before else None,
            withhold=lambda: step.leaving or self._syncs.aborting,
            hear=spoken.hear if follows else None,
        )

        def told() -> None:
            exchange.answered = spoken.message() if follows else None
            self._follow(exchange, step, _streamed(exchange, watch))

        try:
            first_ns = await self._events(exchange, stream, extra, watch, step, told)
        except EngineError:
            _remember(exchange, watch)
            raise
        finally:
            await stream.close()
        if watch.stopped:
            _remember(exchange, watch)
            stop = self._stopped(step, _streamed(exchange, watch))
            raise _Interrupted(stop or "move")
        exchange.ended = True
        await exchange.send({"type": "http.response.body", "body": watch.flush()})
        if stream.status >= 400:
            return Usage(error=f"http_{stream.status}")
        usage = _streamed(exchange, watch)
        usage.watched(step.released_ns, first_ns, self._loop.clock.now_ns())
        self._syncs.answered(step, usage, ours=False)
        return usage

    async def _events(
        self,
        exchange: Exchange,
        stream: Stream,
        extra: list[tuple[bytes, bytes]],
        watch: Watch,
        step: Step,
        told: Callable[[], None],
    ) -> int | None:
        """Pass the bytes on; returns when the first output came by.

        `told` is called once all of the answer is known, before the client knows that.
        """
        first_ns: int | None = None
        worker = step.granted.worker if step.granted else None
        whole = False
        if not exchange.began:
            exchange.began = True
            await asgi.begin(exchange.send, stream.status, stream.content_type, extra)
        async for chunk in stream.chunks():
            if worker is not None:
                worker.events += 1
            passed = watch.feed(chunk)
            if watch.began and first_ns is None:
                first_ns = self._loop.clock.now_ns()
            if watch.done and not whole:
                whole = True
                told()
            if passed:
                await _more(exchange.send, passed)
        if not (whole or watch.stopped):
            told()
        return first_ns

    async def _cut_short(self, exchange: Exchange, error: EngineError) -> None:
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
                reply = await worker.wire.send("/v1/models", b"", {})
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
                w.wire.send("/abort_request", body, {"content-type": "application/json"})
                for w in self._loop.fleet.alive
            ]
            await asyncio.gather(*sends, return_exceptions=True)
        else:
            grants = [step.granted for step in running if step.granted is not None]
            await asyncio.gather(*(g.worker.engine.abort(g.rid) for g in grants))
        said = orjson.dumps({"success": True, "running": len(running)})
        await asgi.answer(exchange.send, 200, said, "application/json")


def _priority(head: Mapping[str, Any]) -> int | None:
    """The client's own; what no engine could take is refused."""
    priority = head.get("priority")
    # A number beyond 64 bits has become a float here and would reach the engine as one.
    if priority is not None and not (
        isinstance(priority, int) and -(1 << 63) <= priority < 1 << 63
    ):
        message = "priority must be an integer of 64 bits"
        raise BadRequest(message)
    return priority


_BACKGROUND: Final[set[asyncio.Future[None]]] = set()


async def _more(send: Send, chunk: bytes) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": True})


def _remember(exchange: Exchange, watch: Watch) -> None:
    """What the client has seen of a stream that broke: whole events, where one can go on."""
    known = exchange.received or Received()
    last = watch.last()
    nothing_new = last is None and exchange.received is not None
    if exchange.can_resume and (nothing_new or known.take(last)):
        exchange.received = known
    else:
        exchange.received = None


def _streamed(exchange: Exchange, watch: Watch) -> Usage:
    last = watch.last()
    if exchange.path == GENERATE:
        return of_generate(last)
    found = dict(last) if isinstance(last, Mapping) else {}
    return of_openai({**found, "usage": watch.usage or found.get("usage")})
