"""Does a fleet in virtual time play every step once, by the real loop, and always the same way?"""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest

from heddle.controller.core.policies import PRESETS
from heddle.controller.core.types import CoreError
from heddle.controller.emulator.request import EngineConfig
from heddle.controller.emulator.rollout import Death, Setup, Sync, run_rollout
from heddle.controller.emulator.workload import StepSpec, TrajectorySpec, generate

SMALL = generate("demo", groups=4, samples=6, seed=2)
TWO = Setup(gpus=2, layout=(1, 1))
TOKENS = sum(t.output_tokens for t in SMALL)


def played(result):
    return {
        trajectory: [(s.step_index, s.output_tokens) for s in steps]
        for trajectory, steps in groupby(
            sorted(result.steps, key=lambda s: (s.trajectory_id, s.step_index, s.attempt)),
            key=lambda s: s.trajectory_id,
        )
    }


def wanted(workload):
    return {
        t.trajectory_id: [(i, s.output_tokens) for i, s in enumerate(t.steps)] for t in workload
    }


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_step_of_the_workload_is_played_once_with_its_tokens(preset):
    result = run_rollout(SMALL, preset=preset, setup=TWO)
    assert result.failures == 0
    assert result.finished == len(SMALL)
    assert played(result) == wanted(SMALL)
    assert len(result.tools) == sum(len(t.steps) - 1 for t in SMALL)


def test_one_seed_is_one_rollout_and_another_seed_another():
    once, again, other = (run_rollout(SMALL, seed=seed, setup=TWO) for seed in (3, 3, 4))
    assert once.digest() == again.digest()
    assert once.digest() != other.digest()
    assert once.truth_hash == again.truth_hash != other.truth_hash


def test_the_parts_of_a_step_fill_it_and_a_trajectory_is_steps_and_tools():
    result = run_rollout(SMALL, preset="verl", setup=TWO)
    for step in result.steps:
        parts = step.held_s + step.queue_s + step.prefill_s + step.decode_s
        assert parts == pytest.approx(step.end_s - step.arrived_s, abs=1e-6)
    for t in result.trajectories:
        assert t.end_s is not None
        parts = t.held_s + t.queue_s + t.prefill_s + t.decode_s + t.tool_s
        assert parts == pytest.approx(t.end_s - t.start_s, abs=1e-4)
    assert result.makespan_s == max(t.end_s or 0.0 for t in result.trajectories)


def test_the_engines_log_never_overlaps_and_holds_all_that_steps_spent_there():
    result = run_rollout(SMALL, preset="verl", setup=TWO)
    for worker in result.workers:
        mine = [p for p in result.passes if p.worker_id == worker.worker_id]
        assert all(a.end_s <= b.start_s for a, b in pairwise(mine))
        for step in result.steps:
            if step.worker_id == worker.worker_id:
                busy_s = sum(
                    max(0.0, min(p.end_s, step.end_s) - max(p.start_s, step.end_s - step.decode_s))
                    for p in mine
                )
                assert busy_s == pytest.approx(step.decode_s, abs=1e-6)


def test_contexts_that_stay_in_room_are_hit_whole_and_siblings_share_the_prompt():
    # Those that arrive together are prefilled together, as in SGLang: each by itself.
    apart_s = [5.0 * i for i in range(len(SMALL))]
    result = run_rollout(SMALL, preset="verl", gpus=8, layout=(8,), arrivals_s=apart_s)
    kept = {t.trajectory_id: t for t in SMALL}
    for step in result.steps:
        spec = kept[step.trajectory_id].steps[step.step_index]
        if step.step_index:
            new = spec.observation_tokens
            assert step.input_tokens - step.cached_tokens in (new, new + 1)
    shared = [s.cached_tokens for s in result.steps if s.step_index == 0]
    assert sum(shared) > 0.8 * sum(t.prompt_tokens for t in SMALL) * 5 / 6


def test_when_an_engine_dies_its_steps_go_on_elsewhere_and_it_comes_back_empty():
    result = run_rollout(
        SMALL, preset="verl", setup=TWO, deaths=[Death(worker_id="w0", at_s=20.0, back_s=60.0)]
    )
    assert result.deaths[0].lost_steps > 0
    assert result.finished == len(SMALL)
    lost = [s for s in result.steps if s.error == "engine_lost"]
    assert len(lost) == result.deaths[0].lost_steps
    assert {s.worker_id for s in lost} == {"w0"}
    down = [p for p in result.passes if p.state == "down"]
    assert [(p.worker_id, p.start_s, p.end_s) for p in down] == [("w0", 20.0, 60.0)]
    assert not [
        s for s in result.steps if s.worker_id == "w0" and not s.error and 20 < s.end_s < 60
    ]


def test_a_dead_engines_lease_ends_and_the_next_generations_begins_when_it_answers_again():
    result = run_rollout(
        SMALL, preset="verl", setup=TWO, deaths=[Death(worker_id="w0", at_s=20.0, back_s=60.0)]
    )
    whole, first, second = sorted(result.leases, key=lambda one: (one.worker_id == "w0", one))
    end_s = pytest.approx(result.makespan_s, abs=1e-9)
    assert whole == ("w1", 0, 1, 0.0, end_s)
    assert first == ("w0", 0, 1, 0.0, 20.0)
    assert (second.worker_id, second.generation, second.end_s) == ("w0", 1, end_s)
    # The dead are asked every 0.5 wall seconds, at x20.
    assert 60.0 <= second.start_s <= 70.0


def test_when_every_engine_dies_the_rollout_ends_and_says_why():
    deaths = [Death(worker_id=w, at_s=10.0) for w in ("w0", "w1")]
    result = run_rollout(SMALL, preset="verl", setup=TWO, deaths=deaths)
    assert result.finished == 0
    assert {t.error for t in result.trajectories} <= {"engine_lost", "NoWorker"}


@pytest.mark.parametrize("mode", ["retract", "in_place", "abort"])
def test_new_weights_reach_every_engine_and_no_token_is_lost(mode):
    result = run_rollout(
        SMALL, preset="verl", setup=TWO, syncs=[Sync(at_s=25.0, version="v2", mode=mode)]
    )
    assert {(s.worker_id, s.version) for s in result.syncs} == {("w0", "v2"), ("w1", "v2")}
    served_s = max(s.end_s for s in result.syncs)
    assert {s.weight_version for s in result.steps if s.end_s > served_s} == {"v2"}
    assert sum(t.output_tokens for t in result.trajectories) == TOKENS
    assert any(p.state == "weight_sync" for p in result.passes)


@pytest.mark.parametrize("at_s", range(5, 30, 3))
def test_an_abort_for_new_weights_waits_for_the_prefill_under_way_where_others_queue(at_s):
    short = EngineConfig(max_running=2, chunk_tokens=512)
    sync = Sync(at_s=at_s, version="v2", mode="abort")
    result = run_rollout(SMALL, preset="verl", setup=TWO, engine=short, syncs=[sync])
    assert {s.worker_id for s in result.syncs} == {"w0", "w1"}
    assert sum(t.output_tokens for t in result.trajectories) == TOKENS


@pytest.mark.parametrize("mode", ["retract", "in_place", "abort"])
def test_weights_that_come_while_others_are_loaded_are_loaded_after_them(mode):
    syncs = [Sync(at_s=22.0, version="v2"), Sync(at_s=25.0, version="v3", mode=mode)]
    result = run_rollout(SMALL, preset="verl", setup=TWO, syncs=syncs)
    assert sorted((s.version, s.worker_id) for s in result.syncs) == [
        ("v2", "w0"), ("v2", "w1"), ("v3", "w0"), ("v3", "w1"),
    ]  # fmt: skip
    served_s = max(s.end_s for s in result.syncs)
    assert {s.weight_version for s in result.steps if s.end_s > served_s} == {"v3"}
    assert sum(t.output_tokens for t in result.trajectories) == TOKENS
    for _, rows in groupby(result.passes, key=lambda p: p.worker_id):
        assert all(one.end_s <= other.start_s for one, other in pairwise(rows))


@pytest.mark.parametrize("back_s", [None, 25.5, 60.0])
def test_an_engine_that_dies_while_it_loads_new_weights_loads_them_no_further(back_s):
    result = run_rollout(
        SMALL, preset="verl", setup=TWO,
        syncs=[Sync(at_s=22.0, version="v2")],
        deaths=[Death(worker_id="w0", at_s=25.0, back_s=back_s)],
    )  # fmt: skip
    assert [s.worker_id for s in result.syncs] == ["w1"]
    assert sum(t.output_tokens for t in result.trajectories) == TOKENS
    loading = [p for p in result.passes if (p.worker_id, p.state) == ("w0", "weight_sync")]
    assert [p.end_s for p in loading] == [25.0]
    for _, rows in groupby(result.passes, key=lambda p: p.worker_id):
        assert all(one.end_s <= other.start_s for one, other in pairwise(rows))


def test_a_step_that_an_engines_queue_has_no_place_for_tries_again_as_in_the_data_plane():
    short = EngineConfig(max_running=2, max_queued=1)
    result = run_rollout(SMALL, preset="verl", setup=TWO, engine=short)
    tried = [s for s in result.steps if s.error]
    assert {s.error for s in tried} == {"engine_full"}
    good = [s for s in result.steps if not s.error]
    assert sum(s.output_tokens for s in good) == TOKENS
    assert len(good) == sum(len(t.steps) for t in SMALL)
    # A quarter of a wall second the first time, and a fleet lives 20 times as fast.
    pauses_s = [s.end_s - s.arrived_s - s.held_s for s in tried if s.attempt == 0]
    assert pauses_s == pytest.approx([5.0] * len(pauses_s))


def test_a_step_that_was_refused_is_not_lost_again_when_its_engine_dies():
    long = TrajectorySpec("long", "long", 0, "x", (StepSpec(5000, 10, None, 0.0),))
    result = run_rollout(
        [*SMALL, long], preset="verl", setup=TWO, engine=EngineConfig(context_tokens=4096),
        deaths=[Death(worker_id=w, at_s=20.0, back_s=21.0) for w in ("w0", "w1")],
    )  # fmt: skip
    assert [t.error for t in result.trajectories if t.trajectory_id == "long"] == ["http_400"]
    assert [s.error for s in result.steps if s.trajectory_id == "long"] == ["http_400"]


def test_a_cutoff_ends_the_rollout_there_and_keeps_what_was_done():
    whole = run_rollout(SMALL, preset="verl", setup=TWO)
    cut = run_rollout(SMALL, preset="verl", setup=TWO, cutoff_s=30.0)
    assert cut.makespan_s == 30.0
    assert cut.steps == [s for s in whole.steps if s.end_s <= 30.0]
    first = run_rollout(SMALL, preset="verl", setup=TWO, first=10)
    ends = sorted(t.end_s for t in whole.trajectories if t.end_s is not None)
    assert first.makespan_s == ends[9]


def test_arrivals_over_time_begin_when_they_are_told_to():
    result = run_rollout(
        SMALL, preset="verl", setup=TWO, arrivals_s=[float(i) for i in range(len(SMALL))]
    )
    begun = {s.trajectory_id: s.arrived_s for s in result.steps if s.step_index == 0}
    assert [begun[t.trajectory_id] for t in SMALL] == pytest.approx(range(len(SMALL)))


def test_an_engine_slower_than_believed_is_slower():
    even = run_rollout(SMALL, preset="verl", setup=TWO)
    slow = run_rollout(SMALL, preset="verl", setup=TWO, slow_s={"w0": 0.02})
    assert slow.makespan_s > 1.3 * even.makespan_s


def test_a_move_is_carried_out_by_the_real_mover_and_its_hit_recorded():
    long = (StepSpec(200, 2500, "t", 30.0), StepSpec(50, 2500, None, 0.0))
    workload = [TrajectorySpec(f"t{i}", f"g{i}", 0, "x", long) for i in range(8)]
    workload += [TrajectorySpec("s", "s", 0, "x", (StepSpec(100, 10, None, 0.0),))]
    switches = PRESETS["heddle"]
    result = run_rollout(workload, switches=switches, setup=Setup(gpus=3, layout=(2, 1)))
    assert result.finished == 9
    for move in result.moves:
        assert move.source != move.target
        assert move.hidden_s + move.exposed_s == pytest.approx(move.end_s - move.start_s)


def test_a_fleet_short_of_kv_retracts_and_still_ends():
    result = run_rollout(
        SMALL,
        preset="verl",
        setup=TWO,
        engine=EngineConfig(kv_tokens=36_000, context_tokens=32_768),
    )
    assert result.finished == len(SMALL)
    assert sum(t.retractions for t in result.trajectories) > 0


@pytest.mark.parametrize("odd", [{"layout": ()}, {"gpus": 0}, {"gpus": -1}, {"seed": -1}])
def test_a_rollout_on_nothing_is_refused(odd):
    """On no engine it ended after 0 s with nothing done."""
    with pytest.raises(CoreError, match="at least one GPU"):
        run_rollout(generate("demo", groups=1, samples=1), preset="verl", **odd)
