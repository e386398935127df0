"""How well could anybody foretell a generated trajectory who knows its prompt but not its draws?

The ceiling for a predictor: an oracle with the preset's law and the group's latents (length effect,
tokens a step), asked after k steps that wrote so many tokens. Its answer is the law of `workload`
drawn many times, kept where a trajectory got as far, weighted by how near its tokens so far are.
The context limit is left out: who meets it is truncated, and no truncated one is scored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from heddle.controller.emulator.presets import PRESETS, Preset
from heddle.controller.emulator.workload import latents

Floats = NDArray[np.float64]
DRAWS: Final = 3_000
"""Trajectories imagined a group: twice as many move no Spearman by 0.002."""
LEVELS: Final = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True)
class Oracle:
    """One group's imagined trajectories."""

    steps: NDArray[np.int64]
    written: Floats
    """(draws, steps + 1) tokens before each step; the last entry repeats the total."""

    @classmethod
    def of(cls, preset: str, group: int, seed: int, draws: int = DRAWS) -> Self:
        """The oracle of that group of `workload.generate`."""
        law, known = PRESETS[preset], latents(preset, group=group, seed=seed)
        rng = np.random.default_rng([seed, group, 0x0AC1E])
        between, within = law.between_share**0.5, (1.0 - law.between_share) ** 0.5
        effect = between * known.effect + within * rng.standard_normal(draws)
        wanted = law.output.median * np.exp(law.output.sigma * effect)
        return cls.drawn(law, wanted, known.tokens_a_step * rng.lognormal(0.0, 0.2, draws), rng)

    @classmethod
    def drawn(cls, law: Preset, wanted: Floats, step: Floats, rng: np.random.Generator) -> Self:
        """Of imagined totals and tokens a step, as they would be without the preset's limits."""
        wanted, draws = np.maximum(np.round(wanted), 1.0), len(wanted)
        steps_wanted = np.maximum(np.round(wanted / step), 1.0)
        steps = np.minimum(steps_wanted, law.max_steps)
        tokens = np.minimum(np.round(wanted * steps / steps_wanted), law.max_output_tokens)
        uneven = rng.lognormal(0.0, 0.7, (draws, law.max_steps))
        uneven[np.arange(law.max_steps)[None] >= steps[:, None]] = 0.0
        shares = np.cumsum(uneven, axis=1) / uneven.sum(axis=1, keepdims=True)
        done = np.minimum(np.arange(1, law.max_steps + 1)[None], steps[:, None])
        written = shares * np.maximum(tokens - steps, 0.0)[:, None] + done
        return cls(steps.astype(np.int64), np.pad(written, ((0, 0), (1, 0))))

    def log_quantiles(self, k: int, so_far: float) -> Floats:
        """ln of p10, p50, p90 of what is left after k steps that wrote so many tokens."""
        alive = np.flatnonzero(self.steps > k)
        if len(alive) == 0:
            return np.zeros(3)
        before = self.written[alive, k]
        left = self.written[alive, -1] - before
        order = np.argsort(left)
        weight = np.cumsum(_near(before, so_far)[order]) if k else np.arange(1.0, len(left) + 1)
        at = np.searchsorted(weight, np.array(LEVELS) * weight[-1])
        return np.log(np.maximum(left[order][np.minimum(at, len(left) - 1)], 1.0))


def _near(before: Floats, so_far: float) -> Floats:
    """A Gaussian kernel on ln tokens so far, Silverman's width."""
    logs = np.log(np.maximum(before, 1.0))
    width = max(1.06 * float(logs.std()) * len(logs) ** -0.2, 1e-3)
    z = (logs - np.log(max(so_far, 1.0))) / width
    # Whoever is beyond all of them is told what the nearest is.
    return np.exp(-0.5 * (z * z - (z * z).min()))
