"""`heddle control`: the controller by itself, data plane and control plane in one process."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.app.commands import options

if TYPE_CHECKING:
    from heddle.app.settings import Settings
    from heddle.controller.clock import Clock

TYPER = options.help_with(
    "heddle control --worker http://gpu1:30000 --worker http://gpu2:30000",
    "heddle control --launch-template 'heddle engine --port {port} --degree {degree} "
    "--worker-id {worker_id}' --gpus 8",
)


def run(
    port: Annotated[int | None, typer.Option(help="Data plane and control plane.")] = None,
    host: options.Host = None,
    collector: Annotated[
        str | None, typer.Option(help="Where the collector takes spans (OTLP/HTTP).")
    ] = None,
    collector_queries: Annotated[
        str | None, typer.Option(help="Where the collector answers queries.")
    ] = None,
    data: options.Data = None,
    token_file: options.TokenFile = None,
    worker: Annotated[
        list[str] | None, typer.Option(help="URL of a running engine; repeat.", metavar="URL")
    ] = None,
    launch_template: Annotated[
        str | None,
        typer.Option(help="Command of one engine: {port}, {host}, {degree}, {worker_id}, {gpus}."),
    ] = None,
    fleet: options.Fleet = None,
    ray_address: options.RayAddress = None,
    gpus: options.Gpus = None,
    model: options.Model = None,
    system: options.System = None,
    first_port: Annotated[int | None, typer.Option(help="Of the first engine launched.")] = None,
    allow_host: options.AllowHost = None,
    open_registration: Annotated[
        bool, typer.Option(help="Let engines register without the token, as at SGLang's router.")
    ] = False,
    retrain_every: options.RetrainEvery = None,
    wedged_s: options.WedgedS = None,
    clock_origin_ns: options.OriginNs = 0,
    clock_speed: options.ClockSpeed = 1.0,
) -> None:
    """Stand between agents and engines."""
    from heddle.app.settings import load
    from heddle.controller.clock import Clock

    places = {"fleet.launcher": fleet, "fleet.ray_address": ray_address}
    engines = {"fleet.gpus": gpus, "fleet.model": model, "fleet.system": system}
    there = {"otlp": collector, "collector": collector_queries, "token_file": token_file}
    ports = {"ports.controller": port, "ports.engines": first_port, "retrain_every": retrain_every}
    others = {"fleet.wedged_s": wedged_s, "allow_host": tuple(allow_host) if allow_host else None}
    others["fleet.workers"] = tuple(worker) if worker else None
    settings = load({"host": host, "data": data, **engines, **places, **there, **ports, **others})
    hosts = frozenset(settings.allow_host)
    doors = {"allowed_hosts": hosts, "open_registration": open_registration}
    _serve(settings, launch_template or "", Clock.of(clock_origin_ns, clock_speed), doors)


def launching(settings: Settings) -> dict[str, Any]:
    """How engines are launched, as the settings say."""
    from heddle.controller.core.regroup import nodes_of

    fleet = settings.fleet
    memory = int(fleet.host_memory_gb * 1e9)
    return {
        "fleet": fleet.launcher,
        "ray_address": fleet.ray_address,
        "ready_s": fleet.ready_s,
        "wedged_s": fleet.wedged_s,
        "degree_flags": {d: tuple(shlex.split(flags)) for d, flags in fleet.degree_flags.items()},
        "engine_env": fleet.engine_env,
        "host_bytes": (memory,) * len(nodes_of(fleet.gpus)) if memory else (),
    }


def _serve(settings: Settings, template: str, clock: Clock, doors: dict[str, Any]) -> None:
    from heddle.app import checks, show
    from heddle.app.collecting import tokens
    from heddle.app.errors import PortInUse
    from heddle.app.settings import token_in_file
    from heddle.app.supervise import is_free
    from heddle.controller.service import ControllerConfig, serve

    checks.profile(settings.fleet.system, settings.fleet.model)
    checks.host(settings.host)
    checks.data(settings.data)
    if not is_free(settings.ports.controller, settings.host):
        raise PortInUse(settings.ports.controller, "controller", "choose another with --port")
    for url in checks.silent_workers(settings.fleet.workers):
        show.say(f"no engine answers at {url}/health now; it gets no work until one does")
    collect = tokens(settings.collect)
    serve(
        ControllerConfig(
            host=settings.host,
            port=settings.ports.controller,
            collector=settings.otlp_url,
            collector_token=collect.ingest,
            collector_queries=settings.query_url,
            query_token=collect.query,
            data_dir=settings.data,
            token=token_in_file(settings),
            workers=settings.fleet.workers,
            launch_template=tuple(shlex.split(template)),
            gpus=settings.fleet.gpus,
            model=settings.fleet.model,
            system=settings.fleet.system,
            first_port=settings.ports.engines,
            **launching(settings),
            retrain_every=settings.retrain_every,
            clock=clock,
            **doors,
        )
    )
