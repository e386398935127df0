"""How does a request become a step?

Raw ASGI: read, find whose it is, put it in line; `Carrier` does the rest. A client that leaves
stops its step on the engine; one that asks again under a rid takes its earlier request's place.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

from heddle.controller.dataplane import asgi
from heddle.controller.dataplane.asgi import Receive, Scope, Send
from heddle.controller.dataplane.carrier import INFERRED, Carrier
from heddle.controller.dataplane.exchange import CHAT, COMPLETIONS, GENERATE, Exchange
from heddle.controller.dataplane.identity import Request, Whose, resolve, strip_prefix
from heddle.controller.dataplane.lineage import Line, Lineage, prompt_group
from heddle.controller.dataplane.splice import MAX_BODY_BYTES, split
from heddle.controller.dataplane.usage import Usage
from heddle.controller.errors import (
    BadRequest,
    Conflict,
    ControllerError,
    EngineError,
    NoWorker,
    TooMany,
)
from heddle.controller.live import Call, LiveTrajectory, Step
from heddle.controller.loop import NOBODY, Loop
from heddle.controller.pins import Pin
from heddle.controller.sync import WeightSyncs

STEPS: Final = frozenset({GENERATE, CHAT, COMPLETIONS})
PATHS: Final = STEPS | {"/v1/models", "/abort_request"}
MAX_LIVE: Final = 200_000


def serves(path: str) -> bool:
    """Whether this path belongs to the data plane."""
    return strip_prefix(path) in PATHS


class Proxy:
    """The data plane as an ASGI application; `api_keys` are no session ids."""

    def __init__(
        self, loop: Loop, syncs: WeightSyncs, api_keys: frozenset[str] = frozenset()
    ) -> None:
        self._loop = loop
        self._syncs = syncs
        self._lineage = Lineage()
        self._carrier = Carrier(loop, syncs, self._follow)
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
        whose = self._inferred(exchange, whose)
        known = self._loop.trajectories.get(f"{whose.run}/{whose.trajectory}")
        if known is None:
            self._admit()
            whose = self._grouped(exchange, whose)
        elif call.client_rid is not None:
            _supersede(known, call.client_rid)
        step = self._loop.arrive(whose, call)
        await asgi.while_there(receive, self._carrier.carry(exchange, step), lambda: exchange.ended)

    def _inferred(self, exchange: Exchange, whose: Whose) -> Whose:
        """A request that names nobody may go on with a context that is known."""
        if not whose.is_anonymous or exchange.is_batch:
            return whose
        found = self._lineage.find(whose.run, exchange.body.ids, exchange.messages)
        if len(found) != 1:
            return whose._replace(source="ambiguous") if found else whose
        line = found[0]
        latest = self._lineage.latest(line.run, line.trajectory)
        live = self._loop.trajectories.get(f"{line.run}/{line.trajectory}")
        if live is None:
            pin = Pin(line.run, line.trajectory, line.worker, latest, line.ended_ns)
            self._loop.table.expect(pin)
        # Branches of parallel tools go on from one context and are steps of their own.
        step = max(latest, live.last_step if live else -1) + 1
        group = whose.group or line.group
        return whose._replace(trajectory=line.trajectory, step=step, source="lineage", group=group)

    def _grouped(self, exchange: Exchange, whose: Whose) -> Whose:
        """A new one that says no group belongs with those that begin with the same prompt."""
        if whose.group or whose.source == "lineage" or exchange.is_batch:
            return whose
        return whose._replace(group=prompt_group(exchange.body.ids, exchange.messages))

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
            group=trajectory.group,
        )
        if ids is not None and usage.output_ids:
            self._lineage.note(line, ids + b"," + usage.output_ids, None)
        elif ids is None:
            self._lineage.note(line, None, exchange.messages, exchange.answered)

    def _admit(self) -> None:
        """Refuse more trajectories than memory is meant for."""
        if (live := len(self._loop.trajectories)) >= MAX_LIVE:
            message = f"{live} trajectories are live; finish some, or let them end"
            raise TooMany(message)

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


def _supersede(known: LiveTrajectory, rid: str) -> None:
    """A client that asks again under a rid takes the place of its earlier request."""
    for step in (*known.waiting, *known.running):
        if step.client_rid == rid:
            message = f"the request {rid!r} was sent again: that one is answered"
            step.give_up(Conflict(message))


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
