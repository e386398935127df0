"""What will 16 samples of each prompt do: how many steps, tokens, tools and seconds?

Synthetic, log-normal with a prompt effect, from `presets.py`; pure and exact under a seed. The same
seed gives the same groups; the epoch varies what happens within them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import exp
from statistics import NormalDist
from typing import Final

import numpy as np

from heddle.controller.emulator.plain import Plain
from heddle.controller.emulator.presets import PRESETS, LogNormal, Preset, ToolLaw

# Group effects are drawn one per stratum in blocks of this many groups, so that a small workload
# has the tail its preset promises whatever its seed.
STRATA: Final = 16


class WorkloadError(ValueError):
    """Nothing can be generated from what was asked."""


class UnknownPreset(WorkloadError):
    """No workload of that name."""

    def __init__(self, preset: str) -> None:
        super().__init__(
            f"no workload preset called {preset!r}; choose one of {', '.join(sorted(PRESETS))}"
        )


@dataclass(frozen=True, slots=True)
class StepSpec(Plain):
    """One LLM call: what is appended before it, what it writes, and the tool called after it."""

    observation_tokens: int
    """New tokens since the last step; the first step's are the prompt."""
    output_tokens: int
    tool_name: str | None
    tool_s: float
    tool_synthetic: bool = False
    reset: bool = False
    """The context was compacted: this step starts from the prompt and its observation alone."""

    def __post_init__(self) -> None:
        Plain.__post_init__(self)
        for name in ("observation_tokens", "output_tokens"):
            if not isinstance(getattr(self, name), int):
                sentence = f"{name} of a step is a whole number, not {getattr(self, name)!r}"
                raise WorkloadError(sentence)


@dataclass(frozen=True, slots=True)
class TrajectorySpec(Plain):
    """One trajectory, known to the driver that plays it and to nobody else."""

    trajectory_id: str
    group_id: str
    sample_index: int
    task: str
    steps: tuple[StepSpec, ...]
    truncated: bool = field(default=False, kw_only=True)

    @property
    def prompt_tokens(self) -> int:
        return self.steps[0].observation_tokens

    @property
    def output_tokens(self) -> int:
        return sum(step.output_tokens for step in self.steps)

    @property
    def tool_s(self) -> float:
        return sum(step.tool_s for step in self.steps)

    @property
    def peak_context_tokens(self) -> int:
        """The longest context any step ends with."""
        peak = context = 0
        for step in self.steps:
            context = self.prompt_tokens if step.reset else context
            context += step.observation_tokens + step.output_tokens
            peak = max(peak, context)
        return peak


def generate(
    preset: str, *, groups: int = 16, samples: int = 16, seed: int = 0, epoch: int = 0
) -> list[TrajectorySpec]:
    """`groups` x `samples` trajectories, group by group."""
    law = _law(preset, groups=groups, samples=samples, seed=seed, epoch=epoch)
    return [
        _trajectory(law, group, sample, seed, epoch)
        for group in (_group(law, g, seed) for g in range(groups))
        for sample in range(samples)
    ]


def workload_hash(trajectories: Sequence[TrajectorySpec]) -> str:
    """16 hex digits of everything a workload says: printed beside every result made from it."""
    digest = blake2b(digest_size=8)
    for t in trajectories:
        digest.update(repr((t.trajectory_id, t.group_id, t.sample_index, t.task)).encode())
        for s in t.steps:
            row = (
                s.observation_tokens, s.output_tokens, s.tool_name, s.tool_s, s.tool_synthetic,
                s.reset,
            )  # fmt: skip
            digest.update(repr(row).encode())
        digest.update(repr(t.truncated).encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Latents:
    """What a prompt is like before any of its samples is drawn."""

    index: int
    group_id: str
    effect: float
    """Standard deviations by which its samples are longer than the middle prompt's."""
    prompt_tokens: int
    tokens_a_step: float


def latents(preset: str, *, group: int, seed: int = 0) -> Latents:
    """Those of one group of `generate`."""
    return _group(_law(preset, group=group, seed=seed), group, seed)


def _law(preset: str, **numbers: int) -> Preset:
    """That preset, once the numbers that go with it can be drawn from."""
    if preset not in PRESETS:
        raise UnknownPreset(preset)
    for name, number in numbers.items():
        if number < 0:
            message = f"a workload's {name} is a whole number from 0 up, not {number}"
            raise WorkloadError(message)
    return PRESETS[preset]


def _rng(law: Preset, *key: int) -> np.random.Generator:
    name = int.from_bytes(blake2b(law.name.encode(), digest_size=4).digest(), "big")
    return np.random.default_rng([name, *key])


def _group(law: Preset, index: int, seed: int) -> Latents:
    block, place = divmod(index, STRATA)
    strata = _rng(law, seed, 1, block).permutation(STRATA)
    rng = _rng(law, seed, 2, index)
    quantile = (int(strata[place]) + float(rng.uniform(0.02, 0.98))) / STRATA
    return Latents(
        index=index,
        group_id=f"{law.name}-{seed}-g{index:04d}",
        effect=NormalDist().inv_cdf(quantile),
        prompt_tokens=max(16, round(_draw(law.prompt, rng))),
        tokens_a_step=_draw(law.tokens_a_step, rng),
    )


def _trajectory(law: Preset, group: Latents, sample: int, seed: int, epoch: int) -> TrajectorySpec:
    rng = _rng(law, seed, 3, group.index, epoch, sample)
    wanted = _output_tokens(law, group, rng)
    steps_wanted = max(1, round(wanted / (group.tokens_a_step * float(rng.lognormal(0.0, 0.2)))))
    steps = min(steps_wanted, law.max_steps)
    tokens = min(round(wanted * steps / steps_wanted), law.max_output_tokens)
    outputs = _split(max(tokens, steps), steps, rng)
    made, capped = _steps(law, group.prompt_tokens, outputs, rng)
    return TrajectorySpec(
        trajectory_id=f"{group.group_id}-e{epoch:03d}-s{sample:03d}",
        group_id=group.group_id,
        sample_index=sample,
        task=law.task,
        steps=made,
        truncated=capped or steps < steps_wanted or tokens < wanted * steps // steps_wanted,
    )


def _output_tokens(law: Preset, group: Latents, rng: np.random.Generator) -> int:
    between, within = law.between_share**0.5, (1.0 - law.between_share) ** 0.5
    effect = between * group.effect + within * float(rng.standard_normal())
    return max(1, round(law.output.median * exp(law.output.sigma * effect)))


def _split(tokens: int, steps: int, rng: np.random.Generator) -> list[int]:
    """`steps` positive integers that sum to `tokens`, log-normally uneven."""
    weights = rng.lognormal(0.0, 0.7, steps)
    edges = np.floor(np.cumsum(weights) / weights.sum() * (tokens - steps) + 0.5).astype(int)
    return [int(part) + 1 for part in np.diff(edges, prepend=0)]


def _steps(
    law: Preset, prompt_tokens: int, outputs: list[int], rng: np.random.Generator
) -> tuple[tuple[StepSpec, ...], bool]:
    """The steps until the outputs are used up, or the context limit (then True: truncated)."""
    made: list[StepSpec] = []
    observation, context, reset = prompt_tokens, 0, False
    for index, output in enumerate(outputs):
        context = (prompt_tokens if reset else context) + observation + output
        last = index == len(outputs) - 1
        tool = law.tools[_pick([tool.weight for tool in law.tools], rng)]
        tool_s, returned = _tool_s(law, tool, rng), max(1, round(_draw(tool.observation, rng)))
        resets = float(rng.random()) < law.reset_share
        full = context + returned + (0 if last else outputs[index + 1]) > law.max_context_tokens
        if last or (full and not resets):
            made.append(StepSpec(observation, output, None, 0.0, False, reset))
            return tuple(made), not last
        made.append(StepSpec(observation, output, tool.name, tool_s, tool.synthetic, reset))
        observation, reset = returned, resets
    return tuple(made), False


def _pick(weights: list[float], rng: np.random.Generator) -> int:
    """An index with those odds (`Generator.choice` takes 20 us a call)."""
    at = float(rng.random()) * sum(weights)
    for index, weight in enumerate(weights[:-1]):
        at -= weight
        if at < 0:
            return index
    return len(weights) - 1


def _tool_s(law: Preset, tool: ToolLaw, rng: np.random.Generator) -> float:
    _, seconds = tool.seconds[_pick([share for share, _ in tool.seconds], rng)]
    return min(max(_draw(seconds, rng), law.tool_floor_s), law.tool_cap_s)


def _draw(law: LogNormal, rng: np.random.Generator) -> float:
    return law.median * exp(law.sigma * float(rng.standard_normal()))
