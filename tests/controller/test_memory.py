"""Does a decision that remembers decide as one that looks at everything anew?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.controller.core.decide import decide
from heddle.controller.core.memory import Memory
from heddle.controller.core.policies import PRESETS, changed
from heddle.controller.core.types import Latency, Length, Rates, Snapshot, State, Trajectory, Worker
from heddle.controller.deciding import Decider
from heddle.controller.emulator.rollout import Death, run_rollout
from heddle.controller.emulator.workload import generate

RNG = np.random.default_rng(0)
LAW = Latency(
    degree=1, a_s=0.01, b_s=1e-4, c_s=1e-8, p0_s=0.01, p1_s=3e-5, p2_s=0.0, kv_tokens=30_000,
    max_running=64,
)  # fmt: skip


def fact(name, at, state: State, home, mean):
    return Trajectory(
        id=f"t{name}", arrival=at, state=state if home < 3 else "held", steps=int(home < 3),
        worker=f"w{home}" if home < 3 else None, context_tokens=500, tool_since_s=float(at),
        output_tokens=100 * int(home < 3), parked=home < 3 and mean % 3 == 0,
        remaining=Length(p10=mean / 2, p50=mean, p90=mean * 2, mean=mean) if mean else None,
    )  # fmt: skip


changes = st.lists(
    st.tuples(
        st.integers(0, 11), st.sampled_from(["held", "running", "tool", "gone"]),
        st.integers(0, 3), st.integers(0, 9_000),
    ),
    max_size=8,
)  # fmt: skip


@given(st.lists(st.tuples(changes, st.integers(1, 4)), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_a_decision_with_a_memory_is_bit_equal_to_one_without(turns):
    switches = changed(PRESETS["heddle"], {"migration": "rebalance"})
    memory, live = Memory(), dict[int, Trajectory]()
    for at, (those, workers) in enumerate(turns):
        for name, state, home, mean in those:
            live.pop(name, None) if state == "gone" else live.update(
                {name: fact(name, at, state, home, mean)}
            )
        snapshot = Snapshot(
            trajectories=tuple(live.values()),
            workers=tuple(Worker(id=f"w{i}", latency=LAW) for i in range(workers)),
            rates=Rates(tool_s=2.0, context_per_output=1.0 + at, remaining_tokens=900.0 + at),
            now_s=float(at),
        )
        assert decide(snapshot, switches, RNG, memory) == decide(snapshot, switches, RNG)


@pytest.mark.parametrize("policy", ["rebalance", "rank"])
def test_the_facts_the_loop_keeps_are_what_it_would_say_anew(monkeypatch, policy):
    looked = [0]
    kept = Decider.snapshot

    def checked(self: Decider, run: str) -> Snapshot:
        told = kept(self, run)
        for trajectory in self._table.by_key.values():
            trajectory.changed()
        assert kept(self, run) == told
        looked[0] += len(told.trajectories)
        return told

    monkeypatch.setattr(Decider, "snapshot", checked)
    switches = changed(PRESETS["heddle"], {"migration": policy})
    result = run_rollout(
        generate("demo", groups=4, samples=4, seed=1), switches=switches, gpus=4,
        layout=(1, 1, 1, 1), deaths=(Death(worker_id="w1", at_s=20.0, back_s=40.0),),
    )  # fmt: skip
    assert looked[0] > 500
    assert result.failures == 0
    assert all(t.end_s is not None for t in result.trajectories)


@pytest.mark.parametrize("migration", ["rebalance", "rank"])
def test_who_is_parked_is_not_carried_to_another_worker_too(migration):
    law = Latency(degree=1, a_s=0.01, b_s=1e-4, c_s=1e-9, p0_s=0.01, p1_s=1e-6, p2_s=0.0,
                  kv_tokens=10_000)  # fmt: skip
    workers = (Worker(id="w0", latency=law, share=1),
               Worker(id="w1", latency=replace(law, kv_tokens=1_000_000), share=4))  # fmt: skip
    told = Length(p10=2e4, p50=3e4, p90=4e4, mean=3e4)
    on = Trajectory("r0", 1, "", "running", 1, 10, 4_000, 100, told, "w0")
    idle = on._replace(id="idle", arrival=9, state="tool", context_tokens=1_000)
    rates, switches = Rates(tool_s=60.0), PRESETS["heddle"]
    switches = changed(switches, {"migration": migration})
    for running, parks, moves in ((1, [], ["idle"]), (3, ["idle"], [])):
        live = (*(on._replace(id=f"r{i}") for i in range(running)), idle)
        snapshot = Snapshot(trajectories=live, workers=workers, rates=rates)
        plan = decide(snapshot, switches, np.random.default_rng(0))
        found = [p.trajectory for p in plan.parks], [m.trajectory for m in plan.moves]
        assert found == (parks, moves)


def test_a_fact_replaced_by_an_equal_one_changes_no_draws():
    memory = Memory()
    some = tuple(fact(i, i, "held", 3, 1_000.0 + i) for i in range(5))
    workers = (Worker(id="w0", latency=LAW),)
    one = Snapshot(trajectories=some, workers=workers)
    before = memory.outlook(one, memory.facts(one)).draws
    two = replace(one, trajectories=tuple(t._replace() for t in reversed(some)))
    assert (memory.outlook(two, memory.facts(two)).draws == before[::-1]).all()
