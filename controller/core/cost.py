"""How long is an engine busy with a group of trajectories, in closed form?

An iteration costs a + b*batch + c*(sum of contexts); integrated over a group, all but the first
term is a sum over its trajectories, so a group is a few sums. Assumes a prefix cache that never
forgets: an engine whose KV is full is slower than this says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heddle.controller.core.types import CoreError, Latency, Rates, Trajectory, Work


@dataclass(slots=True)
class Load:
    """Running sums of one engine's group; adding and asking are O(1)."""

    latency: Latency
    trajectories: int = 0
    longest_s: float = 0.0
    area: float = 0.0
    tokens: float = 0.0
    work_s: float = 0.0

    def add(self, work: Work, prefill_s: float) -> None:
        """Take one more trajectory into the group."""
        law = self.latency
        self.trajectories += 1
        self.longest_s = max(self.longest_s, law.a_s * work.output_tokens + work.tool_s)
        self.area += work.area
        self.tokens += work.output_tokens
        self.work_s += law.b_s * work.output_tokens + law.c_s * work.area + prefill_s

    def finish_s(self, work: Work | None = None, prefill_s: float = 0.0) -> float:
        """When the group would be done, with one more trajectory if one is given."""
        law = self.latency
        longest, area, tokens, busy = self.longest_s, self.area, self.tokens, self.work_s
        if work is not None:
            longest = max(longest, law.a_s * work.output_tokens + work.tool_s)
            area += work.area
            tokens += work.output_tokens
            busy += law.b_s * work.output_tokens + law.c_s * work.area + prefill_s
        full = max(area / max(law.kv_tokens, 1), tokens / max(law.max_running, 1))
        return max(longest, law.a_s * full) + busy


def remaining_work(trajectory: Trajectory, rates: Rates) -> Work:
    """What is still to come of a live trajectory, by its prediction or the rates' mean."""
    known = trajectory.remaining
    tokens = known.mean if known is not None else rates.remaining_tokens
    return Work(
        output_tokens=tokens,
        prompt_tokens=trajectory.context_tokens,
        observation_tokens=tokens * max(rates.context_per_output - 1.0, 0.0),
    )


def peak_tokens(trajectory: Trajectory, rates: Rates) -> float:
    """The context it is expected to end with."""
    known = trajectory.remaining
    tokens = known.mean if known is not None else rates.remaining_tokens
    return trajectory.context_tokens + tokens * max(rates.context_per_output, 1.0)


def whole_prefill_s(work: Work, law: Latency) -> float:
    """Prompt and observations, each prefilled once; what was generated is in the cache."""
    new = work.prompt_tokens + work.observation_tokens
    steps = max(work.steps, 1.0)
    # Observations see on average half of the final context before them.
    seen = work.prompt_tokens / 2 + work.depth_tokens
    late = work.observation_tokens * seen
    return law.p0_s * steps + law.p1_s * new + law.p2_s * (work.prompt_tokens**2 / 2 + late)


def group_s(works: Sequence[Work], law: Latency) -> float:
    """Seconds one engine needs for that group; 0 for an empty one."""
    load = Load(law)
    for work in works:
        load.add(work, whole_prefill_s(work, law))
    return load.finish_s()


def expected_ranks(worlds: Sequence[Sequence[Work]]) -> list[Work]:
    """The expected longest, second longest, ... over imagined rollouts of the same trajectories.

    The first carries the expected maximum, which no trajectory's own mean does.
    """
    ranked = [sorted(world, key=lambda w: -w.output_tokens) for world in worlds if world]
    return [_mean_work(those) for those in zip(*ranked, strict=True)]


def _mean_work(works: Sequence[Work]) -> Work:
    n = len(works)
    return Work(
        output_tokens=sum(w.output_tokens for w in works) / n,
        prompt_tokens=sum(w.prompt_tokens for w in works) / n,
        observation_tokens=sum(w.observation_tokens for w in works) / n,
        steps=sum(w.steps for w in works) / n,
        tool_s=sum(w.tool_s for w in works) / n,
        resets=sum(w.resets for w in works) / n,
    )


def homogeneous_s(works: Sequence[Work], law: Latency, engines: int) -> float:
    """The makespan of equal engines that share the works evenly, the longest on one of them.

    What the others do while the longest is in its tools costs it no time: 4 to 5 % of a
    prefill-heavy rollout on few engines.
    """
    if not works:
        return 0.0
    load = Load(law)
    for work in works:
        load.add(work, whole_prefill_s(work, law))
    if not math.isfinite(load.work_s + sum(work.tool_s for work in works)):
        message = "lengths to plan for must be finite numbers; one of these works has another"
        raise CoreError(message)
    share = 1.0 / engines
    full = max(load.area / max(law.kv_tokens, 1), load.tokens / law.max_running) * share
    longest = max(works, key=lambda w: law.a_s * w.output_tokens + w.tool_s)
    own_s = group_s([longest], law) - load.longest_s
    others_s = max(load.work_s * share - own_s, 0.0)
    beside_s = _beside_s(load.longest_s + own_s, others_s, longest.tool_s)
    return max(beside_s, law.a_s * full + load.work_s * share)


def _beside_s(alone_s: float, others_s: float, tool_s: float) -> float:
    """The T of T = alone + others * (1 - tools / T): the others' work is spread evenly over T, and
    what falls into the tools is not waited for."""
    both_s = alone_s + others_s
    # Not negative, as tools are part of alone: but for the last bits.
    return (both_s + math.sqrt(max(both_s**2 - 4.0 * others_s * tool_s, 0.0))) / 2.0


def lower_bounds_s(
    trajectories: Sequence[Sequence[Work]], laws: Mapping[int, Latency], gpus: int
) -> dict[str, float]:
    """No policy ends sooner than the longest alone, nor than the work spread without loss.

    A trajectory is the stretches between its context's resets. The second bound is the best of 21
    weightings of the KV and the running arm: each is a bound.
    """
    fitting = [law for degree, law in laws.items() if degree <= gpus]
    if not fitting:
        message = f"no latency law fits {gpus} GPUs; known degrees are {sorted(laws)}"
        raise CoreError(message)
    if not trajectories:
        return {"longest_alone": 0.0, "work": 0.0}
    alone = max(min(_alone_s(one, law) for law in fitting) for one in trajectories)
    works = [work for one in trajectories for work in one]
    weights = np.linspace(0.0, 1.0, 21)[:, None]
    best = np.full((len(weights), len(works)), math.inf)
    for law in fitting:
        best = np.minimum(best, law.degree * _spread_s(works, law, weights))
    return {"longest_alone": alone, "work": float(best.sum(axis=1).max() / gpus)}


def _alone_s(stretches: Sequence[Work], law: Latency) -> float:
    return sum(group_s([work], law) for work in stretches)


def _spread_s(works: Sequence[Work], law: Latency, weights: np.ndarray) -> np.ndarray:
    tokens = np.array([w.output_tokens for w in works])
    area = np.array([w.area for w in works])
    prefill = np.array([whole_prefill_s(w, law) for w in works])
    arms = weights * area / max(law.kv_tokens, 1) + (1 - weights) * tokens / law.max_running
    return law.a_s * arms + law.b_s * tokens + law.c_s * area + prefill
