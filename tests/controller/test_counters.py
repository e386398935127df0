"""Are the engines' counters polled into spans while a rollout is open, and failures with them?"""

from __future__ import annotations

import asyncio
from typing import Any

from heddle.controller.clock import Clock
from heddle.controller.errors import EngineLost
from heddle.controller.fleet.counters import CounterPoller, counters
from heddle.controller.fleet.engine import EngineLoad, Reply

TEXT = b"""# TYPE sglang:forward_execution_seconds_total counter
sglang:forward_execution_seconds_total{tp_rank="0",category="decode"} 12.5
sglang:num_running_reqs{tp_rank="0"} 99
"""


class Polled:
    """An engine that is only asked."""

    def __init__(self, status: int = 200, lost: bool = False) -> None:
        self.url, self.status, self.lost = "http://engine", status, lost

    async def send(self, path: str, body: bytes, headers: Any) -> Reply:
        if self.lost:
            raise EngineLost("gone")
        # A genuine engine compresses unless told not to, and nobody unpacks.
        assert headers == {"Accept-Encoding": "identity"}
        return Reply(status=self.status, content_type="text/plain", body=TEXT)

    async def observe(self) -> EngineLoad:
        return EngineLoad(running=3, queued=1, kv_used_tokens=50, kv_tokens=200)


class Worker:
    def __init__(self, name: str, engine: Any) -> None:
        self.id, self.degree, self.engine, self.wire = name, 2, engine, engine


class Seen:
    def __init__(self) -> None:
        self.emitted: list[dict[str, Any]] = []

    def emit(self, name: str, **said: Any) -> None:
        self.emitted.append({"name": name, **said})

    def start(self, op: str, **said: Any) -> None:
        raise AssertionError(op)


class Fleet:
    def __init__(self, *workers: Worker) -> None:
        self.workers = {worker.id: worker for worker in workers}


def poll(rollouts: dict[str, str], *workers: Worker) -> tuple[Seen, CounterPoller]:
    seen = Seen()
    poller = CounterPoller(Fleet(*workers), Clock(), seen, lambda: rollouts)  # pyright: ignore[reportArgumentType]
    asyncio.run(poller.poll())
    return seen, poller


def test_totals_come_from_metrics_and_gauges_from_loads_which_are_never_stale():
    assert asyncio.run(counters(Polled())) == {  # pyright: ignore[reportArgumentType]
        "forward_s": 12.5,
        "running": 3.0,
        "queue": 1.0,
        "kv_usage": 0.25,
    }


def test_an_engine_without_metrics_still_says_its_load():
    assert asyncio.run(counters(Polled(404)))["running"] == 3.0  # pyright: ignore[reportArgumentType]


def test_every_worker_of_an_open_rollout_is_one_span_a_poll():
    seen, poller = poll({"r": "ro"}, Worker("w0", Polled()), Worker("w1", Polled(lost=True)))
    good, failed = seen.emitted
    assert (good["attributes"]["heddle.counter.forward_s"], good["error"]) == (12.5, None)
    assert good["start_ns"] == good["end_ns"]
    assert good["attributes"]["heddle.rollout.id"] == "ro"
    assert (failed["error"], failed["attributes"]["heddle.worker.id"]) == ("EngineLost", "w1")
    assert (poller.polls, poller.failures) == (2, 1)
    assert good["span_id"] != failed["span_id"]


def test_nothing_is_polled_while_no_rollout_is_open():
    assert poll({}, Worker("w0", Polled()))[0].emitted == []
