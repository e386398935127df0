"""A launcher of emulated engines inside the test's own process, and a controller before it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

from app_server import TOKEN, Recorder, served

from heddle.controller.clock import Clock
from heddle.controller.emulator.http import EngineApp
from heddle.controller.emulator.request import EngineConfig
from heddle.controller.errors import LaunchFailed
from heddle.controller.fleet.launcher import Health, Started, nobody
from heddle.controller.service import App, ControllerConfig, create_app

SPEED = 50.0


class InProcess:
    """Engines as tasks; `refuses` are degrees that never come up."""

    kind = "local"
    why_not = ""

    def __init__(self, nodes, clock, launch_s=0.0):
        self.nodes, self.clock, self.launch_s = nodes, clock, launch_s
        self.refuses: set[int] = set()
        self.ended = self.returned = nobody
        self.running: dict[str, tuple[Any, Any]] = {}
        self.log: list[tuple[str, str]] = []

    async def open(self):
        pass

    async def start(self, worker_id, place):
        await self.clock.sleep(self.launch_s)
        if place.degree in self.refuses:
            raise LaunchFailed(f"the engine of worker {worker_id} exited with 1")
        config = EngineConfig(worker_id=worker_id, degree=place.degree)
        app = EngineApp(config, self.clock)
        server = served(app)
        url = await server.__aenter__()
        self.running[worker_id] = server, app
        self.log.append(("start", worker_id))
        return Started(worker_id=worker_id, url=url, degree=place.degree)

    async def end(self, worker_id):
        server, app = self.running.pop(worker_id, (None, None))
        if server is not None:
            self.log.append(("end", worker_id))
            await server.__aexit__(None, None, None)
            app.runner.close()

    def health(self):
        return {worker: Health("serving") for worker in self.running}

    async def stop(self):
        await asyncio.gather(*(self.end(w) for w in list(self.running)))


class Regrouped:
    """A controller with an in-process fleet."""

    def __init__(self, app: App, url: str, launcher: InProcess, spans: Recorder) -> None:
        self.app, self.url, self.launcher, self.spans = app, url, launcher, spans

    @property
    def up(self) -> Any:
        return self.app.up

    def degrees(self) -> list[int]:
        return [w.degree for w in self.up.fleet.workers.values()]


@contextlib.asynccontextmanager
async def fleet_stack(nodes, launch_s=0.0, host_bytes=(), **config):
    """`async with fleet_stack((8,)) as f:`"""
    clock = Clock(1_700_000_000_000_000_000, SPEED)
    clock = replace(clock, origin_ns=Clock().now_ns())
    launcher, spans = InProcess(nodes, clock, launch_s), Recorder()
    chosen = {"preset": "verl", "gpus": sum(nodes), "host_bytes": host_bytes, **config}
    app = create_app(
        ControllerConfig(token=TOKEN, spans=spans, clock=clock, launcher=launcher, **chosen)
    )
    async with served(app) as url:
        yield Regrouped(app, url, launcher, spans)
