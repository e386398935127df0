"""What does a rollout get, and what do the spans say of it?

Begin: lengths from history -> allocation -> layout -> its engines, then the window starts; with a
change of the layout it starts when that does. What could not be done the answer says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from heddle.collector import conventions as c
from heddle.collector import ids
from heddle.collector.laws import spell_laws
from heddle.collector.sums import Law
from heddle.controller.core.policies import preset_name, spelled
from heddle.controller.core.types import Latency, Layout
from heddle.controller.dataplane.spans import Spans
from heddle.controller.errors import BadRequest
from heddle.controller.layouts import Layouts
from heddle.controller.live import LiveWorker, Rollout
from heddle.controller.loop import Loop
from heddle.controller.reallocation import Reallocator
from heddle.controller.wire import RolloutBegin, RolloutEnded, RolloutReply


class Rollouts:
    """The rollouts this controller began, by (run, rollout)."""

    def __init__(
        self,
        loop: Loop,
        laws: Mapping[int, Latency],
        moves: Reallocator,
        layouts: Layouts,
        spans: Spans,
    ) -> None:
        self._loop = loop
        self._laws = laws
        self._moves = moves
        self.layouts = layouts
        self._spans = spans
        self._one_at_a_time = asyncio.Lock()
        self.known: dict[tuple[str, str], Rollout] = {}
        self.ended: Callable[[], None] = lambda: None
        """Called whenever one has ended."""
        self.replies: dict[tuple[str, str], RolloutReply] = {}
        # An engine that died holds no GPUs of ours; what answers there later is another one.
        loop.fleet.lost, loop.fleet.back = self.left, self.joined
        loop.fleet.joined, loop.fleet.left = self.joined, self.left

    async def begin(self, asked: RolloutBegin) -> RolloutReply:
        """Return once the fleet serves; asking again for an open rollout repeats the answer."""
        key = (asked.run, asked.rollout)
        async with self._one_at_a_time:
            known = self.known.get(key)
            if known is not None and known.end_ns is None:
                return self.replies[key]
            if known is not None:
                message = (
                    f"rollout {asked.rollout!r} of run {asked.run!r} has ended; choose a new id"
                )
                raise BadRequest(message)
            start_ns = self._loop.clock.now_ns()
            basis, works = await self.layouts.expected(asked)
            chosen = await self.layouts.choose(asked.run, works)
            solved_ns = self._loop.clock.now_ns()
            layout = replace(chosen.layout, because=f"{chosen.layout.because}; {basis}")
            if not self._loop.fleet.workers and chosen.change:
                await self._moves.first(layout.degrees)
            self._open(asked, layout, (start_ns, solved_ns))
            # A change of the layout is this rollout's time, the first bringing up was not.
            before = self._loop.fleet.degrees
            if chosen.change and before != layout.degrees:
                layout = await self._change(asked, layout, chosen.gain_s)
            self._shared(layout)
            reply = self._reply(asked, layout, reallocated=before != self._loop.fleet.degrees)
            self.replies[key] = reply
            return reply

    def end(self, run: str, rollout_id: str, *, quiet_s: float = 0.0) -> RolloutEnded:
        """Close the window; trajectories of it that run no step are over."""
        rollout = self.known.get((run, rollout_id))
        if rollout is None:
            message = f"no rollout {rollout_id!r} of run {run!r} was begun here"
            raise BadRequest(message)
        if rollout.end_ns is None:
            clock = self._loop.clock
            ended_ns = clock.now_ns() - round(quiet_s * clock.speed * 1e9)
            rollout.end_ns = max(ended_ns, rollout.start_ns)
            for lease in list(rollout.leases):
                self._return(rollout, lease, rollout.end_ns)
            self._finish(rollout, rollout.end_ns)
            self.ended()
        makespan_s = (rollout.end_ns - rollout.start_ns) / 1e9
        return RolloutEnded(run=run, rollout=rollout_id, makespan_s=makespan_s)

    def joined(self, worker: LiveWorker) -> None:
        """A worker came while rollouts are open: they lease it from now on."""
        for rollout in self._opened():
            self._lease(rollout, worker)

    def left(self, worker: LiveWorker) -> None:
        """A worker went: its leases end now."""
        for rollout in self._opened():
            span = _lease_id(rollout, worker)
            if span in rollout.leases:
                self._return(rollout, span, self._loop.clock.now_ns())

    def close(self) -> None:
        """The controller ends: so do the windows."""
        for rollout in self._opened():
            self.end(rollout.run, rollout.id)

    def _opened(self) -> list[Rollout]:
        return [r for r in self.known.values() if r.end_ns is None]

    async def _change(self, asked: RolloutBegin, layout: Layout, gain_s: float | None) -> Layout:
        """The layout that serves then: the wanted one, or where it was undone what there is."""
        story = await self._moves.begin(
            layout.degrees,
            because=layout.because,
            who=f"rollout {asked.rollout}",
            rollouts=[(asked.run, asked.rollout)],
            gain_s=gain_s,
        )
        if not story.error:
            return layout
        because = f"{layout.because}; it was undone: {story.error}"
        layout = Layout(degrees=self._loop.fleet.degrees, because=because)
        rollout = self.known[asked.run, asked.rollout]
        rollout.attributes |= {
            "heddle.layout": ",".join(map(str, layout.degrees)),
            "heddle.predicted.makespan_s": None,
        }
        return layout

    def _shared(self, layout: Layout) -> None:
        """How many trajectories each worker is meant for, where the plan says so."""
        workers = list(self._loop.fleet.workers.values())
        shares = layout.shares or (0,) * len(workers)
        for worker, share in zip(workers, shares, strict=False):
            worker.share = share

    def _reply(self, asked: RolloutBegin, layout: Layout, *, reallocated: bool) -> RolloutReply:
        return RolloutReply(
            run=asked.run,
            rollout=asked.rollout,
            layout=list(layout.degrees),
            workers=list(self._loop.fleet.workers),
            predicted_makespan_s=layout.makespan_s,
            because=layout.because,
            reallocated=reallocated,
        )

    def _open(self, asked: RolloutBegin, layout: Layout, solved: tuple[int, int]) -> None:
        attributes = self._attributes(asked, layout)
        self._plan(asked, attributes, layout, solved)
        rollout = Rollout(
            run=asked.run,
            id=asked.rollout,
            kind=asked.kind,
            expected=asked.expected or sum(g.samples for g in asked.groups),
            start_ns=self._loop.clock.now_ns(),
            gpus=sum(self._moves.launcher.nodes) or layout.gpus,
            trainer_step=asked.trainer_step,
            attributes=attributes,
        )
        rollout.attributes["heddle.gpus"] = rollout.gpus
        rollout.attributes["heddle.trajectories.expected"] = rollout.expected
        key = (asked.run, asked.rollout)
        self.known[key] = rollout
        self._loop.open_rollout[asked.run] = asked.rollout
        self._spans.start(
            c.ROLLOUT,
            trace_id=_trace(rollout.run, rollout.id),
            span_id=ids.span_id(rollout.run, "rollout", rollout.id),
            at_ns=rollout.start_ns,
            attributes=rollout.attributes,
        )
        for worker in self._loop.fleet.alive:
            self._lease(rollout, worker)

    def _finish(self, rollout: Rollout, end_ns: int) -> None:
        if self._loop.open_rollout.get(rollout.run) == rollout.id:
            del self._loop.open_rollout[rollout.run]
        for trajectory in list(self._loop.trajectories.values()):
            mine = (trajectory.run, trajectory.rollout) == (rollout.run, rollout.id)
            if mine and trajectory.state == "tool":
                self._loop.finish(rollout.run, trajectory.id, truncated=True)
                # A client with spans of its own tells this one itself.
                if trajectory.trace is None:
                    self._loop.spans.finished(rollout.run, trajectory.id, {})
        self._spans.emit(
            c.ROLLOUT,
            trace_id=_trace(rollout.run, rollout.id),
            span_id=ids.span_id(rollout.run, "rollout", rollout.id),
            start_ns=rollout.start_ns,
            end_ns=end_ns,
            attributes=rollout.attributes,
        )

    def _attributes(self, asked: RolloutBegin, layout: Layout) -> dict[str, Any]:
        switches = self._loop.switchboard.of(asked.run)
        return {
            "gen_ai.operation.name": c.ROLLOUT,
            "heddle.run.id": asked.run,
            "heddle.rollout.id": asked.rollout,
            "heddle.rollout.kind": asked.kind,
            "heddle.trainer.step": asked.trainer_step,
            "heddle.layout": ",".join(map(str, layout.degrees)),
            "heddle.policies": spelled(switches),
            "heddle.preset": preset_name(switches),
            "heddle.laws": _spelled(self._laws),
            "heddle.predicted.makespan_s": layout.makespan_s,
            "heddle.clock.speed": self._loop.clock.speed,
        }

    def _plan(
        self,
        asked: RolloutBegin,
        attributes: Mapping[str, Any],
        layout: Layout,
        solved: tuple[int, int],
    ) -> None:
        solve_s = (solved[1] - solved[0]) / 1e9 / self._loop.clock.speed
        own = {
            "gen_ai.operation.name": c.PLAN,
            "heddle.solve_s": solve_s,
            "heddle.because": layout.because,
        }
        self._rollout_span(c.PLAN, asked, solved, {**attributes, **own})

    def _rollout_span(
        self, name: str, asked: RolloutBegin, window: tuple[int, int], attributes: Mapping[str, Any]
    ) -> None:
        self._spans.emit(
            name,
            trace_id=_trace(asked.run, asked.rollout),
            span_id=ids.span_id(asked.run, name, asked.rollout),
            parent_span_id=ids.span_id(asked.run, "rollout", asked.rollout),
            start_ns=window[0],
            end_ns=window[1],
            attributes=attributes,
        )

    def _lease(self, rollout: Rollout, worker: LiveWorker) -> None:
        span = _lease_id(rollout, worker)
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": c.WORKER,
            "heddle.run.id": rollout.run,
            "heddle.rollout.id": rollout.id,
            "heddle.worker.id": worker.id,
            "heddle.degree": worker.degree,
            "heddle.clock.speed": self._loop.clock.speed,
        }
        at_ns = max(rollout.start_ns, worker.joined_ns)
        rollout.leases[span] = (at_ns, attributes)
        self._spans.start(
            c.WORKER,
            trace_id=_trace(rollout.run, rollout.id),
            span_id=span,
            parent_span_id=ids.span_id(rollout.run, "rollout", rollout.id),
            at_ns=at_ns,
            attributes=attributes,
        )

    def _return(self, rollout: Rollout, span: str, end_ns: int) -> None:
        at_ns, attributes = rollout.leases.pop(span)
        self._spans.emit(
            c.WORKER,
            trace_id=_trace(rollout.run, rollout.id),
            span_id=span,
            parent_span_id=ids.span_id(rollout.run, "rollout", rollout.id),
            start_ns=at_ns,
            end_ns=max(end_ns, at_ns),
            attributes=attributes,
        )


def _spelled(laws: Mapping[int, Latency]) -> str:
    """The believed decode laws, by which the collector splits decode time."""
    per_token = {d: Law(x.a_s * 1e9, x.b_s * 1e9, x.c_s * 1e9) for d, x in laws.items()}
    return spell_laws(per_token)


def _trace(run: str, rollout: str) -> str:
    return ids.trace_id(run, f"rollout/{rollout}")


def _lease_id(rollout: Rollout, worker: LiveWorker) -> str:
    return ids.span_id(rollout.run, "worker", rollout.id, worker.id, worker.generation)
