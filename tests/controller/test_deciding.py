"""A large picture is decided on beside the event loop, and only what still holds is carried out."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace

import numpy as np
import pytest

from heddle.controller import deciding
from heddle.controller.beliefs import Beliefs
from heddle.controller.clock import Clock
from heddle.controller.core.policies import preset_switches
from heddle.controller.core.types import Move, Plan
from heddle.controller.dataplane.identity import Whose
from heddle.controller.dataplane.spans import StepSpans
from heddle.controller.dataplane.usage import Usage
from heddle.controller.deciding import standing
from heddle.controller.errors import ControllerError
from heddle.controller.fleet.engine import Capabilities
from heddle.controller.fleet.workers import Fleet
from heddle.controller.journal import Journal
from heddle.controller.laws import law_of, laws
from heddle.controller.live import Call
from heddle.controller.loop import Loop
from heddle.controller.service import NoSpans
from heddle.controller.switches import Switchboard


class Engine:
    """It holds one trajectory at a time."""

    def __init__(self, url):
        self.url = url

    async def capabilities(self):
        return Capabilities(degree=1, kv_tokens=300, max_running=1)

    async def observe(self):
        return None


class Gate:
    """A thread that waits until it is told to think, and counts."""

    def __init__(self):
        self.asked, self.open = 0, asyncio.Event()

    async def __call__(self, work):
        self.asked += 1
        await self.open.wait()
        return await asyncio.to_thread(work)


def whose(name, *, final=False):
    return Whose(run="r", trajectory=name, source="test", group=name, final=final)


async def a_loop(thread=None, workers=1):
    journal, clock = Journal(None), Clock()
    board = Switchboard(journal, "verl")
    chosen = replace(preset_switches("heddle"), admission="hold-count", migration="off")
    board.set(None, asdict(chosen), who="test", why="", at_ns=1)
    fleet = Fleet(clock, law_of(laws("h100_sxm", "Qwen3-14B")), Engine)
    for number in range(workers):
        await fleet.join(f"w{number}", f"http://w{number}", 1)
    return Loop(
        clock=clock, rng=np.random.default_rng(0), fleet=fleet, switchboard=board,
        journal=journal, beliefs=Beliefs(), spans=StepSpans(NoSpans(), 1.0), thread=thread,
    )  # fmt: skip


@pytest.fixture
async def gated(monkeypatch):
    monkeypatch.setattr(deciding, "IN_PLACE", 0)
    gate = Gate()
    loop = await a_loop(gate)
    yield loop, gate
    gate.open.set()
    await loop.close()


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0.001)


def came(loop, name):
    return loop.arrive(whose(name), Call(prompt_tokens=20))


async def test_started_trajectories_go_on_while_a_decision_is_thought_over(gated):
    loop, gate = gated
    gate.open.set()
    first = came(loop, "a")
    await first.grant
    loop.served(first, Usage(input_tokens=20, output_tokens=5))
    await turns()
    gate.open.clear()
    held = came(loop, "b")
    await turns()
    asked = gate.asked
    again = came(loop, "a")
    grant = await asyncio.wait_for(again.grant, 5)
    assert (grant.worker.id, held.grant.done(), gate.asked) == ("w0", False, asked)


async def test_no_second_decision_of_a_run_begins_while_one_is_thought_over(gated):
    loop, gate = gated
    steps = [came(loop, f"t{i}") for i in range(3)]
    await turns()
    loop.poke()
    await turns()
    assert gate.asked == 1
    gate.open.set()
    done = asyncio.wait([s.grant for s in steps], return_when=asyncio.FIRST_COMPLETED, timeout=5)
    assert len((await done)[0]) == 1


async def test_two_runs_are_not_thought_over_together_for_they_would_fill_the_same_room(gated):
    loop, gate = gated
    first = came(loop, "a")
    await turns()
    other = Whose(run="s", trajectory="b", source="test", group="b")
    second = loop.arrive(other, Call(prompt_tokens=20))
    await turns()
    assert gate.asked == 1
    gate.open.set()
    await asyncio.wait_for(first.grant, 5)
    await turns(100)
    assert (gate.asked > 1, second.grant.done()) == (True, False)
    loop.served(first, Usage(input_tokens=20, output_tokens=5))
    loop.finish("r", "a")
    assert (await asyncio.wait_for(second.grant, 5)).worker.id == "w0"


async def test_a_plan_of_switches_that_changed_meanwhile_is_made_anew(gated):
    loop, gate = gated
    step = came(loop, "a")
    await turns()
    loop.switchboard.set(None, {"order": "fcfs"}, who="test", why="", at_ns=2)
    gate.open.set()
    grant = await asyncio.wait_for(step.grant, 5)
    assert gate.asked == 2
    assert grant.because.startswith("fcfs ")


async def test_who_left_meanwhile_is_not_released_and_its_place_is_given_on(gated):
    loop, gate = gated
    gone, stays = came(loop, "a"), came(loop, "b")
    await turns()
    loop.drop(gone, "client_left")
    loop.finish("r", "a")
    gate.open.set()
    grant = await asyncio.wait_for(stays.grant, 5)
    assert (grant.worker.id, gone.grant.done()) == ("w0", False)
    assert loop.failures == 0


async def test_a_decision_that_fails_in_the_thread_is_counted_and_its_steps_are_told(
    gated, monkeypatch
):
    loop, gate = gated

    def fails(*_):
        raise ValueError("no law")

    monkeypatch.setattr(deciding, "decide", fails)
    step = came(loop, "a")
    gate.open.set()
    with pytest.raises(ControllerError, match="no law"):
        await asyncio.wait_for(step.grant, 5)
    assert (loop.failures, loop.last_failure) == (1, "ValueError: no law")


async def test_closing_while_a_decision_is_thought_over_answers_who_waits(gated):
    loop, _ = gated
    step = came(loop, "a")
    await turns()
    await loop.close()
    with pytest.raises(ControllerError, match="shutting down"):
        await step.grant


async def test_moves_and_parks_of_who_changed_meanwhile_are_left_out(gated):
    loop, gate = gated
    gate.open.set()
    steps = [came(loop, name) for name in ("a", "b")]
    await steps[0].grant
    loop.served(steps[0], Usage(input_tokens=20, output_tokens=5))
    await loop.fleet.join("w1", "http://w1", 1)
    before = loop._decider.snapshot("r")
    move = Move(trajectory="r/a", source="w0", target="w1", because="test")
    plan = Plan(moves=(move,))
    assert standing(plan, before, loop.table, loop.fleet).moves == (move,)
    loop.fleet.workers["w1"].draining = True
    assert standing(plan, before, loop.table, loop.fleet).moves == ()
    loop.fleet.workers["w1"].draining = False
    loop.trajectories["r/a"].changed()
    assert standing(plan, before, loop.table, loop.fleet).moves == ()


async def test_what_is_held_is_looked_at_again_when_somebody_leaves_not_at_every_step():
    loop = await a_loop()
    first = came(loop, "a")
    await first.grant
    held = came(loop, "b")
    await turns()
    made = loop.pace.decisions
    for _ in range(5):
        loop.served(first, Usage(input_tokens=20, output_tokens=5))
        await turns(5)
        first = came(loop, "a")
        await first.grant
    assert (loop.pace.decisions, held.grant.done()) == (made, False)
    loop.served(first, Usage(input_tokens=20, output_tokens=5))
    loop.finish("r", "a")
    assert (await asyncio.wait_for(held.grant, 5)).worker.id == "w0"
    await loop.close()
