"""Does Heddle's preset beat verl's on the same trajectories, and where did the GPU time go?

One warm-up rollout gives the history; then the same rollout runs under both presets. `heddle` runs
before `verl`: its predictions must not have seen these very trajectories end. Each finds its layout
up: neither pays for the other's. Every number is of an emulated fleet, read back from the store; a
loss is reported as a loss, and where this machine could not keep up (`lag.py`) nobody is declared
to have won.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from heddle.app import lag
from heddle.app.driver import DriveResult
from heddle.app.errors import fail
from heddle.app.rollouts import Session, bounds_s, measure, named
from heddle.controller.emulator.workload import TrajectorySpec, generate

WORKLOAD: Final = "demo"
PRESETS: Final = ("verl", "heddle")
SAMPLES: Final = 16
Bar = Callable[[str, int], AbstractContextManager[Callable[[DriveResult], None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """How large and how drawn."""

    trajectories: int = 256
    seed: int = 0


def run_name(prefix: str) -> str:
    """A run id of its own for each invocation, so that a kept database never mixes two."""
    return f"{prefix}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{time.time_ns() // 1_000_000 % 1000:03d}"


def workload(options: DemoOptions, epoch: int) -> list[TrajectorySpec]:
    """Groups of 16, or of 4 where fewer than four groups of 16 would be left."""
    samples = SAMPLES if options.trajectories >= 4 * SAMPLES else min(4, options.trajectories)
    groups = -(-options.trajectories // samples)
    made = generate(WORKLOAD, groups=groups, samples=samples, seed=options.seed, epoch=epoch)
    return made[: options.trajectories]


def run_demo(session: Session, options: DemoOptions, bar: Bar) -> dict[str, Any]:
    """The JSON of `heddle demo`: one entry a preset."""
    _rollout(session, "verl", "warm-up", workload(options, epoch=0), bar)
    specs = workload(options, epoch=1)
    seen = {p: _rollout(session, p, p, specs, bar) for p in reversed(PRESETS)}
    fleet = session.stack.settings.fleet
    bounds = bounds_s(specs, fleet.system, fleet.model, fleet.gpus)
    store, run = session.collector, session.run
    lags = {p: lag.host_lag(store, run, p, seen[p]) for p in PRESETS}
    shared = {p: {"lower_bounds_s": bounds, "host_lag": lags[p]} for p in PRESETS}
    presets = {p: {**measure(store, run, p), **shared[p]} for p in PRESETS}
    whole = lag.worst(lags.values())
    return {
        "run": run,
        "seed": options.seed,
        "emulated": {"system": fleet.system, "model": fleet.model, "speed": fleet.speed},
        "host_lag": whole,
        "winner": winner(presets),
        "presets": presets,
    }


def winner(presets: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The preset with the shorter makespan, "draw", or None where this machine's lag could decide.

    Where lag is above its limit the shorter one must win even when all lag is taken off the
    other's critical path and none off its own.
    """
    took_s = {preset: said["makespan_s"] for preset, said in presets.items()}
    best = min(took_s, key=lambda preset: took_s[preset])
    if all(said["host_lag"]["trustworthy"] for said in presets.values()):
        return "draw" if len(set(took_s.values())) == 1 else best
    others_s = [lag.without(took_s[p], presets[p]["host_lag"]) for p in presets if p != best]
    return best if all(took_s[best] < other_s for other_s in others_s) else None


def _rollout(
    session: Session, preset: str, rollout: str, specs: list[TrajectorySpec], bar: Bar
) -> DriveResult:
    session.controller.switch(
        run=session.run, preset=preset, who="heddle demo", why=f"rollout {rollout} of the demo"
    )
    session.lay_out(specs, why=f"the layout of {preset}, before rollout {rollout} begins")
    with bar(f"rollout {rollout} under preset {preset}", len(specs)) as progress:
        result = session.play(rollout, named(specs, rollout), progress)
    if result.errors:
        kinds = "; ".join(f"{name} (x{count})" for name, count in result.errors.most_common(3))
        failed = result.trajectories - result.finished
        fail(f"{failed} of {result.trajectories} trajectories of {rollout} failed: {kinds}")
    return result
