"""How fast is a fleet in virtual time, and does one engine process keep up with its own clock?

The first is CPU seconds of one core for the issue's rollout through the real loop. The second is
one `heddle engine` at x20 with 256 streams that all end at once, the worst moment for it: how late
it handed anything out, by its own account, beside what a client in this process saw.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson

from heddle.app.bench.figures import Figure, Say
from heddle.app.supervise import free_port
from heddle.controller.clock import Clock
from heddle.controller.emulator import engine
from heddle.controller.emulator.records import RolloutResult
from heddle.controller.emulator.rollout import run_rollout
from heddle.controller.emulator.workload import generate

STREAMS: Final = 256
TOKENS: Final = 4_000
SPEED: Final = 20.0
READY_S: Final = 60.0
LAYOUT: Final = (4,) * 16


def run(*, quick: bool, say: Say) -> dict[str, Figure]:
    """The issue's numbers; --quick plays an eighth of the rollout on an eighth of the GPUs."""
    say("a rollout in virtual time")
    groups, layout = (50, LAYOUT[:2]) if quick else (400, LAYOUT)
    workload = generate("math", groups=groups)
    gc.collect()
    gc.freeze()
    result = run_rollout(workload, preset="verl", gpus=sum(layout), layout=layout, seed=1)
    gc.unfreeze()
    streams = 32 if quick else STREAMS
    say(f"{streams} streams of one engine")
    lag = asyncio.run(_streams(streams))
    return {**_virtual(result), **_clock(lag)}


def _virtual(result: RolloutResult) -> dict[str, Figure]:
    steps = len(result.steps)
    note = (
        f"{len(result.trajectories):,} trajectories, {steps:,} steps, {result.gpus} GPUs, preset "
        f"verl, one core, {_built()}; truth {result.truth_hash}, workload {result.workload_hash}"
    )
    scaled = result.cpu_s * 33_000 / steps
    return {
        "virtual_rollout_s": Figure(scaled, "CPU s for 33,000 steps", 3, "lower", note),
        "virtual_events_per_s": Figure(result.events / result.cpu_s, "/s", 40_000, "higher", note),
    }


def _built() -> str:
    return "pure Python" if (engine.__file__ or "").endswith(".py") else "compiled (HEDDLE_COMPILE)"


@dataclass(slots=True)
class _Lag:
    """Fleet seconds."""

    engine_s: float
    client_s: float
    whole_s: float
    streams: int


def _clock(lag: _Lag) -> dict[str, Figure]:
    note = (
        f"{lag.streams} streams of {TOKENS:,} tokens that end at once, x{SPEED:g}; the client saw "
        f"its last one {lag.client_s:.2f} of {lag.whole_s:.1f} fleet s late"
    )
    share = 100 * lag.engine_s / lag.whole_s
    return {"stream_clock_lag_percent": Figure(share, "%", 2, "lower", note)}


async def _streams(count: int) -> _Lag:
    origin_ns, port = time.time_ns(), free_port()
    command = [sys.executable, "-m", "heddle.app.cli", "engine", "--port", str(port)]
    command += ["--degree", "8", "--clock-origin-ns", str(origin_ns), "--clock-speed", str(SPEED)]
    # What an engine tells of its life goes to stdout, where --json is to be read.
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    clock, url = Clock(origin_ns, SPEED), f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await _ready(session, url)
            seen = await asyncio.gather(*(_one(session, url, clock, i) for i in range(count)))
            async with session.get(f"{url}/server_info") as reply:
                engine_s = (await reply.json())["clock_lag_s"]
    finally:
        process.terminate()
        process.wait()
    return _Lag(engine_s, max(late for late, _ in seen), max(whole for _, whole in seen), count)


async def _ready(session: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(READY_S):
        while True:
            try:
                async with session.get(f"{url}/health"):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)


async def _one(
    session: aiohttp.ClientSession, url: str, clock: Clock, number: int
) -> tuple[float, float]:
    """How late its last byte came and how long the engine says it took, in fleet seconds."""
    body = {
        "input_ids": [number + 1] * 200,
        "stream": True,
        "sampling_params": {"max_new_tokens": TOKENS, "ignore_eos": True},
    }
    tail: list[bytes] = []
    async with session.post(f"{url}/generate", json=body) as reply:
        async for chunk in reply.content.iter_any():
            # The last event with all its ids is at most 12 bytes an id long.
            tail.append(chunk)
            while len(tail) > 1 and sum(map(len, tail[1:])) > 12 * TOKENS:
                del tail[0]
    late_s = clock.now_ns() / 1e9
    meta = _last(b"".join(tail))["meta_info"]
    return late_s - meta["request_finished_ts"], meta["e2e_latency"]


def _last(raw: bytes) -> dict[str, Any]:
    events = [line for line in raw.split(b"\n") if line.startswith(b"data: {")]
    return orjson.loads(events[-1].removeprefix(b"data: "))
