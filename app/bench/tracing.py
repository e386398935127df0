"""What does tracing cost a trainer, and what does verl's router cost a step?

CPU seconds of the calling thread a span (what the trainer pays), of the whole process (the sender's
thread too), a burst with a collector up, memory with it down, and acquire and release of 8,000
tokens through a Ray actor and a controller. Wall times mean little on a busy machine and say so.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import psutil

from heddle.app.bench.figures import Figure, Say
from heddle.app.bench.served import used_s
from heddle.app.compose import answers
from heddle.app.supervise import Supervisor, free_port
from heddle.collector.client import CollectorClient
from heddle.collector.tracing import Emitter, Tracer

BURST: Final = 50_000
QUICK_BURST: Final = 10_000
STEP_SPANS: Final = 3
"""A step's worth of spans in the trainer: the step, its tool call, a share of the trajectory's."""
STEP_S: Final = 1.0
"""A short step of an agent: the share is of this."""
TOKENS: Final = 8_000
ASKS: Final = 200
QUICK_ASKS: Final = 40
ROUNDS: Final = 4
PARTS: Final = ("acquire", "release")
Parts = dict[str, list[float]]
"""Seconds of each, in the order of asking."""
AT_ONCE: Final = 4
"""Trajectories the asks are steps of: contexts beyond an engine's KV would be held, and rightly."""


def run(*, quick: bool, say: Say, **more: Any) -> dict[str, Figure]:
    """Every figure of issue 11."""
    _ = more
    spans = QUICK_BURST if quick else BURST
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder:
        supervisor = Supervisor(Path(folder))
        try:
            ports = _stack(supervisor, Path(folder))
            say(f"a burst of {spans} tool calls with the collector up")
            burst = _burst(ports, spans)
            say("the same with nobody at the address")
            down = _down(spans)
            say(f"{QUICK_ASKS if quick else ASKS} times acquire and release over Ray")
            asked = _over_ray(ports, supervisor, Path(folder), QUICK_ASKS if quick else ASKS)
        finally:
            supervisor.stop()
    return {**burst, **down, **asked}


def _stack(supervisor: Supervisor, folder: Path) -> dict[str, str]:
    """Collector, controller and one emulated engine."""
    ports = {name: free_port() for name in ("otlp", "grpc", "queries", "controller", "engine")}
    url = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    (folder / "token").write_text("bench")
    words = ["collect", "--data", str(folder), "--http-port", str(ports["otlp"])]
    words += ["--grpc-port", str(ports["grpc"]), "--query-port", str(ports["queries"])]
    supervisor.start("collector", words)
    supervisor.start("engine", ["engine", "--port", str(ports["engine"])])
    words = ["control", "--port", str(ports["controller"]), "--data", str(folder)]
    words += ["--token-file", str(folder / "token"), "--collector", url["otlp"]]
    supervisor.start("controller", words)
    waits = {
        "collector": f"{url['queries']}/healthz",
        "engine": f"{url['engine']}/health",
        "controller": f"{url['controller']}/heddle/v1/healthz",
    }
    for name, health in waits.items():
        supervisor.wait(name, health, lambda health=health: answers(health), 90.0)
    return url


def _burst(url: dict[str, str], spans: int) -> dict[str, Figure]:
    emitter = Emitter(url["otlp"], service="bench")
    mine_s, all_s = _tools(emitter, "burst", spans)
    flushed = emitter.flush(300)
    emitter.close()
    with CollectorClient(url["queries"]) as client:
        stored = client.sql("SELECT count(*) AS n FROM spans WHERE op = 'execute_tool'")["n"][0]
    lost = spans - stored + emitter.dropped
    each_us = mine_s / spans * 1e6
    note = f"thread CPU, announced and ended; {all_s / spans * 1e6:.0f} us with the sender's thread"
    share = each_us * STEP_SPANS / 1e6 / STEP_S * 100
    return {
        "span_us": Figure(each_us, "us", 100, "lower", note),
        "share_of_step_percent": Figure(
            share, "%", 1, "lower", f"{STEP_SPANS} spans in a step of {STEP_S:g} s"
        ),
        "burst_lost": Figure(
            lost, "spans", 0, "lower", f"of {spans}; flushed in time: {'yes' if flushed else 'no'}"
        ),
    }


def _tools(emitter: Emitter, run: str, spans: int) -> tuple[float, float]:
    gc.collect()
    mine, whole = time.thread_time(), time.process_time()
    with Tracer(emitter, run, "r").trajectory("t", group="g", task="bench") as trajectory:
        for number in range(spans):
            with trajectory.tool("bash", step=number):
                pass
    return time.thread_time() - mine, time.process_time() - whole


def _down(spans: int) -> dict[str, Figure]:
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    emitter = Emitter(f"http://127.0.0.1:{free_port()}", service="bench")
    for _ in range(4):
        _tools(emitter, "down", spans)
    grown_mb = (process.memory_info().rss - before) / 1e6
    note = f"{8 * spans} messages at a dead address, {emitter.dropped} dropped and counted"
    emitter.close(0.5)
    return {"down_memory_mb": Figure(grown_mb, "MB", 300, "lower", note)}


def _over_ray(
    url: dict[str, str], supervisor: Supervisor, folder: Path, asks: int
) -> dict[str, Figure]:
    import ray

    from heddle.controller.verl_plugin.router import HeddleRouter

    _start(ray)
    with closing(_Ray(ray)):
        server = url["engine"].partition("://")[2]
        told = {"url": url["controller"], "run": "bench", "token_file": str(folder / "token")}
        router = HeddleRouter.remote({server: "no actor"}, {"heddle": told})
        bare = ray.remote(_Bare).remote()
        # The first ones begin the rollout and open connections.
        for actor in (router, bare):
            asyncio.run(_asks(actor, 5, {name: [] for name in PARTS}))
        here = {name: list[float]() for name in PARTS}
        asyncio.run(_here(told, server, asks, here))
        spent = _Spent(supervisor)
        took, alone = ({name: list[float]() for name in PARTS} for _ in range(2))
        for _ in range(ROUNDS):
            asyncio.run(_asks(bare, asks // ROUNDS, alone))
            spent.resume()
            asyncio.run(_asks(router, asks // ROUNDS, took))
            spent.pause()
        asked = len(took["acquire"])
        each_ms = {name: spent_s / asked * 1e3 for name, spent_s in spent.by.items()}
    return _verl(took, alone, here, each_ms)


def _verl(took: Parts, alone: Parts, here: Parts, each_ms: dict[str, float]) -> dict[str, Figure]:
    parts = ", ".join(f"{name} {ms:.1f}" for name, ms in each_ms.items())
    worst_ms = float(np.percentile(_whole(took), 99)) * 1e3
    note = (
        f"wall, {TOKENS} tokens; {_told(took)}; p99 {worst_ms:.1f} ms; CPU with settling: {parts}"
    )
    bare = (
        f"the same calls, in turns, of an actor that only answers: Ray's own part; {_told(alone)}"
    )
    own = f"the same router called in the asking process: Heddle's own part; {_told(here)}"
    return {
        "verl_acquire_release_ms": Figure(_whole_ms(took), "ms", 3, "lower", note),
        "bare_actor_ms": Figure(_whole_ms(alone), "ms", 3, "lower", bare),
        "verl_without_ray_ms": Figure(_whole_ms(here), "ms", 3, "lower", own),
    }


def _whole(parts: Parts) -> list[float]:
    return [sum(each) for each in zip(*parts.values(), strict=True)]


def _whole_ms(parts: Parts) -> float:
    return statistics.median(_whole(parts)) * 1e3


def _told(parts: Parts) -> str:
    return ", ".join(f"{name} {statistics.median(s) * 1e3:.1f}" for name, s in parts.items())


class _Bare:
    """A balancer that decides nothing: what Ray takes for the same calls, right now, here."""

    async def acquire_server(self, request_id: str, prompt_ids: list[int]) -> tuple[str, Any]:
        return "server", SimpleNamespace(rid=request_id, tokens=len(prompt_ids))

    async def settle(self, rid: str, said: dict[str, Any]) -> None:
        """Nothing."""

    async def release_server(self, server_id: str, request_id: str) -> None:
        """Nothing."""


class _Spent:
    """CPU seconds of the asking process, the router's actor and the controller, while it runs."""

    def __init__(self, supervisor: Supervisor) -> None:
        mine = psutil.Process()
        below = mine.children(recursive=True)
        (actor,) = [p for p in below if any("Router" in word for word in p.cmdline())]
        controller = psutil.Process(supervisor.children["controller"].process.pid)
        self._there = {"agent loop": mine, "router": actor, "controller": controller}
        self._before = self._seconds()
        self.by = dict.fromkeys(self._there, 0.0)

    def resume(self) -> None:
        """Count from here on."""
        self._before = self._seconds()

    def pause(self) -> None:
        """Count up to here."""
        now = self._seconds()
        self.by = {name: spent + now[name] - self._before[name] for name, spent in self.by.items()}

    def _seconds(self) -> dict[str, float]:
        return {name: used_s(process) for name, process in self._there.items()}


def _start(ray: Any, tries: int = 3) -> None:
    """Ray gives its own node 30 s to start and has no setting for it: a busy machine needs more."""
    for left in reversed(range(tries)):
        try:
            ray.init(
                address="local", num_cpus=2, include_dashboard=False,
                object_store_memory=200 << 20, log_to_driver=False, logging_level=logging.ERROR,
            )  # fmt: skip
        except Exception:
            ray.shutdown()
            if not left:
                raise
        else:
            return


async def _here(told: dict[str, str], server: str, asks: int, took: Parts) -> None:
    """The router's own code without Ray between it and who asks."""
    from heddle.controller.verl_plugin.router import Router

    router = Router({server: "no actor"}, {"heddle": {**told, "run": "here"}}, lambda: None)
    await _asks(_Here(router), 5, {name: [] for name in PARTS})
    await _asks(_Here(router), asks, took)
    await router.close()


class _Here:
    """Methods as on an actor handle, run in this process."""

    def __init__(self, router: Any) -> None:
        self._router = router

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._router, name)
        return SimpleNamespace(remote=lambda *a, **k: asyncio.ensure_future(method(*a, **k)))


async def _asks(router: Any, asks: int, took: Parts) -> None:
    """One step after the other: acquire, settle, release; verl awaits the first alone."""
    ids = list(range(TOKENS))
    for number in range(asks):
        name = f"t{number % AT_ONCE}"
        began = time.perf_counter()
        server, handle = await router.acquire_server.remote(name, prompt_ids=ids)
        took["acquire"].append(time.perf_counter() - began)
        said = {"input_tokens": TOKENS, "output_tokens": 1, "output_ids": [1]}
        began = time.perf_counter()
        settled = router.settle.remote(handle.rid, {**said, "at_s": time.time()})
        released = router.release_server.remote(server, name)
        took["release"].append(time.perf_counter() - began)
        await settled
        await released


class _Ray:
    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def close(self) -> None:
        self._ray.shutdown()
