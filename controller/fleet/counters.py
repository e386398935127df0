"""What do the engines count themselves, every few seconds, while a rollout is open?

Polls `/metrics` and `/v1/loads` of every worker and sends each poll as a zero-length
`heddle.counters` span over the controller's own emitter: durable, batched and bounded like every
span, no second way into the store. A worker that does not answer is a span with an error, from
which the collector learns when it was down. Nothing is polled while no rollout is open.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from heddle.collector import conventions as c
from heddle.collector import ids
from heddle.collector.prometheus import readings
from heddle.controller.clock import Clock
from heddle.controller.dataplane.spans import Spans
from heddle.controller.errors import EngineError
from heddle.controller.fleet.engine import Engine
from heddle.controller.fleet.workers import Fleet
from heddle.controller.live import LiveWorker

PERIOD_S: Final = 5.0
"""Wall seconds between polls of a worker; SGLang publishes its idle counter once a second."""
ANSWER_S: Final = 5.0


class CounterPoller:
    """Polls while it runs; `polls` and `failures` count what it did."""

    def __init__(
        self,
        fleet: Fleet,
        clock: Clock,
        spans: Spans,
        open_rollouts: Callable[[], Mapping[str, str]],
        period_s: float = PERIOD_S,
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._spans = spans
        self._open = open_rollouts
        self._period_s = period_s
        self._task: asyncio.Task[None] | None = None
        self.polls = 0
        self.failures = 0

    def start(self) -> None:
        """Begin to poll."""
        self._task = asyncio.create_task(self._polling(), name="heddle-counters")

    async def close(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def poll(self) -> None:
        """Every worker once, all at the same time."""
        rollouts = dict(self._open())
        if rollouts:
            workers = list(self._fleet.workers.values())
            await asyncio.gather(*(self._one(worker, rollouts) for worker in workers))

    async def _polling(self) -> None:
        while True:
            await self.poll()
            await asyncio.sleep(self._period_s)

    async def _one(self, worker: LiveWorker, rollouts: Mapping[str, str]) -> None:
        error: str | None = None
        said: dict[str, float] = {}
        at_ns = self._clock.now_ns()
        try:
            said = await asyncio.wait_for(counters(worker.wire), ANSWER_S)
        except (EngineError, TimeoutError) as failure:
            error = type(failure).__name__
            self.failures += 1
        except Exception as failure:  # noqa: BLE001 (one strange answer must not end all polls)
            error = type(failure).__name__
            self.failures += 1
        self.polls += 1
        for run, rollout in rollouts.items():
            self._send(worker, run, rollout, at_ns, said, error)

    def _send(
        self,
        worker: LiveWorker,
        run: str,
        rollout: str,
        at_ns: int,
        said: Mapping[str, float],
        error: str | None,
    ) -> None:
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": c.COUNTERS,
            "heddle.run.id": run,
            "heddle.rollout.id": rollout,
            "heddle.worker.id": worker.id,
            "heddle.degree": worker.degree,
            "heddle.clock.speed": self._clock.speed,
            **{f"heddle.counter.{name}": value for name, value in said.items()},
        }
        self._spans.emit(
            c.COUNTERS,
            trace_id=ids.trace_id(run, f"rollout/{rollout}"),
            span_id=ids.span_id(run, "counters", worker.id, at_ns),
            parent_span_id=ids.span_id(run, "rollout", rollout),
            start_ns=at_ns,
            end_ns=at_ns,
            attributes=attributes,
            error=error,
        )


async def counters(engine: Engine) -> dict[str, float]:
    """Totals from /metrics (an engine without it says none), gauges from /v1/loads, which is
    computed when asked and so is never stale."""
    # SGLang compresses /metrics when it may, and the session unpacks nothing.
    reply = await engine.send("/metrics", b"", {"Accept-Encoding": "identity"})
    said = readings(reply.body.decode(errors="replace")) if reply.status < 400 else {}
    load = await engine.observe()
    said |= {"running": float(load.running), "queue": float(load.queued)}
    if load.kv_tokens:
        said["kv_usage"] = load.kv_used_tokens / load.kv_tokens
    return said
