"""`heddle up`: the whole stack, in front of your fleet or an emulated one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from heddle.app.commands import options

if TYPE_CHECKING:
    from heddle.app.compose import Stack

TYPER = options.help_with(
    "heddle up",
    "heddle up --fleet ray --gpus 8",
    "heddle up --worker http://gpu1:30000 --worker http://gpu2:30000",
    "heddle up --open-registration",
)
LIVE: Final = "live"
"""The run that brings the fleet up before an agent calls."""
SLACK_S: Final = 120.0
"""Beside the seconds an engine may take to serve: a large model needs many minutes."""


def run(
    worker: Annotated[
        list[str] | None,
        typer.Option(help="URL of a running SGLang engine; repeat.", metavar="URL"),
    ] = None,
    open_registration: Annotated[
        bool | None,
        typer.Option(
            "--open-registration", help="Start no engine: a trainer's register themselves."
        ),
    ] = None,
    fleet: options.Fleet = None,
    address: options.RayAddress = None,
    gpus: options.Gpus = None,
    model: options.Model = None,
    system: options.System = None,
    speed: options.Speed = None,
    preset: Annotated[str | None, typer.Option(help="Preset to begin with.")] = None,
    data: options.Data = None,
    host: options.Host = None,
    allow_host: options.AllowHost = None,
    dashboard: Annotated[bool, typer.Option(help="Serve the pages too.")] = True,
) -> None:
    """Start the whole stack, and stay until Ctrl-C."""
    from heddle.app import checks, compose, show
    from heddle.app.settings import load
    from heddle.app.supervise import Supervisor

    engines = {"fleet.gpus": gpus, "fleet.model": model, "fleet.system": system}
    engines |= {"fleet.launcher": fleet, "fleet.ray_address": address}
    pace = {"fleet.speed": speed, "fleet.workers": tuple(worker) if worker else None}
    joins = {"fleet.registers": open_registration}
    names = {"allow_host": tuple(allow_host) if allow_host else None}
    settings = load({"data": data, "host": host, **engines, **joins, **names, **pace})
    checks.preset(preset)
    if settings.fleet.workers:
        compose.reach(settings.fleet.workers)
    if not settings.fleet.launches:
        settings.fleet.speed = 1.0
    with Supervisor(settings.data / "logs") as supervisor:
        stack = compose.launch(supervisor, settings, strict=True, dashboard=dashboard, say=show.say)
        _begin(stack, preset)
        supervisor.stay()


def _begin(stack: Stack, preset: str | None) -> None:
    """Say where everything is; bring up the engines that are started here."""
    from heddle.app import show
    from heddle.controller.client import ControllerClient
    from heddle.controller.wire import RolloutBegin

    settings = stack.settings
    wait_s = settings.fleet.ready_s + SLACK_S
    with ControllerClient(stack.controller_url, token=stack.token, timeout_s=wait_s) as client:
        if preset:
            client.switch(preset=preset, who="heddle up", why="asked for on the command line")
        if settings.fleet.launches:
            what = "engines start" if settings.fleet.engine else "emulated fleet starts"
            with show.spinner(f"the {what}"):
                client.begin_rollout(RolloutBegin(run=LIVE, rollout=f"live-{time.time_ns()}"))
    show.say(f"agents: OPENAI_BASE_URL={stack.controller_url}/v1, or POST {stack.controller_url}")
    show.say(f"changes need the token in {settings.token_path}")
    if stack.has_dashboard:
        show.say(f"open {settings.dashboard_url}")
    show.say("Ctrl-C stops everything.")
