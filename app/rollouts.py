"""How is one rollout played through a running stack, and what does the store say of it?

Begin over HTTP, agents drive, spans are flushed, end over HTTP, and only when the store has
committed all of it are its numbers read. Numbers come from the store, never from the driver.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final

import polars as pl

from heddle.app.compose import Stack
from heddle.app.driver import VOCABULARY, DriveResult, drive
from heddle.app.errors import fail
from heddle.collector.client import CollectorClient
from heddle.collector.tracing import Emitter
from heddle.controller.client import ControllerClient
from heddle.controller.core.cost import lower_bounds_s
from heddle.controller.core.types import Latency, Work
from heddle.controller.emulator.workload import TrajectorySpec
from heddle.controller.wire import GroupIn, RolloutBegin
from heddle.controller.wire_fleet import FleetApplyIn, FleetPlanIn
from heddle.models.latency import Law, load_profile

SETTLE_S: Final = 30.0
"""Committing the last spans takes under a second; a busy machine is given this long."""
BEGIN_S: Final = 180.0
"""A rollout's begin may stop and launch engines; it returns when the fleet serves."""

Watch = Callable[[], None]
Progress = Callable[[DriveResult], None]


@dataclass(slots=True)
class Session:
    """A stack with its clients open; `watch` raises when a process of the stack died."""

    stack: Stack
    run: str
    watch: Watch = lambda: None
    seed: int = 0
    vocabulary: int = VOCABULARY
    collector: CollectorClient = field(init=False)
    controller: ControllerClient = field(init=False)
    emitter: Emitter = field(init=False)

    def __enter__(self) -> Session:
        stack = self.stack
        self.collector = CollectorClient(stack.query_url)
        self.controller = ControllerClient(
            stack.controller_url, token=stack.token, timeout_s=BEGIN_S
        )
        self.emitter = Emitter(stack.settings.otlp_url, service="heddle-driver")
        return self

    def __exit__(self, *_: object) -> None:
        self.emitter.close(timeout_s=1.0)  # of the 5 s that Ctrl-C may take; 3 are the children's
        self.controller.close()
        self.collector.close()

    def lay_out(self, trajectories: Sequence[TrajectorySpec], *, why: str) -> None:
        """Give the fleet the layout that the run's policy wants for them, before any time runs.

        Left to `begin_rollout` the change is part of that rollout's makespan, and two rollouts in
        a row pay for each other's layouts: 1,056 of 4,261 GPU-seconds in one demo under `verl`.
        """
        wanted = FleetPlanIn(run=self.run, groups=group_facts(trajectories))
        plan = self.controller.plan_fleet(wanted)
        if sorted(plan.layout) == sorted(plan.before):
            return
        change = FleetApplyIn(layout=plan.layout, run=self.run, who="driver", why=why, wait=True)
        story = self.controller.apply_fleet(change)
        if story.error:
            fail(f"the layout {plan.layout} did not come up before the rollout: {story.error}")

    def play(
        self, rollout: str, trajectories: Sequence[TrajectorySpec], progress: Progress
    ) -> DriveResult:
        """Run the trajectories as that rollout, to the end, with everything in the store."""
        self.controller.begin_rollout(
            RolloutBegin(
                run=self.run,
                rollout=rollout,
                expected=len(trajectories),
                groups=group_facts(trajectories),
            )
        )
        result = asyncio.run(self._drive(rollout, trajectories, progress))
        if not self.emitter.flush(SETTLE_S):
            fail(f"the collector took no spans for {SETTLE_S:.0f} s; is its disk full?")
        self.controller.end_rollout(self.run, rollout)
        settle(self.collector, self.run, rollout, result)
        return result

    async def _drive(
        self, rollout: str, trajectories: Sequence[TrajectorySpec], progress: Progress
    ) -> DriveResult:
        work = drive(
            trajectories,
            controller_url=self.stack.controller_url,
            emitter=self.emitter,
            run=self.run,
            rollout=rollout,
            clock=self.stack.clock,
            seed=self.seed,
            vocabulary=self.vocabulary,
            progress=progress,
        )
        return await watched(work, self.watch)


async def watched(work: Coroutine[Any, Any, DriveResult], watch: Watch) -> DriveResult:
    """The work's result; what `watch` raises ends the work."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=1.0)
            watch()
        return task.result()
    finally:
        task.cancel()


def group_facts(trajectories: Sequence[TrajectorySpec]) -> list[GroupIn]:
    """What a trainer knows of its groups before the rollout: never a length."""
    ordered = sorted(trajectories, key=lambda t: t.group_id)
    groups = [list(of) for _, of in groupby(ordered, key=lambda t: t.group_id)]
    return [
        GroupIn(
            group=of[0].group_id,
            task=of[0].task,
            samples=len(of),
            prompt_tokens=of[0].prompt_tokens,
        )
        for of in groups
    ]


def settle(collector: CollectorClient, run: str, rollout: str, seen: DriveResult) -> None:
    """Wait until the store holds as many steps and tool calls as the agents saw; while more come
    it is waited for, however far a busy collector is behind."""
    wanted = {"finished": seen.finished, "steps": seen.steps, "tool_calls": seen.tool_calls}
    most, deadline = -1, 0.0
    while True:
        rows = collector.query("rollouts", run=run, rollout=rollout).to_dicts()
        held = rows[0] if rows else {}
        there = {name: held.get(name) or 0 for name in wanted}
        if held.get("state") == "finished" and all(there[n] >= wanted[n] for n in wanted):
            return
        if sum(there.values()) > most:
            most, deadline = sum(there.values()), time.monotonic() + SETTLE_S
        if time.monotonic() > deadline:
            fail(
                f"the store holds {there['steps']} of {seen.steps} steps and "
                f"{there['tool_calls']} of {seen.tool_calls} tool calls of rollout {rollout}, and "
                f"no more came in {SETTLE_S:.0f} s"
            )
        time.sleep(0.1)


def measure(collector: CollectorClient, run: str, rollout: str) -> dict[str, Any]:
    """What the store says of a finished rollout."""
    (row,) = collector.query("rollouts", run=run, rollout=rollout).to_dicts()
    (account,) = collector.query("accounts", run=run, rollout=rollout).to_dicts()
    parts = collector.query("partition", run=run, rollout=rollout)
    by_state = parts.group_by("state").agg(pl.col("gpu_ns").sum()).sort("gpu_ns", "state")
    return {
        "rollout": rollout,
        "makespan_s": row["makespan_s"],
        "predicted_makespan_s": row["predicted_makespan_s"],
        "wall_ns": account["wall_ns"],
        "gpus": account["gpus"],
        "layout": row["layout"],
        "gpu_ns": dict(by_state.select("state", "gpu_ns").reverse().iter_rows()),
        "trajectories": row["trajectories"],
        "steps": row["steps"],
        "tool_calls": row["tool_calls"],
        "output_tokens": row["output_tokens"],
        "moves": row["moves"],
    }


def bounds_s(
    trajectories: Sequence[TrajectorySpec], system: str, model: str, gpus: int
) -> dict[str, float]:
    """Makespans that no policy beats, knowing every length, by the planner's latency law.

    What a prefix cache may spare is not counted: a prompt counts for the first of its group only,
    and after a reset the context begins with nothing.
    """
    laws = {degree: _latency(law) for degree, law in load_profile(system, model).degrees.items()}
    first = {t.group_id: t.trajectory_id for t in reversed(trajectories)}
    stretches = [_stretches(t, prompt=first[t.group_id] == t.trajectory_id) for t in trajectories]
    return lower_bounds_s(stretches, laws, gpus)


def _stretches(trajectory: TrajectorySpec, *, prompt: bool) -> list[Work]:
    """What it asks of the fleet between resets of its context, at least."""
    found: list[Work] = []
    for index, step in enumerate(trajectory.steps):
        opens = index == 0 or step.reset
        new = float(step.observation_tokens)
        if opens:
            found.append(Work(output_tokens=0.0, steps=0.0))
        one = found[-1]
        found[-1] = Work(
            output_tokens=one.output_tokens + step.output_tokens,
            prompt_tokens=new if index == 0 and prompt else one.prompt_tokens,
            observation_tokens=one.observation_tokens + (0.0 if opens else new),
            steps=one.steps + 1.0,
            tool_s=one.tool_s + step.tool_s,
        )
    return found


def work_of(trajectory: TrajectorySpec) -> Work:
    """All that a trajectory will ask of the fleet."""
    return Work(
        output_tokens=trajectory.output_tokens,
        prompt_tokens=trajectory.prompt_tokens,
        observation_tokens=max(sum(s.observation_tokens for s in trajectory.steps[1:]), 0),
        steps=len(trajectory.steps),
        tool_s=trajectory.tool_s,
    )


def _latency(law: Law) -> Latency:
    return Latency(
        degree=law.degree,
        a_s=law.a_s,
        b_s=law.b_s,
        c_s=law.c_s,
        p0_s=law.p0_s,
        p1_s=law.p1_s,
        p2_s=law.p2_s,
        kv_tokens=law.kv_tokens,
    )


def named(trajectories: Sequence[TrajectorySpec], prefix: str) -> list[TrajectorySpec]:
    """The same trajectories under ids of their own: ids are unique in a run, not in a rollout."""
    return [replace(t, trajectory_id=f"{prefix}-{t.trajectory_id}") for t in trajectories]
