"""Which processes make a stack, on which ports, in which order?

Collector, then controller (which launches the engines), then the dashboard. The emulated fleet is
this program's own `heddle engine`, handed to the controller as a launch template: the controller
knows no emulator.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import httpx
import psutil

from heddle.app import checks
from heddle.app.errors import ChildDied, PortInUse, PortLost, fail
from heddle.app.settings import Settings, token, token_in_file
from heddle.app.supervise import Supervisor, free_port, free_range, is_free
from heddle.collector.errors import remedy
from heddle.controller.client import ControllerClient
from heddle.controller.clock import Clock

START_S: Final = 60.0
"""A busy two-core machine needs up to 8 s to import a service; this is when to give up."""
RAY_START_S: Final = 240.0
"""Ray takes 5 to 15 s, and 40 s to say that it did not start: the controller tries again then."""
TRIES: Final = 4
"""Sets of ports that a stack of free choice tries before it gives up."""
LOST: Final = re.compile(r"\bport \d+\b.*\b(in use|not available)", re.IGNORECASE)
"""How the collector, the controller and Streamlit say that they did not get their port."""
BLOCK: Final = 16
"""Engine ports are searched from a block of the process's own, below those the kernel gives to
calls (32768): two stacks begun together see the same ports free, seconds before engines listen."""
BEHIND: Final = 10
"""Niceness of collector and dashboard beside a sped-up fleet."""
WHAT: Final = {
    "otlp_http": "collector (OTLP/HTTP)",
    "otlp_grpc": "collector (OTLP/gRPC)",
    "queries": "collector (queries)",
    "controller": "controller",
    "dashboard": "dashboard",
}
UNNAMED: Final = ("ready_s", "host_memory_gb", "degree_flags", "engine_env")
"""Settings of the fleet that `heddle control` has no options for."""
OWN: Final = {"collector": None, "controller": None, "otlp": None, "token": None}
SAY: Final[Callable[[str], None]] = lambda _: None  # noqa: E731


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A running stack: where its parts answer, and its time."""

    settings: Settings
    clock: Clock
    token: str
    has_dashboard: bool

    @property
    def query_url(self) -> str:
        return self.settings.query_url

    @property
    def controller_url(self) -> str:
        return self.settings.controller_url


def settle_ports(
    settings: Settings, *, strict: bool, dashboard: bool, say: Callable[[str], None] = SAY
) -> Settings:
    """The same settings with ports that are free; strict, a taken one is PortInUse."""
    checks.profile(settings.fleet.system, settings.fleet.model)
    checks.host(settings.host, socket.AF_INET)
    checks.data(settings.data)
    # A stack of one's own is not the one that HEDDLE_COLLECTOR or HEDDLE_CONTROLLER point at.
    tree = settings.model_copy(deep=True, update=OWN)
    for name, what in WHAT.items():
        port = int(getattr(tree.ports, name))
        if (name == "dashboard" and not dashboard) or (port and is_free(port, tree.host)):
            continue
        if strict and port:
            raise PortInUse(port, what, f"stop its owner or set HEDDLE_PORTS__{name.upper()}")
        setattr(tree.ports, name, free_port(tree.host))
        if port:
            say(f"port {port} is in use; the {what} takes {getattr(tree.ports, name)}")
    if tree.fleet.launches:
        first = tree.ports.engines
        if not strict and "engines" not in settings.ports.model_fields_set:
            first += os.getpid() * BLOCK % 2_400
        tree.ports.engines = free_range(first, tree.fleet.gpus, tree.host)
    return tree


def launch(
    supervisor: Supervisor,
    settings: Settings,
    *,
    strict: bool,
    dashboard: bool,
    say: Callable[[str], None] = SAY,
) -> Stack:
    """Choose ports and start; where the choice is free, anew when another process took one."""
    left = TRIES
    while True:
        chosen = settle_ports(settings, strict=strict, dashboard=dashboard, say=say)
        try:
            return start(supervisor, chosen, dashboard=dashboard, say=say)
        except (ChildDied, PortLost) as error:
            left -= 1
            if strict or not left or not _lost_a_port(error):
                raise
        supervisor.stop()
        say("another process took one of the ports meanwhile; starting again on others")


def _lost_a_port(error: Exception) -> bool:
    return isinstance(error, PortLost) or bool(LOST.search(getattr(error, "tail", "")))


def start(
    supervisor: Supervisor,
    settings: Settings,
    *,
    dashboard: bool,
    say: Callable[[str], None] = SAY,
) -> Stack:
    """Start every process and wait until it answers; the fleet itself starts with a rollout."""
    origin_ns = time.time_ns()
    secret = token_in_file(settings)
    clock = Clock(origin_ns, settings.fleet.speed)
    # All at once: each imports for seconds, and none needs another to come up.
    supervisor.start("collector", collector_arguments(settings))
    supervisor.start(
        "controller", controller_arguments(settings, clock), controller_environment(settings)
    )
    if dashboard:
        supervisor.start("dashboard", dashboard_arguments(settings))
    ports = settings.ports
    _wait(supervisor, "collector", f"{settings.query_url}/healthz", ports.queries)
    say(f"collector on {settings.otlp_url}, queries on {settings.query_url}")
    url = f"{settings.controller_url}/heddle/v1/healthz"
    within_s = RAY_START_S if settings.fleet.launcher == "ray" else START_S
    _wait(supervisor, "controller", url, ports.controller, within_s)
    say(f"controller on {settings.controller_url}")
    if dashboard:
        url = f"{settings.dashboard_url}/_stcore/health"
        _wait(supervisor, "dashboard", url, ports.dashboard)
        say(f"dashboard on {settings.dashboard_url}")
    if settings.fleet.speed != 1.0:
        _let_the_fleet_go_first(supervisor)
    return Stack(settings=settings, clock=clock, token=secret, has_dashboard=dashboard)


def _let_the_fleet_go_first(supervisor: Supervisor) -> None:
    """Where emulated time runs fast, what may wait does: each 5 ms of a step's path count times 20.

    Spans wait in their senders' queues; nothing is lost by a collector that yields the CPU.
    """
    for name in ("collector", "dashboard"):
        if name in supervisor.children:
            psutil.Process(supervisor.children[name].process.pid).nice(BEHIND)


def running(settings: Settings) -> Stack:
    """The stack that runs at the addresses of the settings; its clock is as it says."""
    with ControllerClient(settings.controller_url) as client:
        said = client.health()
    clock = Clock(said.clock_origin_ns, said.clock_speed)
    return Stack(settings=settings, clock=clock, token=token(settings), has_dashboard=False)


def _wait(
    supervisor: Supervisor, name: str, url: str, port: int, within_s: float = START_S
) -> None:
    supervisor.wait(name, url, lambda: answers(url, trusted=True), within_s)
    # Another stack's process would answer just as well.
    if not supervisor.children[name].listens(port):
        raise PortLost(port, name)


def answers(url: str, *, trusted: bool = False) -> bool:
    """Whether a GET is answered with a 200; *trusted*: a sentence where no certificate is."""
    try:
        return httpx.get(url, timeout=2.0, trust_env=False, verify=_tls()).is_success
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        if trusted and "CERTIFICATE_VERIFY_FAILED" in str(error):
            fail(f"the certificate at {url} is not trusted ({error}); {remedy(error, '')}")
        return False


@cache
def _tls() -> ssl.SSLContext:
    """One for all calls: to read the certificates takes 45 ms, and starting looks 20 times a
    second."""
    return httpx.create_ssl_context()


def collector_arguments(settings: Settings) -> list[str]:
    """`heddle collect ...`"""
    ports = settings.ports
    return [
        "collect",
        *("--host", settings.host, "--data", str(settings.data)),
        *("--http-port", str(ports.otlp_http), "--grpc-port", str(ports.otlp_grpc)),
        *("--query-port", str(ports.queries)),
    ]


def controller_arguments(settings: Settings, clock: Clock) -> list[str]:
    """`heddle control ...`, with the fleet's URLs or with the template that launches it."""
    fleet = settings.fleet
    base = [
        "control",
        *("--host", settings.host, "--port", str(settings.ports.controller)),
        *(word for name in settings.allow_host for word in ("--allow-host", name)),
        *("--collector", settings.otlp_url, "--collector-queries", settings.query_url),
        *("--data", str(settings.data), "--token-file", str(settings.token_path)),
        *("--model", fleet.model, "--system", fleet.system, "--gpus", str(fleet.gpus)),
        *("--retrain-every", str(settings.retrain_every)),
        *("--clock-origin-ns", str(clock.origin_ns), "--clock-speed", repr(clock.speed)),
    ]
    if fleet.workers:
        return [*base, *(word for url in fleet.workers for word in ("--worker", url))]
    if fleet.registers:
        return [*base, "--open-registration"]
    template = fleet.engine or shlex.join(engine_template(settings, clock))
    first = ("--first-port", str(settings.ports.engines))
    address = ("--address", fleet.ray_address) if fleet.ray_address else ()
    where = ("--fleet", fleet.launcher, *address)
    return [*base, *first, *where, "--launch-template", template]


def controller_environment(settings: Settings) -> dict[str, str]:
    """What shapes the fleet and is no option of `heddle control`; it may stand in no file."""
    fleet = settings.fleet.model_dump(mode="json", include=set(UNNAMED))
    return {f"HEDDLE_FLEET__{name.upper()}": json.dumps(fleet[name]) for name in UNNAMED}


def engine_template(settings: Settings, clock: Clock) -> list[str]:
    """`heddle engine ...` with {port}, {degree} and {worker_id} to be filled in."""
    fleet = settings.fleet
    spans = ("--otlp-endpoint", settings.otlp_url) if fleet.engine_spans else ()
    host = "{host}" if fleet.launcher == "ray" else settings.host
    return [
        *(sys.executable, "-m", "heddle.app.cli", "engine", "--host", host),
        *("--port", "{port}", "--degree", "{degree}", "--worker-id", "{worker_id}"),
        *("--model", fleet.model, "--system", fleet.system, "--seed", str(fleet.seed)),
        *("--clock-origin-ns", str(clock.origin_ns), "--clock-speed", repr(clock.speed)),
        *spans,
    ]


def dashboard_arguments(settings: Settings) -> list[str]:
    """`heddle dash ...`"""
    return [
        "dash",
        *("--host", settings.host, "--port", str(settings.ports.dashboard)),
        *("--collector", settings.query_url, "--controller", settings.controller_url),
        *("--token-file", str(settings.token_path)),
    ]


def reach(workers: Sequence[str]) -> None:
    """A sentence naming the first engine that does not answer."""
    for url in checks.silent_workers(workers):
        fail(f"no engine answers at {url}/health; start it, or leave this --worker out")
