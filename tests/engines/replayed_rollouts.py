"""How does one and the same rollout go on engines, genuine or emulated?

Trajectories of known lengths over /generate: a group shares its prompt, a step's context is all
before it and an observation, a tool waits in between. Outputs have exact lengths through
`min_new_tokens`, so that SGLang reserves for them as it does in production.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np
import orjson

from heddle.app.bench.figures import machine
from heddle.controller.fleet.sglang import open_session

FIRST_ID, IDS = 10, 350
"""Inside the tiny model's vocabulary."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One trajectory: its prompt, and for each step output tokens, observation, tool seconds."""

    number: int
    prompt: tuple[int, ...]
    steps: tuple[tuple[int, tuple[int, ...], float], ...]

    @property
    def halfway_tokens(self) -> int:
        """Its context when half of what it will gather is there."""
        return len(self.prompt) + sum(output + len(seen) for output, seen, _ in self.steps) // 2


@dataclass(frozen=True, slots=True)
class Took:
    """One step as the client and the engine saw it."""

    trajectory: int
    step: int
    prompt_tokens: int
    cached_tokens: int
    host_tokens: int
    retractions: int
    began_s: float
    ended_s: float


@dataclass(slots=True)
class Outcome:
    """All steps of a rollout, and when it began."""

    began_s: float
    steps: list[Took] = field(default_factory=list[Took])

    @property
    def makespan_s(self) -> float:
        return max(step.ended_s for step in self.steps) - self.began_s

    @property
    def hit_rate(self) -> float:
        """Share of what returning steps brought that was in the cache."""
        back = [step for step in self.steps if step.step > 0]
        return sum(s.cached_tokens for s in back) / max(1, sum(s.prompt_tokens for s in back))

    @property
    def host_rate(self) -> float:
        """Share that came back from the host's memory."""
        back = [step for step in self.steps if step.step > 0]
        return sum(s.host_tokens for s in back) / max(1, sum(s.prompt_tokens for s in back))

    @property
    def retractions(self) -> int:
        return sum(step.retractions for step in self.steps)

    def latencies_s(self) -> list[float]:
        return [step.ended_s - step.began_s for step in self.steps]

    def finish_order(self) -> list[float]:
        """By trajectory number: when its last step ended."""
        last: dict[int, float] = {}
        for step in self.steps:
            last[step.trajectory] = max(last.get(step.trajectory, 0.0), step.ended_s)
        return [last[number] for number in sorted(last)]


def plans(
    seed: int,
    count: int,
    *,
    group: int = 4,
    prompt: tuple[int, int],
    steps: tuple[int, int],
    output: tuple[int, int],
    observation: tuple[int, int],
    tool_s: float,
) -> list[Plan]:
    """Uniform between the ends of each range; tools between half and one and a half of theirs."""
    rng = np.random.default_rng(seed)
    made: list[Plan] = []
    for number in range(count):
        if number % group == 0:
            shared = _ids(rng, rng.integers(*prompt, endpoint=True))
        turns = [
            (
                int(rng.integers(*output, endpoint=True)),
                _ids(rng, rng.integers(*observation, endpoint=True)),
                float(rng.uniform(0.5, 1.5) * tool_s),
            )
            for _ in range(rng.integers(*steps, endpoint=True))
        ]
        made.append(Plan(number, shared, tuple(turns)))
    return made


def _ids(rng: np.random.Generator, count: Any) -> tuple[int, ...]:
    return tuple((FIRST_ID + rng.integers(0, IDS, int(count))).tolist())


async def replay(urls: Sequence[str], todo: Sequence[Plan], *, returning_first: bool) -> Outcome:
    """All at once, each trajectory on one engine from its first step to its last."""
    async with open_session() as http:
        for url in urls:
            async with http.post(f"{url}/flush_cache") as reply:
                reply.raise_for_status()
        outcome = Outcome(time.monotonic())
        await asyncio.gather(
            *(
                _trajectory(http, urls[plan.number % len(urls)], plan, outcome, returning_first)
                for plan in todo
            )
        )
    return outcome


async def _trajectory(
    http: aiohttp.ClientSession, url: str, plan: Plan, outcome: Outcome, returning_first: bool
) -> None:
    context = list(plan.prompt)
    for index, (output, seen, tool_s) in enumerate(plan.steps):
        body = {
            "input_ids": context,
            "sampling_params": {"max_new_tokens": output, "min_new_tokens": output},
            "rid": f"{plan.number:04}-{index:02}-{time.monotonic_ns():x}",
            "priority": 10 * bool(index) if returning_first else 0,
            "session_id": f"t{plan.number}",
        }
        began_s = time.monotonic()
        async with http.post(f"{url}/generate", data=orjson.dumps(body), headers=JSON) as reply:
            reply.raise_for_status()
            answer = orjson.loads(await reply.read())
        meta = answer["meta_info"]
        outcome.steps.append(_took(plan.number, index, meta, began_s))
        context.extend(answer["output_ids"])
        context.extend(seen)
        if index < len(plan.steps) - 1:
            await asyncio.sleep(tool_s)


def machine_line() -> str:
    """What the times depend on and a reader cannot see."""
    said = machine()
    return f"{said['cpu']}, {said['cores']} cores, {said['memory_gb']} GB, Python {said['python']}."


JSON = {"content-type": "application/json"}


def _took(number: int, index: int, meta: dict[str, Any], began_s: float) -> Took:
    details = meta.get("cached_tokens_details") or {}
    return Took(
        trajectory=number,
        step=index,
        prompt_tokens=meta["prompt_tokens"],
        cached_tokens=meta["cached_tokens"],
        host_tokens=int(details.get("host") or 0),
        retractions=meta["num_retractions"],
        began_s=began_s,
        ended_s=time.monotonic(),
    )
