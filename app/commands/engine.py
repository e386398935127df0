"""`heddle engine`: one emulated SGLang engine behind SGLang's HTTP API."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.app.commands import options

if TYPE_CHECKING:
    from heddle.controller.emulator.request import EngineConfig, HostConfig
    from heddle.controller.emulator.truth import Truth, TruthParams

TYPER = options.help_with(
    "heddle engine --port 30000 --degree 2 --model Qwen3-14B",
    "heddle engine --system .heddle/profiles/Qwen3-14B/v0001.json",
)
MOST = 2**53
"""Of what `/server_info` says as a number: JSON carries no greater whole ones exactly."""


class HostWrite(StrEnum):
    """When KV goes to the host."""

    THROUGH = "write_through"
    BACK = "write_back"


KvTokens = Annotated[
    int | None, typer.Option(help="KV room; else what the profile says fits.", min=64, max=MOST)
]
MaxRunning = Annotated[int | None, typer.Option(help="Requests that run at once.", min=1, max=MOST)]
PreemptionThreshold = Annotated[
    int | None,
    typer.Option(help="Preempt beyond that priority margin; else never.", min=0, max=MOST),
]
HicacheRatio = Annotated[
    float | None,
    typer.Option(
        help="Keep KV on the host too, in so many times the GPU's room.",
        min=0.0,
        max=1_000_000.0,
        callback=options.finite,
    ),
]
HicacheWrite = Annotated[
    HostWrite, typer.Option(help="To the host at every insert, or when the GPU evicts.")
]
HicacheStorage = Annotated[
    Path | None,
    typer.Option(help="Folder that engines of one degree share below their hosts."),
]
OtlpEndpoint = Annotated[
    str | None,
    typer.Option(
        help="Where its spans go, as http://127.0.0.1:4318; else none.", callback=options.address
    ),
]
LaunchDelay = Annotated[
    float,
    typer.Option(
        help="Fleet seconds before it listens: imports, weights.",
        min=0.0,
        max=1_000_000.0,
        callback=options.finite,
    ),
]


def run(
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 30000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    degree: Annotated[int, typer.Option(help="GPUs of this engine.", min=1)] = 1,
    worker_id: Annotated[str, typer.Option("--worker-id", help="Its name in the fleet.")] = "w0",
    model: Annotated[str, typer.Option(help="Model it serves.")] = "Qwen3-14B",
    system: Annotated[
        str, typer.Option(help="GPU type, h100_sxm or h200_sxm, or a measured profile.")
    ] = "h100_sxm",
    kv_tokens: KvTokens = None,
    max_running: MaxRunning = None,
    preemption_threshold: PreemptionThreshold = None,
    hicache_ratio: HicacheRatio = None,
    hicache_write_policy: HicacheWrite = HostWrite.THROUGH,
    hicache_storage: HicacheStorage = None,
    seed: options.Seed = 0,
    launch_delay: LaunchDelay = 0.0,
    otlp_endpoint: OtlpEndpoint = None,
    clock_origin_ns: options.OriginNs = 0,
    clock_speed: options.ClockSpeed = 1.0,
) -> None:
    """Serve one emulated SGLang engine.

    A measured profile (of heddle profile) brings its own model, degree and limits.
    """
    from heddle.app import checks
    from heddle.controller.clock import Clock
    from heddle.controller.emulator.http import serve
    from heddle.controller.emulator.truth import TruthParams

    checks.host(host)
    config, truth = _config(system, model, degree, TruthParams(seed=seed))
    config = replace(
        config,
        worker_id=worker_id,
        kv_tokens=kv_tokens,
        max_running=max_running or config.max_running,
        preemption_threshold=preemption_threshold,
        host=_host(hicache_ratio, hicache_write_policy, hicache_storage),
    )
    clock = Clock.of(clock_origin_ns, clock_speed)
    serve(
        config, host=host, port=port, clock=clock, launch_s=launch_delay, truth=truth,
        otlp_endpoint=otlp_endpoint, storage=hicache_storage,
    )  # fmt: skip


def _host(ratio: float | None, write: HostWrite, storage: Path | None) -> HostConfig | None:
    """A storage without a ratio gets SGLang's usual host tier."""
    from heddle.controller.emulator.request import HostConfig

    if ratio is None and storage is None:
        return None
    usual = HostConfig(write="through" if write == HostWrite.THROUGH else "back")
    return replace(usual, ratio=usual.ratio if ratio is None else ratio)


def _config(
    system: str, model: str, degree: int, params: TruthParams
) -> tuple[EngineConfig, Truth | None]:
    """What a GPU type and a model say of an engine, or what a measured one was."""
    from heddle.app import checks
    from heddle.controller.emulator.request import EngineConfig
    from heddle.controller.emulator.sweep import is_sweep, load_sweep, measured_config

    if is_sweep(system):
        truth = load_sweep(system, params)
        return replace(measured_config(truth), truth=params), truth
    checks.profile(system, model)
    return EngineConfig(system=system, model=model, degree=degree, truth=params), None
