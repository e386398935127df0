"""How does a step get through engines, and its answer to the client?

Forwarded as often as it takes: an engine that dies before anything was streamed costs another
attempt elsewhere, one with a full queue a pause, one that Heddle stopped (weight sync, move,
standing still) goes on elsewhere from what was received. After that a clear error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import orjson

from heddle.controller.dataplane import asgi
from heddle.controller.dataplane.asgi import Send
from heddle.controller.dataplane.exchange import CHAT, GENERATE, Exchange, said_of
from heddle.controller.dataplane.resume import Received
from heddle.controller.dataplane.spoken import Spoken
from heddle.controller.dataplane.sse import Watch
from heddle.controller.dataplane.usage import Usage, of_generate, of_openai
from heddle.controller.errors import ControllerError, EngineError, EngineFull, NoWorker
from heddle.controller.fleet.engine import Stream
from heddle.controller.live import Grant, Step
from heddle.controller.loop import NOBODY, Loop
from heddle.controller.sync import WeightSyncs

INFERRED: Final = frozenset({"anonymous", "ambiguous", "lineage"})
ATTEMPTS: Final = 3
"""Engines one step may lose before its client is told."""
FULL: Final = frozenset({429, 503})
"""SGLang's answers when its queue takes no more (--max-queued-requests)."""
FULL_LEAST_S: Final = 0.25
FULL_MOST_S: Final = 2.0
FULL_S: Final = 60.0
"""Wall seconds a step goes on trying, with pauses that double between those two."""


def full_pause_s(waited_s: float) -> float | None:
    """Wall seconds until a step that waited so long asks a full queue again; None: no more."""
    return None if waited_s >= FULL_S else min(max(waited_s, FULL_LEAST_S), FULL_MOST_S)


class _Interrupted(Exception):
    """Heddle stopped it in the middle (weight_sync or move): it goes on afterwards."""


class Carrier:
    """Carries steps; `follow` is told how a good one went."""

    def __init__(
        self, loop: Loop, syncs: WeightSyncs, follow: Callable[[Exchange, Step, Usage], None]
    ) -> None:
        self._loop = loop
        self._syncs = syncs
        self._follow = follow

    async def carry(self, exchange: Exchange, step: Step) -> None:
        step.task = asyncio.current_task()
        try:
            await self._carried(exchange, step)
        finally:
            # Wherever the client left or could not be told, between two attempts too.
            if step in step.trajectory.running and step.granted is not None:
                self._loop.drop(step, "client_left")
                self._stop_on(step.granted)

    async def _carried(self, exchange: Exchange, step: Step) -> None:
        lost, full_s = 0, 0.0
        while True:
            grant = await self._granted(step)
            try:
                usage = await self._unless_given_up(exchange, step, grant)
            except _Interrupted as stop:
                self._loop.again(step, str(stop))
            except EngineFull as error:
                full_s = await self._later(exchange, step, error, full_s)
            except EngineError as error:
                lost += 1
                if await self._ends(exchange, step, grant, error, last=lost == ATTEMPTS):
                    return
            except ControllerError as error:
                self._loop.drop(step, type(error).__name__)
                if not exchange.began:
                    raise
                await self._cut_short(exchange, error)
                return
            else:
                self._done(exchange, step, usage)
                return

    async def _granted(self, step: Step) -> Grant:
        try:
            return await self._loop.granted(step)
        except asyncio.CancelledError:
            if step.given_up is None or step.task is None:
                raise
            step.task.uncancel()
            raise step.given_up from None

    async def _unless_given_up(self, exchange: Exchange, step: Step, grant: Grant) -> Usage:
        """Forward it; what was taken off its engine is stopped there, and says why."""
        try:
            return await self._forward(exchange, step, grant)
        except asyncio.CancelledError:
            because, step.given_up = step.given_up, None
            if because is None or step.task is None:
                raise
            step.task.uncancel()
            self._stop_on(grant)
            raise because from None

    async def _later(
        self, exchange: Exchange, step: Step, error: EngineFull, waited_s: float
    ) -> float:
        """The engine's queue is full: again after a while; returns the wall seconds waited."""
        pause_s = full_pause_s(waited_s)
        if pause_s is None:
            self._loop.drop(step, "engine_full")
            raise error
        await asyncio.sleep(pause_s)
        if not step.trajectory.steps and exchange.received is None:
            step.trajectory.worker = None  # nothing of it is there: anybody may take it
        self._loop.again(step, "engine_full")
        return waited_s + pause_s

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
        if self._syncs.shut:
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
            if stream.status in FULL and not exchange.began:
                await stream.close()
                raise _full(grant, b"")
            return await self._pass_on(exchange, stream, extra, step)
        reply = await grant.worker.wire.send(exchange.path, body, headers)
        if reply.status in FULL and not exchange.began:
            raise _full(grant, reply.body)
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

    async def _cut_short(self, exchange: Exchange, error: ControllerError) -> None:
        # The head is out: an event that says so, then the end.
        event = b"data: " + orjson.dumps({"error": {"message": str(error)}}) + b"\n\n"
        await exchange.send({"type": "http.response.body", "body": event})

    def _stop_on(self, grant: Grant) -> None:
        task = asyncio.ensure_future(grant.worker.engine.abort(grant.rid))
        _BACKGROUND.add(task)
        task.add_done_callback(_BACKGROUND.discard)


_BACKGROUND: Final[set[asyncio.Future[None]]] = set()


def _full(grant: Grant, said: bytes) -> EngineFull:
    told = said[:200].decode(errors="replace")
    return EngineFull(f"the queue of the engine at {grant.worker.url} is full {told}".rstrip())


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
