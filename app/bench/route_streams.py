"""How many streams stay open through the controller, what do they weigh, how soon do they begin?

Thousands, begun within RAMP_S, whose events come a second apart: every one must end whole.
Then one after the other over connections that are used again, SGLang's own router beside.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import aiohttp
import numpy as np
import psutil

from heddle.app.bench.figures import Figure
from heddle.app.bench.route_stub import SLOW_EVENTS, body_of

OPEN: Final = 2_000
QUICK_OPEN: Final = 300
RAMP_S: Final = 4.0
"""A sixth of what one stream lasts, so that all are open at once in the end."""
CLIENTS: Final = 4
EVENTS: Final = 4
ROUTER: Final = "HEDDLE_ROUTER_PYTHON"
ALONE: Final = f"no router beside ({ROUTER} names none): a fixed target, whatever the machine"
Targets = dict[str, tuple[str, psutil.Process | None]]
"""direct, heddle and, where there is one, router: address and process."""


@dataclass(slots=True)
class _Seen:
    """What the streams did."""

    whole: int = 0
    failed: int = 0
    open: int = 0
    most_open: int = 0
    peak_mb: float = 0.0
    why: set[str] = field(default_factory=set[str])


def streamed(ids: int, events: int) -> bytes:
    """A request whose answer is a stream of so many events."""
    return body_of(ids, stream=True, sampling_params={"max_new_tokens": events})


async def opened(url: str, process: psutil.Process, streams: int) -> dict[str, Figure]:
    """All at once."""
    seen = _Seen()
    timeout = aiohttp.ClientTimeout(total=300)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        weighing = asyncio.create_task(_weigh(process, seen))
        begins = ((number, number / streams * RAMP_S) for number in range(streams))
        await asyncio.gather(*(_one(http, url, n, at_s, seen) for n, at_s in begins))
        weighing.cancel()
    said = f"{seen.whole} whole, {seen.most_open} open at once"
    why = f"; {', '.join(sorted(seen.why))[:120]}" if seen.why else ""
    return {
        "open_streams_failed": Figure(seen.failed, "", 0, "lower", f"of {streams}: {said}{why}"),
        "open_streams_memory_mb": Figure(seen.peak_mb, "MB", 250, "lower", f"resident; {said}"),
    }


async def _one(
    http: aiohttp.ClientSession, url: str, number: int, at_s: float, seen: _Seen
) -> None:
    # Final: what is measured afterwards must not carry thousands of live trajectories along.
    headers = {"Content-Type": "application/json", "X-Heddle-Run": "streams", "X-Heddle-Final": "1"}
    headers |= {"X-Heddle-Trajectory-Id": f"s{number}", "X-Heddle-Group-Id": f"g{number // 16}"}
    body, told = streamed(256, SLOW_EVENTS), 0
    await asyncio.sleep(at_s)
    try:
        async with http.post(f"{url}/generate", data=body, headers=headers) as reply:
            seen.open += 1
            seen.most_open = max(seen.most_open, seen.open)
            async for line in reply.content:
                told += line.startswith(b"data: ")
            seen.open -= 1
            if reply.status != 200:
                seen.why.add(f"status {reply.status}")
    except (aiohttp.ClientError, asyncio.TimeoutError) as error:
        seen.why.add(type(error).__name__)
    whole = told == SLOW_EVENTS + 1
    seen.whole, seen.failed = seen.whole + whole, seen.failed + (not whole)


async def _weigh(process: psutil.Process, seen: _Seen) -> None:
    while True:
        seen.peak_mb = max(seen.peak_mb, process.memory_info().rss / 1e6)
        await asyncio.sleep(0.2)


async def first_events(targets: Targets, streams: int) -> dict[str, Figure]:
    """The time to the first event, interleaved."""
    took: dict[str, list[float]] = {name: [] for name in targets}
    for _ in range(4):
        for name, (url, _process) in targets.items():
            took[name] += await _firsts(url, streams // 4)
    p99 = {name: float(np.percentile(seconds, 99)) * 1e3 for name, seconds in took.items()}
    beside = ", ".join(f"{name} {ms:.1f} ms" for name, ms in p99.items() if name != "heddle")
    return first_event(p99, f"{streams} streams, {CLIENTS} clients; {beside}")


def first_event(p99: Mapping[str, float], note: str) -> dict[str, Figure]:
    """Held against the router's; where none stands beside, against a fixed figure that says so."""
    target = p99.get("router", 50.0)
    note = note if "router" in p99 else f"{note}; {ALONE}"
    return {"first_event_p99_ms": Figure(p99["heddle"], "ms", round(target, 1), "lower", note)}


async def _firsts(url: str, streams: int) -> list[float]:
    numbers, took = iter(range(streams)), list[float]()
    body = streamed(256, EVENTS)

    async def client(http: aiohttp.ClientSession) -> None:
        for number in numbers:
            headers = {"Content-Type": "application/json", "X-Heddle-Run": "firsts"}
            headers["X-Heddle-Trajectory-Id"] = f"f{number % 64}"
            began = time.perf_counter()
            async with http.post(f"{url}/generate", data=body, headers=headers) as reply:
                await reply.content.readany()
                took.append(time.perf_counter() - began)
                await reply.read()

    async with aiohttp.ClientSession() as http:
        await asyncio.gather(*(client(http) for _ in range(CLIENTS)))
    return took
