"""The ceiling is one: nobody who knows less foretells better, and its law is the one drawn."""

from __future__ import annotations

import numpy as np
import pytest

from heddle.controller.emulator.oracle import Oracle
from heddle.controller.emulator.presets import PRESETS
from heddle.controller.emulator.workload import generate, latents
from heddle.models.evaluate import coverage, spearman

GROUPS = 24


@pytest.fixture(scope="module")
def drawn():
    return generate("math", groups=GROUPS), [Oracle.of("math", g, 0) for g in range(GROUPS)]


def answers(drawn, k):
    specs, oracles = drawn
    told, truth, tokens = [], [], []
    for at, spec in enumerate(specs):
        if len(spec.steps) <= k or spec.truncated:
            continue
        so_far = sum(step.output_tokens for step in spec.steps[:k])
        told.append(oracles[at // 16].log_quantiles(k, so_far))
        truth.append(spec.output_tokens - so_far)
        tokens.append(so_far)
    return np.array(told), np.array(truth, dtype=np.float64), np.array(tokens, dtype=np.float64)


@pytest.mark.parametrize("k", [0, 2, 4])
def test_the_law_it_imagines_is_the_generators(drawn, k):
    told, truth, _ = answers(drawn, k)
    assert coverage(told, truth) == pytest.approx(0.8, abs=0.07)
    assert np.median(np.log(truth) - told[:, 1]) == pytest.approx(0.0, abs=0.12)


def test_a_prompts_middle_length_less_what_was_written_foretells_no_better(drawn):
    specs, _ = drawn
    told, truth, so_far = answers(drawn, 4)
    law = PRESETS["math"]
    effects = [latents("math", group=g).effect for g in range(GROUPS)]
    spread = law.output.sigma * law.between_share**0.5
    middles = law.output.median * np.exp(spread * np.array(effects))
    mine = [middles[at // 16] for at, s in enumerate(specs) if len(s.steps) > 4 and not s.truncated]
    left = np.log(np.maximum(np.array(mine) - so_far, 1.0))
    assert np.abs(np.log(truth) - told[:, 1]).mean() < np.abs(np.log(truth) - left).mean()
    assert spearman(told[:, 1], truth) > spearman(left, truth)


def test_beyond_everything_imagined_it_still_answers(drawn):
    _, oracles = drawn
    assert np.isfinite(oracles[0].log_quantiles(3, 1e9)).all()
    assert oracles[0].log_quantiles(10_000, 5.0).tolist() == [0.0, 0.0, 0.0]
