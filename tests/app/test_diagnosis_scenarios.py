"""Does each planted cause on an emulated fleet bring its own finding, and a healthy one none?

Engines, queues and caches are emulated in virtual time with the real loop; the findings come from
what controller and clients would have sent, never from the engines' log, which is the judge.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest

from heddle.app.emulated import Worse, reading, truth
from heddle.collector.queries.results import Result, explain
from heddle.controller.core.policies import preset_switches
from heddle.controller.emulator.engine import Engine
from heddle.controller.emulator.records import (
    RolloutResult,
    StepRecord,
    ToolRecord,
    TrajectoryRecord,
    WorkerRecord,
)
from heddle.controller.emulator.request import EngineConfig, Request
from heddle.controller.emulator.rollout import Death, Setup, Sync, run_rollout
from heddle.controller.emulator.workload import StepSpec, TrajectorySpec, generate

FOUR = Setup(gpus=4, layout=(1, 1, 1, 1))


def work(
    count: int = 32, steps: int = 5, tokens: int = 400, tool_s: float = 0.4, tail: int = 0
) -> list[TrajectorySpec]:
    """Trajectories of nearly the same length; the first one's last step may have a tail."""
    made: list[TrajectorySpec] = []
    for k in range(count):
        mine = [
            StepSpec(
                1500 if i == 0 else 200,
                tokens + k * 37 % 60,
                "bash" if i < steps - 1 else None,
                tool_s if i < steps - 1 else 0.0,
            )
            for i in range(steps)
        ]
        if tail and k == 0:
            mine[-1] = replace(mine[-1], output_tokens=tail)
        made.append(TrajectorySpec(f"t{k:03d}", f"g{k // 4}", k % 4, "coding", tuple(mine)))
    return made


def play(workload: list[TrajectorySpec], worse: Worse | None = None, **changes) -> Result:
    result = run_rollout(workload, preset="verl", setup=FOUR, **changes)
    return explain(reading(result, worse))


def least_load(count: int = 48, steps: int = 12) -> RolloutResult:
    """Each step goes to the worker with the fewest requests, whoever has its prefix."""
    engines = {f"w{k}": Engine(EngineConfig(worker_id=f"w{k}")) for k in range(4)}
    result = RolloutResult(
        switches=preset_switches("verl"), layout=(1,) * 4, seed=0, system="h100_sxm",
        model="Qwen3-14B", workload_hash="", truth_hash="",
        workers=[WorkerRecord(w, 1, e.scheduler.capacity, "") for w, e in engines.items()],
    )  # fmt: skip
    contexts = {f"t{k:02d}": np.arange(1000, dtype=np.int32) + 5000 * k for k in range(count)}
    coming = [(0.01 * k, name, 0) for k, name in enumerate(contexts)]
    heapq.heapify(coming)
    inside: dict[str, tuple[str, int, str]] = {}
    while coming or inside:
        due_s = min(e.next_event_s() for e in engines.values())
        if coming and coming[0][0] <= due_s:
            at_s, name, step = heapq.heappop(coming)
            chosen = min(engines, key=lambda w: (load(engines[w], at_s), (step + int(w[1:])) % 4))
            inside[f"{name}-{step}"] = (name, step, chosen)
            request = Request(rid=f"{name}-{step}", ids=contexts[name], max_new_tokens=60)
            engines[chosen].submit(request, at_s)
            continue
        for worker, engine in engines.items():
            for done in engine.advance(due_s):
                name, step, _ = inside.pop(done.rid)
                record(result, done, name, step, worker)
                new = np.arange(1500, dtype=np.int32) + 100_000 + 1500 * step
                contexts[name] = np.concatenate([contexts[name], done.output_ids, new])
                if step + 1 < steps:
                    tool = ToolRecord(name, step, "bash", done.at_s, done.at_s + 0.2)
                    result.tools.append(tool)
                    heapq.heappush(coming, (tool.end_s, name, step + 1))
    result.makespan_s = max(step.end_s for step in result.steps)
    result.trajectories = [
        TrajectoryRecord(name, name, 0, "coding", 0.0, result.makespan_s) for name in contexts
    ]
    return result


def load(engine: Engine, at_s: float) -> int:
    seen = engine.loads(at_s)
    return seen.running + seen.waiting


def record(result: RolloutResult, done, name: str, step: int, worker: str) -> None:
    entry_s, first_s = done.entry_s or done.at_s, done.prefill_end_s or done.at_s
    result.steps.append(
        StepRecord(
            name, step, 0, worker, done.arrival_s, done.at_s, 0.0, entry_s - done.arrival_s,
            first_s - entry_s, done.at_s - first_s, done.prompt_tokens, len(done.output_ids),
            done.cached_tokens, done.retractions, 0, None, None, "default", None,
        )
    )  # fmt: skip


def sync_waiting_for_the_tail() -> Result:
    makespan_s = run_rollout(work(tail=3500), preset="verl", setup=FOUR).makespan_s
    return play(work(tail=3500), Worse(sync_s=(0.6 * makespan_s, makespan_s)))


PLANTED = {
    "healthy": lambda: play(work()),
    "tool-bound": lambda: play(work(tool_s=6.0)),
    "slow-engine": lambda: play(work(), slow_s={"w2": 0.012}),
    "kv-full": lambda: play(work(64, tokens=900), engine=EngineConfig(kv_tokens=16_000)),
    "crowded-worker": lambda: play(work(16), Worse(idle_workers=3), layout=(1,)),
    "sync-blocked": sync_waiting_for_the_tail,
    "dropped-spans": lambda: play(work(), Worse(lost_steps=0.04)),
    "dead-engine": lambda: play(work(), deaths=[Death(worker_id="w1", at_s=8.0)]),
    "cache-lost": lambda: explain(reading(least_load(), Worse(polls=False))),
    "degree-too-low": lambda: play(work(tail=6000)),
}
NAMED = {
    "tool-bound": "'bash'",
    "slow-engine": "worker w2",
    "crowded-worker": "worker w0",
    "sync-blocked": "1 trajectories: t000",
    "dead-engine": "worker w1",
    "degree-too-low": "trajectory t000",
}


@pytest.mark.parametrize("rule", PLANTED)
def test_each_of_ten_planted_scenarios_names_its_cause_and_nothing_else(rule: str) -> None:
    result = PLANTED[rule]()
    found = result.findings
    assert [one.rule for one in found] == ([] if rule == "healthy" else [rule])
    assert all(NAMED.get(rule, "") in one.title for one in found)
    accounts = result.accounts
    assert sum(accounts.gpu_ns.values()) == accounts.total_gpu_ns
    assert result.blame.explained_ns + result.blame.unexplained_ns == accounts.idle_ns
    assert result.path.makespan_ns == accounts.wall_ns
    assert sum(result.used.values()) == accounts.busy_ns


def test_a_sync_that_retracts_what_runs_is_no_full_kv() -> None:
    found = play(work(), syncs=[Sync(at_s=10.0, version="v2")]).findings
    assert [one.rule for one in found] == ["weight-sync"]


def test_the_demo_workload_is_healthy_under_both_presets() -> None:
    for preset in ("verl", "heddle"):
        workload = generate("demo", groups=4, samples=12, seed=1)
        result = run_rollout(workload, preset=preset, setup=FOUR)
        assert [one.rule for one in explain(reading(result)).findings] == []


def test_lost_spans_of_a_lone_trajectory_are_unknown_and_never_idle() -> None:
    result = run_rollout(work(1, steps=6, tool_s=0.2), preset="verl", setup=FOUR, layout=(1,))
    whole = explain(reading(result)).accounts
    lost = [k for k, step in enumerate(result.steps) if step.step_index == 2]
    gone_s = sum(result.steps[k].end_s - result.steps[k].arrived_s for k in lost)
    for k in lost:
        del result.steps[k]
    accounts = explain(reading(result)).accounts
    assert accounts.gpu_ns["unknown"] >= 0.99e9 * gone_s
    assert accounts.busy_ns == whole.busy_ns - round(1e9 * gone_s)
    assert accounts.idle_ns <= whole.idle_ns


def test_a_dead_engine_is_down_as_long_as_polls_can_tell() -> None:
    result = run_rollout(
        work(), preset="verl", setup=FOUR, deaths=[Death(worker_id="w1", at_s=8.0, back_s=25.0)]
    )
    accounts = explain(reading(result)).accounts
    # Found by the first poll after the death and ended by the first after the return: 5 s each.
    assert abs(accounts.gpu_ns["down"] / 1e9 - truth(result)["down"]) <= 5.0


def test_forward_counters_of_emulated_engines_leave_no_host_overhead() -> None:
    rows = play(work()).counted
    assert len(rows) == 4
    for row in rows:
        assert row.forward_ns is not None
        assert row.host_overhead_ns is not None
        assert row.host_overhead_ns < 0.01 * row.residence_ns
        assert not row.host_bound
