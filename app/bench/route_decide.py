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
from heddle.controller.deciding import Thread
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
NAP_S: Final = 0.001


class _Engine:
    def __init__(self, url: str) -> None:
        self.url = url

    async def capabilities(self) -> Capabilities:
        return Capabilities(degree=1, kv_tokens=400_000, max_running=256)


async def decisions(*, preset: str, steps: int, live: int = LIVE) -> list[float]:
    """Seconds from arrival to grant of `steps` steps of started trajectories."""
    loop, whose = await _loop(preset, live, Clock(), asyncio.to_thread)
    taken: list[float] = []
    for number in range(steps):
        taken.append(await _step(loop, whose[number % live]))
        await asyncio.sleep(0)
    await _closed(loop)
    return taken


async def pauses(
    thread: Thread | None, seconds: float, live: int = LIVE
) -> tuple[list[float], int]:
    """How late a task that sleeps a millisecond at a time came back, in seconds, while full
    decisions were made as often as their pace allows; and how many there were."""
    # At x20 the decisions that only watch come every 0.26 s, which is what 6,400 trajectories get.
    loop, whose = await _loop("heddle", live, Clock(time.time_ns(), 20.0), thread)
    made, late, end_s = loop.pace.decisions, list[float](), time.perf_counter() + seconds
    number = 0
    while (began := time.perf_counter()) < end_s:
        await asyncio.sleep(NAP_S)
        late.append(time.perf_counter() - began - NAP_S)
        await _step(loop, whose[number % live])
        number += 1
    made = loop.pace.decisions - made
    await _closed(loop)
    return late, made


async def _loop(
    preset: str, live: int, clock: Clock, thread: Thread | None
) -> tuple[Loop, list[Whose]]:
    """A started loop whose trajectories have all ended a first step."""
    journal = Journal(None)
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
        thread=thread,
    )
    for index in range(WORKERS):
        await fleet.join(f"w{index}", f"http://w{index}", 1)
    loop.start()
    whose = [_whose(i) for i in range(live)]
    first = [loop.arrive(one, Call(prompt_tokens=200)) for one in whose]
    for step in first:
        await step.grant
        loop.served(step, Usage(input_tokens=200, output_tokens=50))
    return loop, whose


async def _step(loop: Loop, whose: Whose) -> float:
    """Seconds from its arrival to its grant, after which it is served."""
    began = time.perf_counter()
    step = loop.arrive(whose, Call(prompt_tokens=260))
    await step.grant
    taken_s = time.perf_counter() - began
    loop.served(step, Usage(input_tokens=260, output_tokens=50))
    return taken_s


async def _closed(loop: Loop) -> None:
    await loop.close()
    loop.journal.close()


def _whose(index: int) -> Whose:
    return Whose(run="r", trajectory=f"t{index}", source="bench", group=f"g{index // 16}")
