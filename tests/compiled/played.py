"""What do the engines that this process imports make of rollouts that reach every corner of them?

Prints one JSON object: where the engine came from, and of each rollout its digest and how often
requests were retracted. Limit: virtual time alone; over HTTP both stand behind the same code.
"""

from __future__ import annotations

import json
from typing import Any

from heddle.controller.emulator import engine
from heddle.controller.emulator.request import EngineConfig, HostConfig
from heddle.controller.emulator.rollout import Death, Sync, run_rollout
from heddle.controller.emulator.workload import generate

SHORT = 60_000
"""Tokens of KV: contexts of a few trajectories, so that decodes run out of room."""
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "math": ("math", "heddle", {}),
    "short of KV": ("coding", "verl", {"engine": EngineConfig(kv_tokens=SHORT)}),
    "few slots": ("search", "heddle", {"engine": EngineConfig(max_running=8)}),
    "preempting": (
        "search", "heddle", {"engine": EngineConfig(preemption_threshold=0, max_running=4)}
    ),
    "host tier": (
        "coding", "slime",
        {"engine": EngineConfig(kv_tokens=SHORT, host=HostConfig()), "storage": True},
    ),
    "long prompts": ("prefill-heavy", "verl", {}),
    "a death and a sync": (
        "math", "verl",
        {"deaths": (Death(worker_id="w1", at_s=40.0, back_s=90.0),),
         "syncs": (Sync(at_s=60.0, version="v1"),)},
    ),
}  # fmt: skip


def played() -> dict[str, tuple[str, int]]:
    """Digest and retractions of each case."""
    found: dict[str, tuple[str, int]] = {}
    for name, (workload, preset, changes) in CASES.items():
        specs = generate(workload, groups=4)
        result = run_rollout(specs, preset=preset, gpus=4, layout=(2, 2), seed=3, **changes)
        found[name] = result.digest(), sum(step.retractions for step in result.steps)
    return found


if __name__ == "__main__":
    print(json.dumps({"engine": engine.__file__, "played": played()}))  # noqa: T201
