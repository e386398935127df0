"""Do the shares of every state agree with what emulated engines logged, telemetry made worse?

The judge is a sweep of its own over the fleet's own records with exact clocks and nothing lost: the
engines' log of passes says when a GPU was busy, which requests resided says with what; queues,
tools and lives say what it waited for otherwise. It shares no code with the accounting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from heddle.app.emulated import Worse, by_worker, reading
from heddle.collector.queries.results import explain
from heddle.collector.states import IDLE
from heddle.controller.emulator.records import RolloutResult, StepRecord
from heddle.controller.emulator.request import EngineConfig
from heddle.controller.emulator.rollout import Death, Setup, Sync, run_rollout
from heddle.controller.emulator.workload import generate

FOUR = Setup(gpus=4, layout=(1, 1, 1, 1))
Events = list[tuple[float, str, int]]


def judged(result: RolloutResult) -> Counter[str]:
    """GPU-seconds by state, as the engines' own log has them."""
    spent: Counter[str] = Counter()
    passes = by_worker(result.passes)
    for worker in {worker.worker_id: worker for worker in result.workers}.values():
        events: Events = []
        for one in passes[worker.worker_id]:
            events += lasting(f"pass {one.state}", one.start_s, one.end_s)
        for stay in stays(result, worker.worker_id):
            events += stay.events(result)
        for state, seconds in swept(sorted(events), result.makespan_s):
            spent[state] += worker.degree * seconds
    return spent


def lasting(what: str, start_s: float, end_s: float) -> Events:
    return [(start_s, what, 1), (end_s, what, -1)] if end_s > start_s else []


@dataclass
class Stay:
    """A trajectory on a worker from its first step there until it starts one elsewhere."""

    trajectory_id: str
    steps: list[StepRecord]
    until_s: float

    def events(self, result: RolloutResult) -> Events:
        start_s = self.steps[0].arrived_s
        events = lasting("live", start_s, self.until_s)
        for step in self.steps:
            at_s = step.arrived_s
            for what, length_s in (
                ("waiting", step.held_s + step.queue_s),
                ("prefill", step.prefill_s),
                ("decode", step.decode_s),
            ):
                events += lasting(what, at_s, min(at_s + length_s, step.end_s))
                at_s += length_s
        for tool in result.tools:
            if tool.trajectory_id == self.trajectory_id:
                within = max(tool.start_s, start_s), min(tool.end_s, self.until_s)
                events += lasting("tool", *within)
        return events


def stays(result: RolloutResult, worker_id: str) -> Iterator[Stay]:
    by_trajectory: dict[str, list[StepRecord]] = defaultdict(list)
    for step in sorted(result.steps, key=lambda step: step.arrived_s):
        by_trajectory[step.trajectory_id].append(step)
    ends = {t.trajectory_id: t.end_s or result.makespan_s for t in result.trajectories}
    for name, steps in by_trajectory.items():
        first = 0
        for at in range(1, len(steps) + 1):
            if at == len(steps) or steps[at].worker_id != steps[first].worker_id:
                until_s = steps[at].arrived_s if at < len(steps) else ends[name]
                if steps[first].worker_id == worker_id:
                    yield Stay(name, steps[first:at], until_s)
                first = at


def swept(events: Events, makespan_s: float) -> Iterator[tuple[str, float]]:
    """States of one worker and how long each lasted."""
    on: Counter[str] = Counter()
    pieces: list[tuple[str, float, float]] = []
    before_s = 0.0
    for at_s, what, change in [*events, (makespan_s, "end", 0)]:
        at_s = min(at_s, makespan_s)
        if at_s > before_s:
            pieces.append((named({one for one, count in on.items() if count > 0}), before_s, at_s))
            before_s = at_s
        on[what] += change
    lived = [(start_s, end_s) for state, start_s, end_s in pieces if state != "nobody"]
    for state, start_s, end_s in pieces:
        if state == "nobody":
            ramping = not lived or end_s <= lived[0][0]
            state = "ramp_up" if ramping else "starved_gap"
            state = "tail_bubble" if lived and start_s >= lived[-1][1] else state
        yield state, end_s - start_s


def named(on: set[str]) -> str:
    for state in ("down", "weight_sync"):
        if f"pass {state}" in on:
            return state
    if on & {"pass prefill", "pass decode"}:
        prefill, decode = ("prefill" in on), ("decode" in on)
        if prefill and decode:
            return "busy_mixed"
        return "busy_prefill" if prefill or "pass prefill" in on else "busy_decode"
    for what, state in (("waiting", "queued"), ("tool", "tool_wait"), ("live", "orchestrator")):
        if what in on:
            return state
    return "nobody"


FLEETS = {
    "tools": lambda preset: run_rollout(
        generate("demo", groups=6, samples=8, seed=3), preset=preset, setup=FOUR
    ),
    "full KV": lambda preset: run_rollout(
        generate("demo", groups=6, samples=8, seed=5), preset=preset, setup=FOUR,
        engine=EngineConfig(kv_tokens=24_000),
    ),
    "sync and death": lambda preset: run_rollout(
        generate("demo", groups=4, samples=8, seed=9), preset=preset, setup=FOUR,
        syncs=[Sync(at_s=20.0, version="v2")], deaths=[Death(worker_id="w2", at_s=40.0)],
    ),
}  # fmt: skip
SOURCES = {
    "nothing lost": (Worse(), 0.02),
    "engine spans": (Worse(lost_steps=0.01, skew_s=0.05, seed=7, engine_spans=True), 0.02),
    "controller spans": (Worse(lost_steps=0.01, skew_s=0.05, seed=7), 0.05),
}


@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("preset", ["verl", "heddle"])
def test_every_state_is_within_its_points_of_what_the_engines_logged(
    fleet: str, preset: str
) -> None:
    result = FLEETS[fleet](preset)
    real = judged(result)
    total = sum(real.values())
    assert total == pytest.approx(result.gpu_s)
    for worse, points in SOURCES.values():
        accounts = explain(reading(result, worse)).accounts
        share = {state: ns / accounts.total_gpu_ns for state, ns in accounts.gpu_ns.items()}
        apart = {state: share[state] - real[state] / total for state in share}
        assert max(map(abs, apart.values())) <= points, apart
        # What was lost is unknown: it makes no more idle than there was.
        idle = sum(real[state] for state in IDLE) / total
        assert sum(share[state] for state in IDLE) <= idle + 0.005


def test_the_judge_knows_a_lone_worker_second_by_second() -> None:
    events = sorted([
        *lasting("live", 1, 9), *lasting("waiting", 1, 2), *lasting("prefill", 2, 3),
        *lasting("pass prefill", 2, 3), *lasting("decode", 3, 6), *lasting("pass decode", 3, 6),
        *lasting("tool", 6, 8),
    ])  # fmt: skip
    assert dict(swept(events, 12)) == {
        "ramp_up": 1, "queued": 1, "busy_prefill": 1, "busy_decode": 3, "tool_wait": 2,
        "orchestrator": 1, "tail_bubble": 3,
    }  # fmt: skip


@pytest.mark.parametrize("lost", [0.01, 0.1, 0.3])
def test_the_more_is_lost_the_more_is_unknown_and_never_idle(lost: float) -> None:
    result = FLEETS["tools"]("verl")
    whole = explain(reading(result)).accounts
    for spans in (False, True):
        worse = Worse(lost_steps=lost, seed=3, engine_spans=spans)
        accounts = explain(reading(result, worse)).accounts
        assert accounts.idle_ns <= whole.idle_ns + 0.005 * whole.total_gpu_ns
        assert accounts.gpu_ns["unknown"] >= whole.gpu_ns["unknown"]
