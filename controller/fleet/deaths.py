"""How long was an engine that took steps dead?

From the request that found it dead to its answering again, as a `heddle.down` span of every run
with an open rollout: its start marker at once, the span when it is back or the controller ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from heddle.collector import conventions as c
from heddle.collector import ids
from heddle.controller.clock import Clock
from heddle.controller.dataplane.spans import Spans
from heddle.controller.fleet.workers import Fleet, Told
from heddle.controller.live import LiveWorker

_ERROR: Final = "EngineDown"


class Deaths:
    """Listens to the fleet beside whoever listens already."""

    def __init__(
        self,
        fleet: Fleet,
        clock: Clock,
        spans: Spans,
        open_rollouts: Callable[[], Mapping[str, str]],
    ) -> None:
        self._clock = clock
        self._spans = spans
        self._open = open_rollouts
        self._down: dict[tuple[str, str], tuple[int, LiveWorker]] = {}
        """Run and worker id -> since when."""
        fleet.lost = _both(fleet.lost, self.died)
        fleet.back = _both(fleet.back, self.returned)

    def died(self, worker: LiveWorker) -> None:
        """Announce it to every run that may have had steps there."""
        since_ns = self._clock.now_ns()
        for run in self._open():
            self._down[run, worker.id] = since_ns, worker
            self._spans.start(
                c.DOWN, at_ns=since_ns, attributes=self._told(run, worker),
                **_place(run, worker, since_ns),
            )  # fmt: skip

    def returned(self, worker: LiveWorker) -> None:
        """It answers again."""
        for run, worker_id in [key for key in self._down if key[1] == worker.id]:
            self._end(run, worker_id)

    def close(self) -> None:
        """What is down now is known until now."""
        for run, worker_id in list(self._down):
            self._end(run, worker_id)

    def _end(self, run: str, worker_id: str) -> None:
        since_ns, worker = self._down.pop((run, worker_id))
        self._spans.emit(
            c.DOWN,
            start_ns=since_ns,
            end_ns=max(self._clock.now_ns(), since_ns),
            attributes=self._told(run, worker),
            error=_ERROR,
            **_place(run, worker, since_ns),
        )

    def _told(self, run: str, worker: LiveWorker) -> dict[str, Any]:
        return {
            "gen_ai.operation.name": c.DOWN,
            "heddle.run.id": run,
            "heddle.worker.id": worker.id,
            "heddle.degree": worker.degree,
            "heddle.clock.speed": self._clock.speed,
        }


def _place(run: str, worker: LiveWorker, since_ns: int) -> dict[str, str]:
    return {
        "trace_id": ids.trace_id(run, f"worker/{worker.id}"),
        "span_id": ids.span_id(run, "down", worker.id, since_ns),
    }


def _both(first: Told, second: Told) -> Told:
    def told(worker: LiveWorker) -> None:
        first(worker)
        second(worker)

    return told
