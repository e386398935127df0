"""Does the planner expect what a rollout will be: contexts that fall back, lengths that limits cut,
and all that ended before it?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.app.replay_beliefs import beliefs_of
from heddle.controller import beliefs as beliefs_module
from heddle.controller.beliefs import Beliefs, Expected, Seen
from heddle.controller.core.types import SELDOM, Work, kept_depth
from heddle.controller.dataplane.usage import Usage
from heddle.controller.emulator.rollout import RUN
from heddle.controller.emulator.workload import generate
from heddle.controller.live import LiveTrajectory

STEPS = 4_000


def walked_depth(rate, rng):
    """Mean depth of a context that grows by one a step, falls back at random, over half of all."""
    falls = rng.random(STEPS) < rate / STEPS
    last = np.maximum.accumulate(np.where(falls, np.arange(STEPS), 0))
    return float((np.arange(STEPS) - last).mean()) / (STEPS / 2)


@pytest.mark.parametrize("rate", [0.1, 1.0, 5.0])
def test_the_kept_depth_is_that_of_contexts_that_fall_back_at_random(rate):
    rng = np.random.default_rng(7)
    walks = np.array([walked_depth(rate, rng) for _ in range(2_000)])
    error = float(walks.std()) / len(walks) ** 0.5
    assert kept_depth(rate) == pytest.approx(float(walks.mean()), abs=4 * error + 1 / STEPS)


@given(st.floats(0.0, 50.0), st.floats(0.0, 50.0))
def test_more_resets_never_keep_more(some, more):
    few, many = sorted((some, more))
    assert 0.0 < kept_depth(many) <= kept_depth(few) + 1e-9 <= 1.0 + 1e-9


def test_the_series_meets_the_closed_form_where_it_takes_over():
    below, above = kept_depth(SELDOM * (1 - 1e-9)), kept_depth(SELDOM)
    assert below == pytest.approx(above, abs=SELDOM**2)


def stepped(seen, context, input_tokens, output_tokens):
    trajectory = LiveTrajectory(id="t", number=0, run=RUN)
    trajectory.steps, trajectory.context_tokens = int(context > 0), context
    seen.grew(trajectory, Usage(input_tokens=input_tokens, output_tokens=output_tokens))


def test_a_context_that_comes_back_much_shorter_is_a_reset_and_gains_nothing():
    seen = Seen()
    stepped(seen, 0, 500, 100)
    stepped(seen, 600, 900, 50)
    stepped(seen, 950, 520, 30)
    assert seen.resets == 0
    stepped(seen, 950, 470, 30)
    assert seen.resets == 1
    assert seen.gained_tokens == 350.0
    assert seen.observed_per_step == pytest.approx((350 - 80) / 2)
    assert seen.resets_per_step == pytest.approx(1 / 3)


def test_no_length_is_expected_beyond_the_limit_that_cut_the_longest_off():
    beliefs = beliefs_of(generate("math", groups=2, samples=8, seed=1))
    group = Expected(group="new", samples=2, task="math")
    seen = beliefs.seen_of(RUN)
    seen.truncated = 0
    assert [w.output_tokens for w in beliefs.works_of(RUN, group, [50.0, 1e6])] == [50.0, 1e6]
    seen.ended(40_000, truncated=True)
    seen.ended(30_000, truncated=True)
    assert [w.output_tokens for w in beliefs.works_of(RUN, group, [50.0, 1e6])] == [50.0, 40_000.0]


class Behind:
    """A collector that has stored one more trajectory each time it is asked."""

    def __init__(self, *_args, **_options):
        self.stored = 0

    def __enter__(self):
        return self

    def __exit__(self, *_of):
        return None

    def query(self, _name, **_filters):
        self.stored += 1
        row = {"task": "a", "group_id": "g", "trajectories": self.stored, "truncated": 0,
               "mean_log_tokens": 6.0, "var_log_tokens": 0.1, "mean_steps": 2.0,
               "mean_tool_s": 1.0}  # fmt: skip
        return pl.DataFrame([row])


async def test_a_plan_waits_for_the_store_to_have_what_ended_here(monkeypatch):
    monkeypatch.setattr(beliefs_module, "CollectorClient", Behind)
    monkeypatch.setattr(beliefs_module, "LOOK_S", 0.01)
    beliefs = Beliefs(queries="http://127.0.0.1:1")
    for _ in range(3):
        beliefs.seen_of("r").ended(100, truncated=False)
    await beliefs.refresh("r", "next")
    assert beliefs.of("r").samples("g") == 3


class Forgetful(Behind):
    """It keeps two trajectories, however many end."""

    asked = 0

    def query(self, name, **filters):
        Forgetful.asked += 1
        self.stored = 1
        return super().query(name, **filters)


async def test_what_was_waited_for_in_vain_is_not_waited_for_again(monkeypatch):
    monkeypatch.setattr(beliefs_module, "CollectorClient", Forgetful)
    monkeypatch.setattr(beliefs_module, "LOOK_S", 0.01)
    monkeypatch.setattr(beliefs_module, "BEHIND_S", 0.05)
    beliefs = Beliefs(queries="http://127.0.0.1:1")
    for _ in range(5):
        beliefs.seen_of("r").ended(100, truncated=False)
    await beliefs.refresh("r", "second")
    assert Forgetful.asked == 6
    await beliefs.refresh("r", "third")
    assert Forgetful.asked == 7
    beliefs.seen_of("r").ended(100, truncated=False)
    await beliefs.refresh("r", "fourth")
    assert Forgetful.asked == 13


def context_area(specs):
    """Contexts summed over output tokens, step by step."""
    area = 0.0
    for one in specs:
        context = 0
        for step in one.steps:
            context = (one.prompt_tokens if step.reset else context) + step.observation_tokens
            area += step.output_tokens * (context + step.output_tokens / 2)
            context += step.output_tokens
    return area


@pytest.mark.parametrize("preset", ["coding", "search", "math"])
def test_contexts_of_known_lengths_are_expected_within_a_tenth(preset):
    past, now = (generate(preset, groups=24, seed=2, epoch=epoch) for epoch in (0, 1))
    beliefs = beliefs_of(past)
    works = [
        work
        for one in now
        for work in beliefs.works_of(
            RUN,
            Expected(group=one.group_id, samples=1, task=one.task, prompt_tokens=one.prompt_tokens),
            [one.output_tokens],
        )
    ]
    assert sum(work.area for work in works) == pytest.approx(context_area(now), rel=0.10)
    forgotten = sum(replace(work, resets=0.0).area for work in works)
    assert forgotten > (1.1 if preset == "coding" else 0.9) * context_area(now)


def test_a_work_without_resets_holds_half_of_what_it_gathers():
    work = Work(output_tokens=100.0, prompt_tokens=10.0, observation_tokens=60.0)
    assert work.area == 100.0 * (10.0 + 80.0)
