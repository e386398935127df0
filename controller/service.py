"""How do the parts become one controller, and how is it served?

One ASGI application: data paths go straight to the proxy, everything else through the guard to the
control plane. Nothing here traces itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import uvicorn

from heddle.collector.tracing import Emitter
from heddle.controller.beliefs import Beliefs
from heddle.controller.benefit import Benefit
from heddle.controller.blocks import Blocks
from heddle.controller.clock import Clock
from heddle.controller.control import control_app
from heddle.controller.core.types import CoreError
from heddle.controller.costs import Costs
from heddle.controller.dataplane import asgi
from heddle.controller.dataplane.acquire import Acquired
from heddle.controller.dataplane.asgi import Message, Receive, Scope, Send
from heddle.controller.dataplane.direct import ACQUIRE, RELEASE, Direct
from heddle.controller.dataplane.proxy import Proxy, serves
from heddle.controller.dataplane.spans import Spans, StepSpans
from heddle.controller.dataplane.writes import OneWrite
from heddle.controller.errors import Conflict, ControllerError
from heddle.controller.events import Events
from heddle.controller.fleet.counters import CounterPoller
from heddle.controller.fleet.deaths import Deaths
from heddle.controller.fleet.launcher import Launcher
from heddle.controller.fleet.links import Links
from heddle.controller.fleet.local import LocalLauncher
from heddle.controller.fleet.ray_pool import RayLauncher
from heddle.controller.fleet.sglang import SglangEngine, open_session
from heddle.controller.fleet.static import StaticLauncher
from heddle.controller.fleet.template import Template
from heddle.controller.fleet.workers import Fleet
from heddle.controller.jobs import Jobs, Places
from heddle.controller.journal import Journal
from heddle.controller.laws import fetches, law_of, laws
from heddle.controller.layouts import Layouts
from heddle.controller.loop import Loop
from heddle.controller.pauses import keep_short
from heddle.controller.predictors import Predictors
from heddle.controller.reallocation import Reallocator
from heddle.controller.retraining import Retraining
from heddle.controller.rollouts import Rollouts
from heddle.controller.security import Guard, Refused
from heddle.controller.spool import Spool
from heddle.controller.switches import Switchboard
from heddle.controller.sync import WeightSyncs
from heddle.controller.tool_calls import ToolCalls
from heddle.controller.watchdog import WEDGED_S, Watchdog
from heddle.controller.weights import Weights
from heddle.models.latency import load_profile
from heddle.models.registry import Registry

KEEP_ALIVE_S: Final = 75
MAX_CONTROL_BYTES: Final = 4 << 20
"""A rollout that announces 20,000 groups is about 2 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """What a controller is started with; `launch_template` empty means engines are given."""

    host: str = "127.0.0.1"
    port: int = 8600
    collector: str | None = None
    """OTLP/HTTP address for spans."""
    collector_token: str | None = field(default=None, repr=False)
    """Opens the collector for spans."""
    collector_queries: str | None = None
    query_token: str | None = field(default=None, repr=False)
    """Opens the collector for questions."""
    data_dir: Path | None = None
    token: str = field(default="", repr=False)
    """Empty: a random one, written to data_dir/token."""
    workers: tuple[str, ...] = ()
    launch_template: tuple[str, ...] = ()
    degree_flags: Mapping[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])
    """What engines of a degree are started with beside the template."""
    engine_env: Mapping[int, Mapping[str, str]] = field(
        default_factory=dict[int, Mapping[str, str]]
    )
    """Environment of engines by degree; 0: of all."""
    fleet: Literal["local", "ray"] = "local"
    """Where engines of the template run."""
    ray_address: str | None = None
    """Of a running Ray cluster; None: one is started here."""
    host_bytes: tuple[int, ...] = ()
    """Memory of each node for weights of sleeping engines; none: engines are stopped."""
    gpus: int = 8
    model: str = "Qwen3-14B"
    system: str = "h100_sxm"
    first_port: int = 30000
    ready_s: float = 60.0
    preset: str = "heddle"
    seed: int = 0
    clock: Clock = field(default_factory=Clock)
    allowed_hosts: frozenset[str] = frozenset()
    allowed_origins: frozenset[str] = frozenset()
    open_registration: bool = False
    """Engines may register themselves without the token."""
    retrain_every: int = 0
    """Rollouts after which a predictor is trained again; 0: never by itself."""
    wedged_s: float = WEDGED_S
    """Wall seconds without progress after which an engine that answers is given up."""
    spans: Spans | None = None
    """Takes spans instead of the collector."""
    launcher: Launcher | None = None
    """Starts engines instead of what the other settings name."""


class NoSpans:
    """Where spans go when there is no collector."""

    def emit(self, name: str, **said: Any) -> None:
        """Nowhere."""

    def start(self, op: str, **said: Any) -> None:
        """Nowhere."""


class Controller:
    """Everything that lives while the application is up."""

    def __init__(self, config: ControllerConfig, token: str) -> None:
        self.config = config
        data = config.data_dir
        self.session = open_session()
        self.links = Links()
        self.journal = Journal(data / "controller.sqlite" if data else None)
        self.registry = Registry(data / "predictors") if data else None
        self.switchboard = Switchboard(self.journal, config.preset)
        self.emitter = _emitter(config)
        spans = Events(config.spans or self.emitter or NoSpans())
        self.spans = self.events = spans
        believed = laws(config.system, config.model)
        self.fleet = Fleet(
            config.clock,
            law_of(believed),
            lambda url: SglangEngine(url, self.session, self.links),
        )
        self.loop = Loop(
            clock=config.clock,
            rng=np.random.default_rng(config.seed),
            fleet=self.fleet,
            switchboard=self.switchboard,
            journal=self.journal,
            beliefs=Beliefs(config.collector_queries, config.query_token, self.registry),
            spans=StepSpans(spans, config.clock.speed),
            benefit=Benefit(fetches(config.system, config.model)),
        )
        self.predictors = Predictors(self.registry, self.journal, self.loop.beliefs)
        self.jobs = Jobs(_places(config), self.predictors.promote)
        self.launcher = _launcher(config)
        self.reallocator = self._reallocator(spans)
        layouts = Layouts(self.loop, self.reallocator, believed, config.gpus)
        self.rollouts = Rollouts(self.loop, believed, self.reallocator, layouts, spans)
        self.retraining = Retraining(self.jobs, config.retrain_every)
        self.rollouts.ended = self.retraining.rollout_ended
        self.syncs = WeightSyncs(config.clock, self.fleet, spans, self.loop.open_rollout)
        self.proxy = Proxy(self.loop, self.syncs, frozenset({token}))
        self.watchdog = Watchdog(self.fleet, self.loop.table, config.wedged_s)
        self.acquired = Acquired(self.loop, self.syncs)
        self.tool_calls = ToolCalls(config.clock, spans)
        self.direct = Direct(self.acquired)
        open_rollouts = self.loop.open_rollout
        self.deaths = Deaths(self.fleet, config.clock, spans, lambda: open_rollouts)
        self.counters = CounterPoller(self.fleet, config.clock, spans, lambda: open_rollouts)

    def _reallocator(self, spans: Spans) -> Reallocator:
        config = self.config
        blocks = Blocks(
            self.fleet.can,
            weight_bytes=load_profile(config.system, config.model).weight_bytes,
            host_bytes=config.host_bytes,
            why_not=self.launcher.why_not,
        )
        costs = Costs(self.journal, config.system, config.model)
        return Reallocator(self.loop, self.launcher, blocks, costs, Weights(), spans)

    async def start(self) -> None:
        """Take the given and the journaled workers in."""
        await self.launcher.open()
        if not self.launcher.nodes:
            known = {url: (i, degree) for i, url, degree in self.journal.workers()}
            given = [u.rstrip("/") for u in self.config.workers]
            for url in [*known, *given]:
                if self.fleet.at(url) is None:
                    worker_id, degree = known.get(url, (None, None))
                    # Of those that are only remembered, one that changed must not stop the start.
                    with contextlib.suppress(*() if url in given else (Conflict,)):
                        await self.fleet.join(worker_id, url, degree)
        self.loop.start()
        self.loop.steering.start()
        self.watchdog.start()
        self.counters.start()

    async def close(self) -> None:
        """End windows, answer who waits, stop what was launched."""
        await self.watchdog.close()
        await self.counters.close()
        self.deaths.close()
        self.rollouts.close()
        self.retraining.close()
        await self.jobs.close()
        self.acquired.close()
        await self.loop.close()
        await self.launcher.stop()
        self.links.close()
        await self.session.close()
        if self.emitter is not None:
            await asyncio.to_thread(self.emitter.close, 5.0)
        self.journal.close()


class App:
    """The ASGI application; a `Controller` exists between startup and shutdown."""

    def __init__(self, config: ControllerConfig) -> None:
        self.config = config
        self.token = _token(config)
        self.controller: Controller | None = None
        hosts = config.allowed_hosts | {config.host}
        self._guard = Guard(self.token, hosts, config.allowed_origins, config.open_registration)
        self._control = control_app(lambda: self.up)

    @property
    def up(self) -> Controller:
        """The controller; only while it is up."""
        if self.controller is None:
            message = "the controller is not up"
            raise ControllerError(message)
        return self.controller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection's request, or the life of the application."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = asgi.headers_of(scope)
        try:
            self._guard.check_page(headers)
            if serves(scope["path"]):
                await self.up.proxy.answer(scope, headers, receive, send)
                return
            self._guard.check_change(scope["method"], scope["path"], headers)
            if scope["method"] == "POST" and scope["path"] in (ACQUIRE, RELEASE):
                await self.up.direct(scope, receive, send)
                return
        except Refused as error:
            await asgi.fail(send, error.status, str(error))
            return
        await self._controlled(scope, headers, receive, send)

    async def _controlled(
        self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send
    ) -> None:
        """The control plane, with a body that is known to be small."""
        try:
            if "content-length" not in headers and "transfer-encoding" not in headers:
                await self._control(scope, receive, send)
                return
            asgi.check_length(headers, MAX_CONTROL_BYTES)
            body = await asgi.read_body(receive, MAX_CONTROL_BYTES)
        except asgi.ClientLeft:
            return
        except asgi.TooLarge as error:
            await asgi.fail(send, error.status, str(error), [(b"connection", b"close")])
            return
        await self._control(scope, asgi.replayed(body, receive), send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message: Message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    self.controller = Controller(self.config, self.token)
                    await self.controller.start()
                except (ControllerError, CoreError, ValueError, OSError) as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                if self.controller is not None:
                    await self.controller.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


def create_app(config: ControllerConfig) -> App:
    """The controller as an ASGI application."""
    return App(config)


def server(config: ControllerConfig) -> uvicorn.Server:
    """A uvicorn server with the settings measured in proxy.md section 5."""
    return uvicorn.Server(
        uvicorn.Config(
            create_app(config),
            host=config.host,
            port=config.port,
            loop="uvloop",
            http=OneWrite,
            ws="none",
            # Nothing here asks where a client is, and believing its headers would be a risk.
            proxy_headers=False,
            access_log=False,
            log_level="warning",
            backlog=8192,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=5,
            server_header=False,
            date_header=False,
        )
    )


def serve(config: ControllerConfig) -> None:
    """Serve until told to stop; the process is the controller's alone."""
    serving = server(config)
    keep_short()
    serving.run()


def _token(config: ControllerConfig) -> str:
    if config.token:
        return config.token
    token = secrets.token_urlsafe(32)
    if config.data_dir is not None:
        config.data_dir.mkdir(parents=True, exist_ok=True)
        path = config.data_dir / "token"
        path.touch(mode=0o600)
        path.write_text(token, "utf-8")
    return token


def _emitter(config: ControllerConfig) -> Emitter | None:
    if config.collector is None or config.spans is not None:
        return None
    spool = None
    if config.data_dir is not None:
        token = config.collector_token
        spool = Spool(config.collector, config.data_dir / "spool", token=token)
    return Emitter(
        config.collector,
        service="heddle-controller",
        token=config.collector_token,
        sender=spool,
    )


def _places(config: ControllerConfig) -> Places | None:
    """Where jobs read and write; None where they cannot."""
    if config.data_dir is None or config.collector_queries is None:
        return None
    return Places(
        collector=config.collector_queries,
        collector_token=config.query_token,
        registry=str(config.data_dir / "predictors"),
    )


def _launcher(config: ControllerConfig) -> Launcher:
    if config.launcher is not None:
        return config.launcher
    if not config.launch_template:
        return StaticLauncher()
    logs = (config.data_dir or Path.cwd()) / "engines"
    template = Template(
        command=config.launch_template, flags=config.degree_flags, env=config.engine_env
    )
    if config.fleet == "ray":
        return RayLauncher(
            template, logs, gpus=config.gpus, address=config.ray_address, ready_s=config.ready_s
        )
    return LocalLauncher(
        template, logs, gpus=config.gpus, first_port=config.first_port, ready_s=config.ready_s
    )
