"""Is a paired replay the same rollout under each policy, and is its summary arithmetic?"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, replace

import numpy as np
import polars as pl
import pytest

from heddle.app.ablation import ablation, expanded
from heddle.app.commands.compare import _processes, barrier_of, compare, fleets_of
from heddle.app.errors import AppError
from heddle.app.replay import Cell, from_store, generated, play, summary, switches_of
from heddle.app.replay_beliefs import beliefs_of, foreseen, perturbed, seen_of
from heddle.controller.beliefs import Expected
from heddle.controller.core.types import CoreError
from heddle.controller.emulator.presets import PRESETS
from heddle.controller.emulator.request import EngineConfig
from heddle.controller.emulator.rollout import RUN
from heddle.controller.emulator.workload import generate
from heddle.controller.laws import laws

SMALL = generated("demo", seed=1, groups=2, samples=4, gpus=2)


def test_policies_meet_the_same_rollout_and_lose_no_decision():
    rows = [play(SMALL, policy) for policy in ("verl", "heddle", "heddle-paper")]
    assert len({row["workload_hash"] for row in rows}) == 1
    assert [row["failures"] for row in rows] == [0, 0, 0]
    for row in rows:
        gpu_s = row["prefill_gpu_s"] + row["decode_gpu_s"] + row["idle_gpu_s"]
        assert gpu_s == pytest.approx(2 * row["makespan_s"])
        assert row["makespan_s"] >= 0.9 * row["bound_s"]
    assert play(SMALL, "heddle") | {"cpu_s": 0} == rows[1] | {"cpu_s": 0}


def test_a_summary_is_the_paired_ratio_to_the_first_policy():
    rows = [
        {"cell": cell, "policy": policy, "makespan_s": makespan, "predicted_s": 100.0,
         "bound_s": 50.0, "moves": 1, "held_s": 0.0, "prefilled_tokens": 9, "idle_gpu_s": 0.0}
        for cell, policy, makespan in (("a", "x", 100.0), ("b", "x", 200.0), ("a", "y", 50.0),
                                       ("b", "y", 160.0))
    ]  # fmt: skip
    base, other = summary(rows)
    assert (base["speed_up"], base["least"], base["most"]) == (1.0, 1.0, 1.0)
    assert (other["least"], other["speed_up"], other["most"]) == (1.25, 1.625, 2.0)


def test_a_foreseen_length_is_exact_without_error_and_calibrated_with_it():
    past = generate("math", groups=20, samples=8, seed=3, epoch=0)
    now = generate("math", groups=20, samples=8, seed=3, epoch=1)
    sure = foreseen(past, now, 0.0, 1)
    for one in now:
        law = sure.laws[one.trajectory_id]
        assert law.quantile(0.5) == pytest.approx(one.output_tokens, rel=0.01)
    unsure = foreseen(past, now, 0.6, 1)
    inside = [
        unsure.laws[t.trajectory_id].quantile(0.1)
        <= t.output_tokens
        <= unsure.laws[t.trajectory_id].quantile(0.9)
        for t in now
    ]
    assert 0.7 <= np.mean(inside) <= 0.9


def test_what_a_controller_saw_of_an_epoch_is_its_tools_and_growth():
    past = generate("search", groups=2, samples=4, seed=0)
    rates = seen_of(past).rates()
    assert rates.context_per_output > 2
    tools = sum(len(t.steps) - 1 for t in past)
    assert rates.tool_s == pytest.approx(sum(t.tool_s for t in past) / tools)


def test_a_stored_rollout_comes_back_as_the_trajectories_it_was():
    (one,) = generate("demo", groups=1, samples=1, seed=4)
    steps, tools, context = [], [], 0
    for i, step in enumerate(one.steps):
        given = context + step.observation_tokens
        steps.append({"trajectory_id": "t", "group_id": "g", "step_index": i,
                      "input_tokens": given, "output_tokens": step.output_tokens})  # fmt: skip
        if step.tool_name:
            tools.append({"trajectory_id": "t", "step_index": i, "tool_name": step.tool_name,
                          "duration_s": step.tool_s})  # fmt: skip
        context = given + step.output_tokens
    (back,) = from_store(pl.DataFrame(steps), pl.DataFrame(tools))
    assert back.steps == one.steps


def test_a_stored_context_that_shrank_begins_as_long_as_it_was_recorded():
    rows = [(100, 50), (150, 0), (160, 40), (190, 30), (120, 20), (None, 5)]
    steps = [
        {"trajectory_id": "t", "group_id": None, "step_index": i, "input_tokens": given,
         "output_tokens": made}
        for i, (given, made) in enumerate(rows)
    ]  # fmt: skip
    none = pl.DataFrame(schema=["trajectory_id", "step_index", "tool_name", "duration_s"])
    (back,) = from_store(pl.DataFrame(steps), none)
    # 190 is ten short of the 200 it had: its end went. 120 is less than it began with: compacted.
    assert [(s.observation_tokens, s.reset) for s in back.steps] == [
        (100, False), (10, False), (-10, False), (20, True), (0, False)
    ]  # fmt: skip
    assert play(replace(SMALL, now=[back], past=[back]), "heddle")["errors"] == {}


def test_the_causes_add_up_to_all_gpus_also_where_the_layout_leaves_some_over():
    row = play(replace(SMALL, gpus=3), "verl/allocation=fixed-2")
    gpu_s = row["prefill_gpu_s"] + row["decode_gpu_s"] + row["idle_gpu_s"]
    assert row["layout"] == "2"
    assert gpu_s == pytest.approx(3 * row["makespan_s"])
    assert row["idle_gpu_s"] > row["makespan_s"]


def test_processes_that_compare_end_with_whoever_is_interrupted():
    before, asked = set(multiprocessing.active_children()), []

    def interrupted(pool):
        asked.extend([pool.submit(os.getpid), pool.submit(time.sleep, 600)])
        assert asked[0].result() != os.getpid()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), _processes(1) as pool:
        interrupted(pool)
    assert set(multiprocessing.active_children()) == before
    assert isinstance(asked[1].exception(), BrokenProcessPool)


def test_a_process_that_was_killed_is_one_sentence():
    with pytest.raises(AppError, match="fewer --workers"), _processes(1) as pool:
        pool.submit(os.abort).result()


def test_a_rollout_of_nobody_is_refused_and_not_waited_for():
    with pytest.raises(CoreError, match="at least one trajectory"):
        play(replace(SMALL, now=[]), "verl")


@pytest.mark.parametrize(
    "spelled",
    ["nobody", "", "verl/order", "verl/order=chance", "verl/who=x", "verl/order=fcfs/order=fcfs"],
)
def test_an_unknown_policy_is_refused_with_a_sentence(spelled):
    with pytest.raises(AppError):
        switches_of(spelled)


def test_changes_of_a_preset_are_its_switches():
    assert switches_of("verl/allocation=fixed-4").allocation == "fixed-4"
    assert isinstance(SMALL, Cell)


def test_a_barrier_cuts_whoever_has_not_finished_and_carries_their_tokens():
    whole = play(SMALL, "heddle")
    early = play(replace(SMALL, first=5), "heddle")
    assert (whole["cut"], whole["carried_tokens"], whole["stale_share"]) == (0, 0, 0.0)
    assert (early["cut"], len(early["cut_longest"])) == (3, 3)
    assert early["makespan_s"] < whole["makespan_s"]
    assert 0 < early["stale_share"] < 1
    # The bound and the forecast are of the whole rollout: nothing to hold a part of it against.
    (told,) = summary([early])
    assert (told["of_bound"], told["off_plan"], told["cut"]) == (None, None, 3)
    half = play(replace(SMALL, cutoff_s=whole["makespan_s"] / 2), "heddle")
    assert half["makespan_s"] == pytest.approx(whole["makespan_s"] / 2)
    assert half["cut"] > 0


def test_what_no_engine_takes_is_counted_and_not_passed_over():
    """A context beyond the model's window ends its trajectory there."""
    one = SMALL.now[0]
    deep = replace(one, steps=(replace(one.steps[0], observation_tokens=140_000), *one.steps[1:]))
    row = play(replace(SMALL, now=[deep, *SMALL.now[1:]]), "verl")
    assert (play(SMALL, "verl")["errors"], sum(row["errors"].values())) == ({}, 1)
    assert summary([row])[0]["failed"] == 1


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_fits_the_window_of_the_models(preset):
    deepest = max(t.peak_context_tokens for t in generate(preset, groups=25, seed=0))
    assert deepest < EngineConfig().context_tokens


def test_arrivals_over_longer_than_the_rollout_end_after_the_last_one_came():
    spread = play(replace(SMALL, arrivals_s=2_000.0), "heddle")
    assert spread["makespan_s"] > 2_000.0 * 7 / 8


def test_more_gpus_are_a_row_of_their_own_against_the_first(capsys):
    source = {"file": None, "rollout": None, "workload": "demo", "groups": 1}
    asked = {
        "gpus": fleets_of("2,4,2"), "model": "Qwen3-14B", "error": None, "workers": 1,
        "barrier": "all", "arrivals_s": 0.0, "seed": 0, "seeds": 1, "collector": None,
        "ray": None, "save": False,
    }  # fmt: skip
    compare(["verl"], source, asked, json=True)
    told = json.loads(capsys.readouterr().out)["summary"]
    assert [row["policy"] for row in told] == ["verl on 2", "verl on 4"]
    assert told[1]["speed_up"] > 1.0
    compare(["verl", "heddle"], source, {**asked, "barrier": "first:3"}, json=False)
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said if line.startswith("verl on 2 ")] == ["verl"] * 3
    assert sum(line.startswith(("makespan", "policy")) for line in said) == 3


@pytest.mark.parametrize(
    "spelled", ["first:0", "first:x", "cutoff:-1", "cutoff:nan", "half", "all:3"]
)
def test_a_barrier_that_is_none_says_what_there_is(spelled):
    with pytest.raises(AppError, match="--barrier expects all, first:N or cutoff:SECONDS"):
        barrier_of(spelled)


def test_a_fixed_degree_that_the_fleet_does_not_hold_is_refused_before_anything_is_played():
    asked = {"gpus": [8, 4], "model": None}
    with pytest.raises(AppError, match="needs 8 GPUs an engine; the fleet has 4"):
        compare(["verl", "heddle/allocation=fixed-8"], {}, asked, json=False)
    with pytest.raises(AppError, match="needs 8 GPUs an engine; the fleet has 4"):
        compare(["heddle/allocation=fixed-8/order=fcfs"], {}, asked, json=False)


def test_the_perturbed_laws_keep_their_degrees_and_are_all_wrong():
    known = laws("h100_sxm", "Qwen3-14B")
    told = perturbed(known)
    assert set(told) == set(known)
    assert all(told[d].kv_tokens > known[d].kv_tokens for d in known)
    assert {told[d].a_s > known[d].a_s for d in known} == {True, False}


def test_a_longer_trajectory_is_expected_to_take_as_many_more_steps_and_tools():
    past = generate("coding", groups=2, samples=8, seed=0)
    group = Expected(group=past[0].group_id, samples=2, task="coding", prompt_tokens=100)
    short, long = beliefs_of(past).works_of(RUN, group, [1_000.0, 4_000.0])
    assert long.tool_s == pytest.approx(4 * short.tool_s)
    assert long.steps == pytest.approx(4 * short.steps)
    usual = np.mean([t.tool_s for t in past if t.group_id == group.group])
    mean = np.mean([t.output_tokens for t in past if t.group_id == group.group])
    assert short.tool_s == pytest.approx(usual * 1_000.0 / mean, rel=0.5)


def test_an_ablation_takes_each_lever_away_once_and_gives_each_alone_once():
    policies = ablation()
    assert policies[:2] == ["verl", "heddle"]
    assert len(set(policies)) == len(policies)
    full, base = (asdict(switches_of(name)) for name in ("heddle", "verl"))
    for choice in full:
        removed = {**full, choice: base[choice]}
        alone = {**base, choice: full[choice]}
        spelled = [asdict(switches_of(policy)) for policy in policies]
        assert (removed in spelled, alone in spelled) == (True, True), choice
    assert expanded(["slime", "ablation", "verl"], 8) == ["slime", *policies]
    # Fix-8 on four GPUs ended the whole comparison after half of it.
    left_out = set(policies) - set(expanded(["ablation"], 4))
    assert left_out == {"heddle/allocation=fixed-8"}
