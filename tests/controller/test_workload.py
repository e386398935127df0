"""Does a generated workload have the statistics its preset promises, and nothing left to chance?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heddle.controller.emulator.presets import PRESETS
from heddle.controller.emulator.workload import (
    StepSpec,
    TrajectorySpec,
    UnknownPreset,
    WorkloadError,
    generate,
    latents,
    workload_hash,
)

NAMES = sorted(PRESETS)


def between_share(made, samples):
    logs = np.log([t.output_tokens for t in made]).reshape(-1, samples)
    within = logs.var(axis=1, ddof=1).mean()
    between = logs.mean(axis=1).var(ddof=1) - within / samples
    return between / (between + within)


@pytest.mark.parametrize("preset", NAMES)
def test_the_prompt_explains_between_046_and_073_of_the_log_variance(preset):
    assert 0.42 < between_share(generate(preset, groups=48), 16) < 0.77


@pytest.mark.parametrize("preset", NAMES)
def test_median_output_and_tail_follow_the_preset(preset):
    law = PRESETS[preset]
    tokens = np.array([t.output_tokens for t in generate(preset, groups=32)])
    assert np.median(tokens) == pytest.approx(law.output.median, rel=0.2)
    assert tokens.max() <= law.max_output_tokens
    assert np.quantile(tokens, 0.99) > 2.5 * np.median(tokens)


@pytest.mark.parametrize("preset", NAMES)
def test_every_trajectory_keeps_its_caps_and_ends_without_a_tool(preset):
    law = PRESETS[preset]
    for made in generate(preset, groups=8, samples=8, seed=3):
        assert 1 <= len(made.steps) <= law.max_steps
        assert made.steps[-1].tool_name is None
        assert made.steps[-1].tool_s == 0.0
        assert all(s.output_tokens >= 1 and s.observation_tokens >= 1 for s in made.steps)
        for step in made.steps[:-1]:
            assert law.tool_floor_s <= step.tool_s <= law.tool_cap_s


@pytest.mark.parametrize("name", ["seed", "epoch", "groups", "samples"])
def test_a_number_below_0_is_refused_by_its_name(name):
    with pytest.raises(WorkloadError, match=f"{name} is a whole number from 0 up, not -1"):
        generate("demo", **{name: -1})


def test_what_a_prompt_is_like_is_refused_in_the_same_words():
    with pytest.raises(WorkloadError, match="seed is a whole number from 0 up, not -3"):
        latents("demo", group=0, seed=-3)


def test_one_seed_makes_one_workload_and_another_seed_another():
    assert generate("demo", seed=5) == generate("demo", seed=5)
    assert workload_hash(generate("demo", seed=5)) != workload_hash(generate("demo", seed=6))


def test_an_epoch_keeps_groups_and_prompts_and_varies_the_samples():
    first, second = (generate("demo", groups=16, epoch=e) for e in (0, 1))
    assert [t.group_id for t in first] == [t.group_id for t in second]
    assert [t.prompt_tokens for t in first] == [t.prompt_tokens for t in second]
    assert not {t.trajectory_id for t in first} & {t.trajectory_id for t in second}
    means = [
        np.log([t.output_tokens for t in e]).reshape(16, 16).mean(axis=1) for e in (first, second)
    ]
    assert np.corrcoef(means[0], means[1])[0, 1] > 0.8


def test_more_groups_leave_the_first_ones_as_they_were():
    assert generate("search", groups=20)[: 5 * 16] == generate("search", groups=5)


def test_coding_tools_are_bimodal_as_bash_against_reads():
    seconds = [
        s.tool_s for t in generate("coding", groups=16) for s in t.steps if s.tool_name == "bash"
    ]
    reads = [
        s.tool_s for t in generate("coding", groups=16) for s in t.steps if s.tool_name == "read"
    ]
    assert np.median(seconds) == pytest.approx(6.9, rel=0.1)
    assert np.quantile(seconds, 0.9) == pytest.approx(10.9, rel=0.15)
    assert np.quantile(reads, 0.99) < 0.2


def test_the_hash_sees_every_field():
    made = generate("math", groups=1, samples=2)
    changed = [made[0], replace(made[1], truncated=not made[1].truncated)]
    assert workload_hash(made) != workload_hash(changed)


def test_peak_context_counts_prompt_observations_and_outputs_and_a_reset_forgets():
    steps = (
        StepSpec(100, 10, "a", 1.0),
        StepSpec(50, 10, "a", 1.0),
        StepSpec(5, 10, None, 0.0, reset=True),
    )
    made = TrajectorySpec("t", "g", 0, "x", steps)
    assert made.peak_context_tokens == 170
    assert made.output_tokens == 30
    assert made.tool_s == 2.0


def test_an_unknown_preset_is_answered_with_the_known_ones():
    with pytest.raises(UnknownPreset, match="choose one of coding, demo, math"):
        generate("chess")
