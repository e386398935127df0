"""The core against brute force, and the laws every decision keeps."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.controller.core.admission import ADMISSIONS, Counts
from heddle.controller.core.allocation import ALLOCATIONS
from heddle.controller.core.book import Book, group_edges
from heddle.controller.core.cost import Load, group_s, homogeneous_s, lower_bounds_s
from heddle.controller.core.decide import decide, roams
from heddle.controller.core.imagined import imagined_s
from heddle.controller.core.migration import rank
from heddle.controller.core.policies import CHOICES, KNOWN, PRESETS, changed, preset_name
from heddle.controller.core.priority import Standing, in_flight_first, started_first
from heddle.controller.core.types import (
    CoreError,
    Latency,
    Length,
    Rates,
    Snapshot,
    Trajectory,
    Work,
    Worker,
)
from heddle.controller.laws import laws as shipped

RNG = np.random.default_rng(0)


def law(degree=1, a=0.01, b=1e-4, c=1e-8, kv=20_000, running=64):
    return Latency(
        degree=degree, a_s=a, b_s=b, c_s=c, p0_s=0.0, p1_s=1e-5, p2_s=0.0, kv_tokens=kv,
        max_running=running,
    )  # fmt: skip


def length(mean):
    return Length(p10=mean / 2, p50=mean, p90=mean * 2, mean=mean)


def iterated_s(works, engine):
    """Token by token: everyone alive decodes; who does not fit KV or the cap waits, FIFO."""
    waiting, running, at = list(works), [], sum(1e-5 * w.prompt_tokens for w in works)
    while waiting or running:
        while waiting and len(running) < engine.max_running:
            need = sum(c for c, _ in running) + waiting[0].prompt_tokens
            if need + len(running) > engine.kv_tokens and running:
                break
            first = waiting.pop(0)
            running.append((first.prompt_tokens, first.output_tokens))
        at += engine.a_s + engine.b_s * len(running) + engine.c_s * sum(c for c, _ in running)
        running = [(c + 1, left - 1) for c, left in running if left > 1]
    return at


@pytest.mark.parametrize("n", [1, 7, 40])
def test_the_closed_form_is_what_iterating_gives_where_all_fit(n):
    works = [Work(output_tokens=20 + 7 * i, prompt_tokens=100) for i in range(n)]
    engine = law(kv=10**9, running=10**6)
    assert group_s(works, engine) == pytest.approx(iterated_s(works, engine), rel=0.01)


def test_the_running_cap_makes_the_closed_form_longer_as_iterating_does():
    works = [Work(output_tokens=50, prompt_tokens=10) for _ in range(40)]
    engine = law(kv=10**9, running=8)
    assert group_s(works, engine) == pytest.approx(iterated_s(works, engine), rel=0.05)


@pytest.mark.parametrize("seed", range(6))
def test_best_fixed_is_the_degree_that_iterating_every_degree_picks(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 60))
    works = [
        Work(output_tokens=float(t), prompt_tokens=20.0)
        for t in rng.lognormal(4, 1, n).astype(int) + 5
    ]
    laws = {d: law(d, a=0.01 / d**0.6, b=2e-4 / d**0.3, kv=10**6) for d in (1, 2, 4)}
    chosen = ALLOCATIONS["best-fixed"](works, laws, 4, RNG)

    def replayed(degree):
        dealt = sorted(works, key=lambda w: -w.output_tokens)
        groups = [dealt[i :: 4 // degree] for i in range(4 // degree)]
        return max(iterated_s(g, laws[degree]) for g in groups)

    best = min(replayed(d) for d in laws)
    assert replayed(chosen.degrees[0]) <= best * 1.05
    assert sum(chosen.shares) == n
    assert chosen.gpus == 4


def test_best_fixed_takes_few_large_engines_for_one_long_and_many_small_for_many():
    laws = {d: law(d, a=0.01 / d**0.5, b=1e-3 / d**0.5, kv=10**7) for d in (1, 8)}
    one = ALLOCATIONS["best-fixed"]([Work(output_tokens=5000)], laws, 8, RNG)
    many = ALLOCATIONS["best-fixed"]([Work(output_tokens=500)] * 800, laws, 8, RNG)
    assert (one.degrees, many.degrees) == ((8,), (1,) * 8)


def test_the_higher_of_near_degrees_is_taken_where_its_iterations_are_the_shorter_ones():
    works = [Work(output_tokens=1000.0)] * 40
    near = {1: law(1, a=0.01, b=0.0, kv=10**9), 2: law(2, a=0.0098, b=0.0, kv=10**9)}
    assert ALLOCATIONS["best-fixed"](works, near, 2, RNG).degrees == (2,)
    far = {1: law(1, a=0.01, b=0.0, kv=10**9), 2: law(2, a=0.0105, b=0.0, kv=10**9)}
    assert ALLOCATIONS["best-fixed"](works, far, 2, RNG).degrees == (1, 1)


def test_degrees_that_the_closed_form_cannot_tell_apart_are_imagined():
    rng = np.random.default_rng(3)
    works = [Work(output_tokens=float(t), prompt_tokens=900.0, observation_tokens=12.0 * t,
                  steps=1.0 + t / 60.0, tool_s=t / 50.0)
             for t in np.sort(rng.lognormal(6.0, 0.8, 300))[::-1]]  # fmt: skip
    known = shipped("h100_sxm", "Qwen3-14B")
    closed = {d: homogeneous_s(works, known[d], 8 // d) for d in known}
    near = [d for d in closed if closed[d] <= 1.05 * min(closed.values())]
    imagined = {d: imagined_s(works, known, (d,) * (8 // d)) for d in near}
    chosen = ALLOCATIONS["best-fixed"](works, known, 8, RNG)
    assert len(near) > 1
    assert imagined[chosen.degrees[0]] == min(imagined.values())
    assert "ends first as imagined" in chosen.because


def test_tools_of_the_longest_count_into_the_makespan():
    quick, slow = Work(output_tokens=10), Work(output_tokens=10, tool_s=30.0)
    assert group_s([quick, slow], law()) == pytest.approx(group_s([quick, quick], law()) + 30.0)


def test_a_fixed_degree_that_does_not_fit_says_which_do():
    with pytest.raises(CoreError, match=r"fits 4 GPUs; choose one of \[1, 2\]"):
        ALLOCATIONS["fixed-8"]([], {1: law(1), 2: law(2), 8: law(8)}, 4, RNG)


tooled = st.tuples(st.integers(1, 5000), st.integers(0, 3000), st.floats(0.0, 400.0))


@given(st.lists(tooled, min_size=1, max_size=30))
@settings(max_examples=40, deadline=None)
def test_no_homogeneous_layout_beats_the_lower_bounds(rows):
    works = [Work(output_tokens=o, prompt_tokens=p, tool_s=t) for o, p, t in rows]
    laws = {d: law(d, a=0.01 / d**0.6, kv=20_000 * d) for d in (1, 2, 4)}
    bounds = lower_bounds_s([[work] for work in works], laws, 4)
    best = min(homogeneous_s(works, laws[d], 4 // d) for d in laws)
    assert bounds["work"] <= best * (1 + 1e-9)
    assert bounds["longest_alone"] <= max(group_s(works, laws[d]) for d in laws) * (1 + 1e-9)


def test_the_others_work_costs_the_longest_no_time_while_it_is_in_its_tools():
    others = [Work(output_tokens=10.0, prompt_tokens=5_000.0)] * 200
    alone = {t: Work(output_tokens=10_000.0 - 100.0 * t, tool_s=float(t)) for t in (0, 20, 80)}
    for tool_s, longest in alone.items():
        # As long in all, and ever more of it in tools.
        assert longest.tool_s + law().a_s * longest.output_tokens == pytest.approx(100.0)
        found = homogeneous_s([longest, *others], law(), 1)
        beside_s = group_s([longest, *others], law()) - group_s([longest], law())
        # Spread evenly over the makespan, what falls into the tools is free.
        shared_s = group_s([longest], law()) + beside_s * (1 - tool_s / found)
        assert found == pytest.approx(shared_s)


def test_adding_to_a_load_is_what_asking_first_said():
    load, work = Load(law()), Work(output_tokens=300, prompt_tokens=50, tool_s=1)
    load.add(Work(output_tokens=100), 0.1)
    said = load.finish_s(work, 0.2)
    load.add(work, 0.2)
    assert load.finish_s() == pytest.approx(said)


def test_equal_lengths_keep_their_arrival_order_under_longest_first():
    waiting = [
        Trajectory(id=f"t{i}", arrival=i, remaining=length(m))
        for i, m in enumerate((5, 9, 5, 9, 5))
    ]
    backwards = waiting[::-1]
    first = in_flight_first("longest-first", Standing.of(backwards, Rates()))
    assert [backwards[i].id for i in first] == ["t1", "t3", "t0", "t2", "t4"]


@given(
    st.sampled_from(KNOWN["order"]),
    st.lists(st.tuples(st.integers(0, 99), st.integers(1, 3), st.integers(1, 900)), max_size=9),
)
def test_started_ones_alone_go_in_the_order_they_have_among_all(order, rows):
    returning = [
        Trajectory(f"t{i}", arrival, worker="w0", steps=steps, remaining=length(mean))
        for i, (arrival, steps, mean) in enumerate(rows)
    ]
    among_all = in_flight_first(order, Standing.of(returning, Rates()))
    alone = started_first(order, returning, Rates())
    assert [t.id for t in alone] == [returning[i].id for i in among_all]


states = st.sampled_from(["held", "running", "tool"])
trajectories = st.lists(
    st.tuples(states, st.integers(0, 3), st.integers(0, 4000), st.integers(0, 20_000)), max_size=25
)


def snapshot_of(rows, workers=3, kv=20_000):
    made = []
    for i, (state, home, context, remaining) in enumerate(rows):
        worker = f"w{home}" if home < 3 else None
        if worker is None and state != "held":
            state = "held"
        made.append(
            Trajectory(
                id=f"t{i}",
                arrival=i,
                group=f"g{i % 4}",
                state=state,
                worker=worker,
                steps=0 if worker is None else 1,
                context_tokens=context,
                remaining=length(remaining) if remaining else None,
            )
        )
    return Snapshot(
        trajectories=tuple(made),
        workers=tuple(Worker(id=f"w{i}", latency=law(kv=kv)) for i in range(workers)),
        rates=Rates(tool_s=5.0),
    )


@given(trajectories, st.sampled_from(sorted(PRESETS)), st.integers(0, 3))
@settings(max_examples=80, deadline=None)
def test_every_waiting_step_is_released_once_or_held_with_a_reason(rows, preset, workers):
    snapshot = snapshot_of(rows, workers)
    switches = PRESETS[preset]
    plan = decide(snapshot, switches, RNG)
    released = [r.trajectory for r in plan.releases]
    waiting = [t for t in snapshot.trajectories if t.state == "held"]
    assert sorted([*released, *plan.held]) == sorted(t.id for t in waiting)
    assert all(r.because for r in plan.releases)
    assert all(plan.held.values())
    by_id = {t.id: t for t in snapshot.trajectories}
    unlimited = np.full(workers, math.inf)
    room = (
        getattr(ADMISSIONS[switches.admission](snapshot, Book.of(snapshot)), "limits", unlimited)
        if workers
        else unlimited
    )
    for worker, limit in zip(snapshot.workers, room, strict=True):
        held = sum(t.worker == worker.id for t in snapshot.trajectories)
        fresh = sum(r.worker == worker.id and by_id[r.trajectory].is_fresh for r in plan.releases)
        assert fresh == 0 or held + fresh <= max(limit, held)
    for t in waiting:
        if t.worker in {w.id for w in snapshot.workers} and not roams(switches):
            assert next(r.worker for r in plan.releases if r.trajectory == t.id) == t.worker


def test_in_flight_steps_go_before_fresh_ones_under_every_order():
    rows = [("held", 3, 10, 9000), ("held", 0, 10, 5), ("held", 3, 10, 9000)]
    for order in KNOWN["order"]:
        plan = decide(snapshot_of(rows), changed(PRESETS["verl"], {"order": order}), RNG)
        assert plan.releases[0].trajectory == "t1"


def limits(admission, snapshot):
    allowance = ADMISSIONS[admission](snapshot, Book.of(snapshot))
    assert isinstance(allowance, Counts)
    return set(allowance.limits.tolist())


def test_hold_count_is_the_room_over_the_mean_peak_and_at_least_one():
    rows = [("held", 3, 1000, 4000)] * 10
    snapshot = snapshot_of(rows)
    assert limits("hold-count", snapshot) == {4}
    assert limits("hold-count", snapshot_of(rows, kv=10)) == {1}
    assert limits("none", snapshot) == {math.inf}


def test_who_stays_away_in_its_tool_gives_up_its_place():
    away = Trajectory(
        id="away",
        arrival=0,
        state="tool",
        worker="w0",
        steps=1,
        tool_since_s=-61.0,
        context_tokens=4,
        remaining=length(5),
    )
    fresh = Trajectory(id="new", arrival=1, context_tokens=4, remaining=length(5))
    one = Snapshot(trajectories=(away, fresh), workers=(Worker(id="w0", latency=law(kv=5)),))
    back = replace(one, trajectories=(away._replace(tool_since_s=-5.0), fresh))
    assert [r.trajectory for r in decide(one, PRESETS["heddle"], RNG).releases] == ["new"]
    assert decide(back, PRESETS["heddle"], RNG).releases == ()


def test_soonest_prefers_the_worker_that_holds_the_siblings_prompt():
    running = Trajectory(
        id="s", arrival=0, group="g", state="running", worker="w1", prompt_tokens=9000,
        context_tokens=9000, remaining=length(1),
    )  # fmt: skip
    other = running._replace(id="o", group="h", worker="w0")
    fresh = Trajectory(
        id="f", arrival=1, group="g", prompt_tokens=9000, context_tokens=9000, remaining=length(1)
    )
    snapshot = Snapshot(
        trajectories=(other, running, fresh),
        workers=tuple(Worker(id=f"w{i}", latency=law(kv=10**6)) for i in range(2)),
    )
    plan = decide(snapshot, changed(PRESETS["verl"], {"placement": "soonest"}), RNG)
    assert plan.releases[0].worker == "w1"


def test_rank_moves_only_from_tools_one_a_source_and_target_longest_first():
    made = [
        Trajectory(
            id=f"t{i}", arrival=i, state="tool" if i != 0 else "running", worker="w1", steps=1,
            context_tokens=10, remaining=length(1000 - 10 * i),
        )
        for i in range(20)
    ]  # fmt: skip
    snapshot = Snapshot(
        trajectories=tuple(made),
        workers=tuple(Worker(id=f"w{i}", latency=law(kv=10**6)) for i in range(2)),
        rates=Rates(tool_s=5.0),
    )
    moves = rank(snapshot, Book.of(snapshot))
    assert [(m.trajectory, m.source, m.target) for m in moves] == [("t1", "w1", "w0")]
    hasty = replace(snapshot, rates=Rates(tool_s=0.0))
    assert rank(hasty, Book.of(hasty)) == []


def test_group_edges_scale_the_planned_shares_to_who_is_alive():
    workers = [Worker(id=f"w{i}", latency=law(), share=s) for i, s in enumerate((10, 30, 60))]
    assert group_edges(workers, 50) == [5, 20, 50]
    assert group_edges([replace(w, share=0) for w in workers], 9) == [3, 6, 9]


def test_presets_name_known_policies_and_unknown_ones_are_told_the_known():
    for switches in PRESETS.values():
        for choice in CHOICES:
            assert getattr(switches, choice) in KNOWN[choice]
    assert preset_name(PRESETS["verl"]) == "verl"
    assert preset_name(changed(PRESETS["verl"], {"order": "longest-first"})) is None
    with pytest.raises(CoreError, match="no order policy called 'sjf'; choose one of fcfs, least"):
        changed(PRESETS["verl"], {"order": "sjf"})
