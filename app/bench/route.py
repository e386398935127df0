"""What does Heddle's data plane cost beside SGLang's own router, on this machine?

A stub engine, the controller and, where HEDDLE_ROUTER_PYTHON names a Python that has
sglang-router 0.3.2, the stock router side by side; closed loop, medians over interleaved rounds.
Then streams, acquire and release, and switches that come while steps do.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import orjson
import psutil
import uvloop

from heddle.app.bench.figures import Figure, Say
from heddle.app.bench.route_decide import LIVE, WORKERS, decisions, pauses
from heddle.app.bench.route_streams import (
    ALONE,
    OPEN,
    QUICK_OPEN,
    ROUTER,
    Targets,
    first_events,
    opened,
)
from heddle.app.bench.route_stub import Load, body_of, cpu_s, load, serving, stub_command
from heddle.app.bench.route_switch import switched
from heddle.app.supervise import free_port
from heddle.controller.fleet.links import EngineLinks
from heddle.controller.pauses import keep_short

AGENTS: Final = 256
SIZES: Final = {"256_ids": 256, "8k_ids": 8192}


def run(*, quick: bool, say: Say) -> dict[str, Figure]:
    """Decisions in this process, then requests through real ones."""
    steps, rounds = (1_000, 1) if quick else (6_400, 3)
    say(f"decisions with {LIVE} live trajectories")
    found = _decided(steps)
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder, ExitStack() as exits:
        targets = _targets(exits, Path(folder))
        url, process = targets["heddle"]
        # Before the long prompts, which the controller keeps for moves.
        streams = QUICK_OPEN if quick else OPEN
        say(f"{streams} open streams")
        found |= asyncio.run(opened(url, process, streams)) if process is not None else {}
        for name, ids in SIZES.items():
            say(f"requests of {ids} ids")
            found |= asyncio.run(_compared(targets, name, ids, rounds, 200 if quick else 1000))
        say("acquire and release")
        found |= uvloop.run(_acquired(url, process, 200 if quick else 1000))
        say("switches under load")
        token = (Path(folder) / "token").read_text("utf-8").strip()
        found |= asyncio.run(switched(url, token, 10 if quick else 50))
        say("first events")
        found |= asyncio.run(first_events(targets, 80 if quick else 800))
    return found


def _decided(steps: int) -> dict[str, Figure]:
    note = f"{LIVE} live, {WORKERS} workers, arrival to grant"
    # As the controller runs: on its event loop, with its pace of collecting garbage.
    keep_short()
    home = uvloop.run(decisions(preset="verl", steps=steps))
    planning = uvloop.run(decisions(preset="heddle", steps=steps))
    return {
        "decision_p50_us": _us(home, 50, 30, note),
        "decision_p99_us": _us(home, 99, 200, note),
        "decision_p99_replanning_us": _us(planning, 99, 2000, f"preset heddle; {note}"),
        **_pauses(steps / 640),
    }


def _pauses(seconds: float) -> dict[str, Figure]:
    """How long the event loop stood still while whole pictures were decided on."""
    apart, made = uvloop.run(pauses(asyncio.to_thread, seconds))
    there, _ = uvloop.run(pauses(None, seconds))
    note = (
        f"{made} full decisions of {LIVE} in {seconds:g} s, in a thread; the worst pause of a task "
        f"that sleeps 1 ms at a time; made on the loop itself: {max(there) * 1e3:.1f} ms"
    )
    return {"decision_pause_worst_ms": Figure(max(apart) * 1e3, "ms", 10, "lower", note)}


def _us(taken_s: list[float], percentile: float, target: float, note: str) -> Figure:
    value = float(np.percentile(taken_s, percentile)) * 1e6
    return Figure(value, "us", target, "lower", note)


def _targets(exits: ExitStack, folder: Path) -> Targets:
    stub, own = free_port(), free_port()
    at = f"http://127.0.0.1:{stub}"
    exits.enter_context(serving(stub_command(stub), f"{at}/health", folder / "stub.log"))
    heddle = f"http://127.0.0.1:{own}"
    command = [sys.executable, "-m", "heddle.app.cli", "control", "--port", str(own)]
    # Nobody listens at the collector's address: spans are made, encoded and spooled.
    command += ["--collector", f"http://127.0.0.1:{free_port()}", "--data", str(folder)]
    command += ["--worker", at]
    process = exits.enter_context(serving(command, f"{heddle}/health", folder / "heddle.log"))
    targets: Targets = {"direct": (at, None), "heddle": (heddle, process)}
    python = os.environ.get(ROUTER)
    if python:
        port = free_port()
        router = f"http://127.0.0.1:{port}"
        command = [python, "-m", "sglang_router.launch_router", "--worker-urls", at]
        command += ["--policy", "round_robin", "--port", str(port), "--log-level", "error"]
        command += ["--prometheus-port", str(free_port()), "--disable-health-check"]
        process = exits.enter_context(serving(command, f"{router}/health", folder / "router.log"))
        targets["router"] = (router, process)
    return targets


async def _compared(
    targets: Targets, name: str, ids: int, rounds: int, requests: int
) -> dict[str, Figure]:
    body = body_of(ids)
    seen: dict[str, list[Load]] = {which: [] for which in targets}
    alone: dict[str, list[float]] = {which: [] for which in targets}
    for round_ in range(rounds):
        for which, (url, process) in targets.items():
            said = partial(_headers, round_)
            ask = partial(load, f"{url}/generate", body, process=process, headers=said)
            # Every agent has had its first step: that one needs a full decision.
            await ask(requests=AGENTS, clients=8)
            seen[which].append(await ask(requests=requests, clients=16))
            one = await ask(requests=requests // 4, clients=1)
            alone[which].append(median(one.latencies_s))
    cpu = {which: median(x.cpu_us for x in loads) for which, loads in seen.items()}
    added = {which: (median(v) - median(alone["direct"])) * 1e6 for which, v in alone.items()}
    return _figures(name, cpu, added)


def _headers(round_: int, number: int) -> dict[str, str]:
    agent = number % AGENTS
    return {
        "X-Heddle-Run": "bench",
        "X-Heddle-Trajectory-Id": f"t{round_}-{agent}",
        "X-Heddle-Group-Id": f"g{round_}-{agent // 16}",
    }


def _figures(name: str, cpu: dict[str, float], added: dict[str, float]) -> dict[str, Figure]:
    small = name == "256_ids"
    alone = "" if "router" in cpu else f"; {ALONE}"
    note = f"identity, decision and span included{alone}"
    once = f"one client{alone}"
    figures = {
        f"cpu_us_{name}": Figure(cpu["heddle"], "us", 400 if small else 1000, "lower", note),
        f"added_p50_us_{name}": Figure(added["heddle"], "us", 2000, "lower", once),
    }
    if small:
        rate, said = 1e6 / cpu["heddle"], f"1 / CPU a request{alone}"
        figures["requests_per_core_s"] = Figure(rate, "1/s", 2500, "higher", said)
    if "router" in cpu:
        beside = f"sglang-router: {cpu['router']:.0f} us"
        ratio = cpu["heddle"] / cpu["router"]
        target = 2.5 if small else 0.3
        figures[f"cpu_ratio_{name}"] = Figure(ratio, "x", target, "lower", beside)
        beside = f"sglang-router adds {added['router']:.0f} us"
        ratio = added["heddle"] / max(added["router"], 1.0)
        target = 2.0 if small else 0.5
        figures[f"added_p50_ratio_{name}"] = Figure(ratio, "x", target, "lower", beside)
    return figures


async def _acquired(url: str, process: psutil.Process | None, pairs: int) -> dict[str, Figure]:
    taken, json = list[float](), {"content-type": "application/json"}
    # A client of 60 us: aiohttp's takes 300 a call, more than what is measured.
    http = EngineLinks(f"{url}/heddle/v1")
    before_s = cpu_s(process)
    for number in range(pairs):
        began = time.perf_counter()
        asked = {"run": "bench", "trajectory": f"a{number % 64}", "prompt_tokens": 256}
        reply = await http.send("/acquire", orjson.dumps(asked), json)
        rid = orjson.loads(reply.body)["rid"]
        await http.send("/release", orjson.dumps({"rid": rid, "output_tokens": 4}), json)
        taken.append(time.perf_counter() - began)
    http.close()
    value = float(np.percentile(taken, 50)) * 1e3
    each_us = (cpu_s(process) - before_s) / pairs * 1e6
    note = f"both calls over one kept connection; {each_us:.0f} us of the controller's CPU"
    return {"acquire_release_p50_ms": Figure(value, "ms", 1, "lower", note)}
