"""Does the coding workload look like the public agent logs it is fitted to, and is it frozen?

The right-hand sides are figures of public logs: agentcgroup (SWE tasks), kv_cache_tester, tau_bench
and terminal_bench. A changed hash means that earlier results cannot be compared any more.
"""

from __future__ import annotations

import numpy as np
import pytest

from heddle.controller.emulator.workload import generate, workload_hash

FROZEN = {
    "demo": "8d2404fa4be984ea",
    "coding": "95d9c02a496d4633",
    "search": "1fe770b6114254fa",
    "math": "b0b581086113d1af",
    "prefill-heavy": "dcc3ee5ca679093b",
}


@pytest.fixture(scope="module")
def coding():
    return generate("coding", groups=48)


def quantiles(values):
    return [float(x) for x in np.quantile(values, [0.5, 0.9, 0.99, 1.0])]


def reused(trajectories):
    """Share of the input of later steps that the step before already had."""
    known = given = 0
    for trajectory in trajectories:
        context = 0
        for index, step in enumerate(trajectory.steps):
            base = trajectory.prompt_tokens if step.reset else context
            if index:
                known += base
                given += base + step.observation_tokens
            context = base + step.observation_tokens + step.output_tokens
    return known / given


@pytest.mark.parametrize("preset", sorted(FROZEN))
def test_every_preset_is_frozen(preset):
    assert workload_hash(generate(preset, groups=2, samples=4)) == FROZEN[preset]


def test_steps_are_as_many_as_in_agentcgroup(coding):
    median, p90, p99, _ = quantiles([len(t.steps) for t in coding])
    assert median == pytest.approx(34, rel=0.2)
    assert p90 == pytest.approx(84, rel=0.2)
    assert p99 == pytest.approx(123, rel=0.2)


def test_outputs_are_as_long_and_as_long_tailed_as_in_agentcgroup(coding):
    tokens = np.array([t.output_tokens for t in coding])
    median, p90, _, longest = quantiles(tokens)
    assert median == pytest.approx(6_443, rel=0.25)
    assert p90 == pytest.approx(19_347, rel=0.2)
    assert 4 <= longest / median <= 9.5
    ranked = np.sort(tokens)[::-1]
    assert 0.20 <= ranked[: len(ranked) // 10].sum() / ranked.sum() <= 0.37


def test_tool_seconds_are_as_in_agentcgroup(coding):
    median, p90, p99, _ = quantiles([s.tool_s for t in coding for s in t.steps if s.tool_name])
    assert median == pytest.approx(0.05, abs=0.02)
    assert p90 == pytest.approx(9.1, rel=0.2)
    assert 20 < p99 < 40
    mean_s = np.mean([s.tool_s for t in coding for s in t.steps if s.tool_name])
    assert mean_s == pytest.approx(3.4, rel=0.15)


def test_later_steps_reuse_as_much_of_their_input_as_the_logs(coding):
    assert reused(coding) == pytest.approx(0.974, abs=0.01)
    assert reused(generate("prefill-heavy", groups=16)) > 0.86


def test_a_context_is_reset_in_about_nine_steps_of_a_thousand(coding):
    resets = [s.reset for t in coding for s in t.steps[1:]]
    assert np.mean(resets) == pytest.approx(0.009, abs=0.003)


def test_four_samples_of_a_group_differ_as_much_as_in_tau_bench_and_terminal_bench(coding):
    four = np.array([t.output_tokens for t in coding]).reshape(-1, 16)[:, :4]
    spread = np.median(four.max(axis=1) / np.median(four, axis=1))
    assert 1.25 <= spread <= 1.5
