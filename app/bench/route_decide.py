"""How long does one decision take while thousands of trajectories live?

The real loop on engines that are never called: 6,400 trajectories on 64 workers, each step from its
arrival to its grant, one at a time and while whole plans are made beside it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import numpy as np

from heddle.controller.beliefs import Beliefs
from heddle.controller.clock import Clock
from heddle.controller.dataplane.identity import Whose
from heddle.controller.dataplane.spans import StepSpans
from heddle.controller.dataplane.usage import Usage
from heddle.controller.fleet.engine import Capabilities
from heddle.controller.fleet.workers import Fleet
from heddle.controller.journal import Journal
from heddle.controller.laws import law_of, laws
from heddle.controller.live import Call
from heddle.controller.loop import Loop
from heddle.controller.service import NoSpans
from heddle.controller.switches import Switchboard

LIVE: Final = 6_400
WORKERS: Final = 64


class _Engine:
    def __init__(self, url: str) -> None:
        self.url = url

    async def capabilities(self) -> Capabilities:
        return Capabilities(degree=1, kv_tokens=400_000, max_running=256)


async def decisions(*, preset: str, steps: int, live: int = LIVE) -> list[float]:
    """Seconds from arrival to grant of `steps` steps of started trajectories."""
    clock, journal = Clock(), Journal(None)
    engine_at: Any = _Engine
    fleet = Fleet(clock, law_of(laws("h100_sxm", "Qwen3-14B")), engine_at)
    loop = Loop(
        clock=clock,
        rng=np.random.default_rng(0),
        fleet=fleet,
        switchboard=Switchboard(journal, preset),
        journal=journal,
        beliefs=Beliefs(),
        spans=StepSpans(NoSpans(), 1.0),
    )
    for index in range(WORKERS):
        await fleet.join(f"w{index}", f"http://w{index}", 1)
    loop.start()
    whose = [_whose(i) for i in range(live)]
    first = [loop.arrive(one, Call(prompt_tokens=200)) for one in whose]
    for step in first:
        await step.grant
        loop.served(step, Usage(input_tokens=200, output_tokens=50))
    taken: list[float] = []
    for number in range(steps):
        began = time.perf_counter()
        step = loop.arrive(whose[number % live], Call(prompt_tokens=260))
        await step.grant
        taken.append(time.perf_counter() - began)
        loop.served(step, Usage(input_tokens=260, output_tokens=50))
        await asyncio.sleep(0)
    await loop.close()
    journal.close()
    return taken


def _whose(index: int) -> Whose:
    return Whose(run="r", trajectory=f"t{index}", source="bench", group=f"g{index // 16}")
