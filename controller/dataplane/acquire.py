"""Where should a caller send its step itself, and what came of it?

The decision without the bytes: `acquire` puts a step in line and waits for its grant, by long poll
with a deadline; `release` says how it went. A caller that asks again for the same step keeps its
place. What is never released ends after LEASE_S; what nobody waits for any more, after ALONE_S.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from heddle.controller import wire
from heddle.controller.dataplane.identity import Whose, parse_trace
from heddle.controller.dataplane.spans import step_traceparent
from heddle.controller.dataplane.splice import Body
from heddle.controller.dataplane.usage import Usage, of_meta
from heddle.controller.errors import BadRequest, ControllerError
from heddle.controller.live import Call, Grant, Step
from heddle.controller.loop import Loop
from heddle.controller.sync import WeightSyncs

LEASE_S: Final = 2 * 3600.0
ENGINE_LOST: Final = "engine_lost"
"""The error that makes a release ask whether the engine still lives."""
TRAINERS_ABORT: Final = "aborted_by_trainer"
"""The error of a step that a trainer ended for a weight sync: shown, never fought."""
ALONE_S: Final = 60.0
"""Wall seconds a held step waits for its caller to ask again."""


Key = tuple[str, str, int | None]
"""Run, trajectory and the step as the caller named it."""


@dataclass(slots=True)
class _Ticket:
    """One step between its first acquire and its release."""

    step: Step
    key: Key
    waiters: int = 0
    timer: asyncio.TimerHandle | None = None


class Acquired:
    """Steps whose bytes do not pass through here."""

    def __init__(self, loop: Loop, syncs: WeightSyncs) -> None:
        self._loop = loop
        self._syncs = syncs
        self._tickets: dict[Key, _Ticket] = {}
        self._granted: dict[str, _Ticket] = {}

    async def acquire(self, asked: wire.Acquire, body: Body | None = None) -> wire.Acquired:
        """The grant, or after the deadline how long it has been held; `body` may hold the ids."""
        key = (asked.run, asked.trajectory, asked.step)
        ticket = self._tickets.get(key)
        if ticket is None:
            ticket = self._tickets[key] = _Ticket(self._arrive(asked, body or _body(asked)), key)
        step = ticket.step
        ticket.waiters += 1
        self._rest(ticket)
        try:
            grant = await _within(step, asked.deadline_s)
        except TimeoutError:
            return self._held(step)
        except ControllerError:
            self._tickets.pop(key, None)
            raise
        finally:
            ticket.waiters -= 1
            self._wait(ticket)
        self._granted[grant.rid] = ticket
        return self._said(step, grant)

    async def release(self, asked: wire.Release, body: Body | None = None) -> wire.Released:
        """The step ended; releasing twice is no mistake. `body` may hold the prompt's ids."""
        # What is refused changes nothing: the step is still acquired, and can be released again.
        usage = _usage(asked)
        ticket = self._granted.pop(asked.rid, None)
        if ticket is None:
            return wire.Released(known=False)
        step = ticket.step
        self._forget(ticket)
        step.ids = (body or _body(asked)).ids or step.ids
        self._syncs.answered(step, usage, ours=False)
        if asked.error:
            self._loop.drop(step, asked.error[:64], usage, asked.late_s)
            if step.granted is not None and asked.error == ENGINE_LOST:
                await self._loop.fleet.suspect(step.granted.worker)
        else:
            if asked.final:
                step.whose = step.whose._replace(final=True)
            self._loop.served(step, usage, asked.late_s)
        return wire.Released(known=True)

    def close(self) -> None:
        """Nobody is waited for any more."""
        for ticket in self._tickets.values():
            self._rest(ticket)

    def _arrive(self, asked: wire.Acquire, body: Body) -> Step:
        whose = Whose(
            run=asked.run,
            trajectory=asked.trajectory,
            source="acquire",
            rollout=asked.rollout,
            group=asked.group,
            sample=asked.sample,
            task=asked.task,
            step=asked.step,
            final=asked.final,
            trace=parse_trace(asked.traceparent),
        )
        call = Call(
            prompt_tokens=body.prompt_tokens or asked.prompt_tokens,
            ids=body.ids or None,
            model=asked.model,
            client_rid=asked.rid,
        )
        return self._loop.arrive(whose, call)

    def _held(self, step: Step) -> wire.Acquired:
        held_s = (self._loop.clock.now_ns() - step.arrived_ns) / 1e9
        return wire.Acquired(
            granted=False, trajectory=step.trajectory.id, step=step.index, held_s=max(held_s, 0.0)
        )

    def _said(self, step: Step, grant: Grant) -> wire.Acquired:
        return wire.Acquired(
            granted=True,
            trajectory=step.trajectory.id,
            step=step.index,
            held_s=step.held_s,
            worker=grant.worker.id,
            url=grant.worker.url,
            rid=grant.rid,
            priority=grant.priority,
            decision=grant.decision,
            because=grant.because,
            traceparent=step_traceparent(step),
        )

    def _wait(self, ticket: _Ticket) -> None:
        if ticket.waiters or self._tickets.get(ticket.key) is not ticket:
            return
        delay_s = LEASE_S if ticket.step.granted else ALONE_S
        ticket.timer = asyncio.get_running_loop().call_later(delay_s, self._expire, ticket)

    def _rest(self, ticket: _Ticket) -> None:
        if ticket.timer is not None:
            ticket.timer.cancel()
            ticket.timer = None

    def _expire(self, ticket: _Ticket) -> None:
        self._forget(ticket)
        never = "never_released" if ticket.step.granted else "client_left"
        self._loop.drop(ticket.step, never)

    def _forget(self, ticket: _Ticket) -> None:
        self._rest(ticket)
        if self._tickets.get(ticket.key) is ticket:
            del self._tickets[ticket.key]
        if ticket.step.granted is not None:
            self._granted.pop(ticket.step.granted.rid, None)


async def _within(step: Step, deadline_s: float) -> Grant:
    """Its grant; TimeoutError after that many seconds."""
    # Most are decided at the end of this turn of the event loop: 100 us without timer and shield.
    await asyncio.sleep(0)
    if step.grant.done():
        return step.grant.result()
    return await asyncio.wait_for(asyncio.shield(step.grant), deadline_s)


def _body(asked: wire.Acquire | wire.Release) -> Body:
    return Body({}, _joined(asked.input_ids))


def _joined(ids: list[int] | None) -> bytes | None:
    return ",".join(map(str, ids)).encode() if ids else None


def _usage(asked: wire.Release) -> Usage:
    usage = of_meta(asked.meta_info) if asked.meta_info is not None else Usage()
    usage.input_tokens = usage.input_tokens or asked.input_tokens
    usage.output_tokens = usage.output_tokens or asked.output_tokens
    if usage.cached_tokens is None:
        usage.cached_tokens = asked.cached_tokens
    if asked.output_ids:
        usage.output_ids = _joined(asked.output_ids)
        usage.output_tokens = usage.output_tokens or len(asked.output_ids)
    usage.policy_version = asked.policy_version or usage.policy_version
    if asked.error == TRAINERS_ABORT:
        usage.finish_reason = "abort"
    if usage.input_tokens < 0 or usage.output_tokens < 0:
        message = "meta_info counts tokens below zero"
        raise BadRequest(message)
    return usage
