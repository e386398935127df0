"""What stands behind the router and the controller while they are measured?

An engine that answers at once with SGLang's field names, whole or as a stream, as one process; the
load that asks; and what a process has used of the CPU.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
import psutil

from heddle.app.compose import answers
from heddle.app.errors import fail

META: Final = {
    "id": "x",
    "finish_reason": {"type": "length", "length": 4},
    "prompt_tokens": 256,
    "completion_tokens": 4,
    "cached_tokens": 128,
    "num_retractions": 0,
    "weight_version": "v1",
    "e2e_latency": 0.0001,
    "queue_time": 0.00001,
    "forward_entry_time": 1.0,
    "prefill_finished_time": 1.00005,
    "request_finished_ts": 1.0001,
}
ANSWER: Final = orjson.dumps({"text": "abcd", "output_ids": [1, 2, 3, 4], "meta_info": META})
INFO: Final = orjson.dumps(
    {"served_model_name": "stub", "model_path": "stub", "tp_size": 1, "dp_size": 1,
     "max_total_num_tokens": 100_000_000, "max_running_requests": 4096}
)  # fmt: skip
"""Room for everybody: what is measured is the way through, not who is held."""
SLOW_EVENTS: Final = 24
SLOW_S: Final = 1.0
"""A stream of at least that many events has these pauses, so that thousands are open at once..."""
FAST_S: Final = 0.005
"""... and a shorter one these."""
EVENT: Final = b"data: " + ANSWER + b"\n\n"


async def engine(scope: Any, receive: Any, send: Any) -> None:
    """The stub as an ASGI application."""
    if scope["type"] != "http":
        return
    raw, more = b"", True
    while more:
        message = await receive()
        raw, more = raw + message.get("body", b""), message.get("more_body", False)
    if b'"stream":true' in raw:
        await _streamed(orjson.loads(raw)["sampling_params"]["max_new_tokens"], send)
        return
    body = ANSWER if scope["path"] == "/generate" else INFO
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _streamed(events: int, send: Any) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(events):
        await send({"type": "http.response.body", "body": EVENT, "more_body": True})
        await asyncio.sleep(SLOW_S if events >= SLOW_EVENTS else FAST_S)
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


@contextmanager
def serving(command: list[str], health: str, log: Path) -> Generator[psutil.Process]:
    """A process that answers, for as long as the block lasts."""
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 90
        while not answers(health):
            if process.poll() is not None or time.monotonic() > deadline:
                fail(f"{command[0]} did not start: {log.read_text(errors='replace')[-400:]}")
            time.sleep(0.1)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def stub_command(port: int) -> list[str]:
    """Serves the stub without logs."""
    served = "heddle.app.bench.route_stub:engine"
    settings = ["--loop", "uvloop", "--http", "httptools", "--log-level", "error"]
    settings += ["--backlog", "8192"]
    return [sys.executable, "-m", "uvicorn", served, "--port", str(port), *settings]


@dataclass(frozen=True, slots=True)
class Load:
    """One measurement: latencies in seconds, the target's CPU seconds, how long it took."""

    latencies_s: list[float]
    cpu_s: float
    wall_s: float

    @property
    def cpu_us(self) -> float:
        """CPU microseconds a request."""
        return self.cpu_s / len(self.latencies_s) * 1e6


def body_of(ids: int, **more: Any) -> bytes:
    """A request of that many token ids."""
    sampling = {"max_new_tokens": 4}
    known = {"input_ids": [1000 + i % 9000 for i in range(ids)], "sampling_params": sampling}
    return orjson.dumps({**known, **more})


async def load(
    url: str,
    body: bytes,
    *,
    requests: int,
    clients: int,
    process: psutil.Process | None,
    headers: Callable[[int], dict[str, str]] = lambda _: {},
) -> Load:
    """Closed loop: each client asks again as soon as it is answered."""
    latencies: list[float] = []
    numbers = iter(range(requests))

    async def client(http: aiohttp.ClientSession) -> None:
        for number in numbers:
            said = {"Content-Type": "application/json", **headers(number)}
            began = time.perf_counter()
            async with http.post(url, data=body, headers=said) as reply:
                await reply.read()
            if reply.status != 200:
                fail(f"{url} answered {reply.status}")
            latencies.append(time.perf_counter() - began)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        before, began = cpu_s(process), time.perf_counter()
        await asyncio.gather(*(client(http) for _ in range(clients)))
        wall_s = time.perf_counter() - began
    return Load(latencies, cpu_s(process) - before, wall_s)


def cpu_s(process: psutil.Process | None) -> float:
    """CPU seconds that its threads and its children's have used, to the nanosecond: the clock of
    /proc/PID/stat has steps of 10 ms, which is 100 requests of the router."""
    if process is None:
        return 0.0
    tasks = [
        task
        for each in (process, *process.children(recursive=True))
        for task in Path(f"/proc/{each.pid}/task").iterdir()
    ]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
