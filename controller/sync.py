"""When do weights change, who asked for it, and what did it wait for?

A sync that is announced holds new steps here and applies its policy: `wait` for what runs, `abort`
it (partial /generate answers go on afterwards), or `pause` the engines in place. One that nobody
announced is only seen (a new weight version in answers, aborts that Heddle did not issue), told in
a span, and never fought: those answers pass unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from heddle.collector import conventions as c
from heddle.collector import ids
from heddle.controller import wire
from heddle.controller.clock import Clock
from heddle.controller.dataplane.spans import Spans
from heddle.controller.dataplane.usage import Usage
from heddle.controller.fleet.workers import Fleet
from heddle.controller.live import Step

LOOK_S: Final = 0.02
_JSON: Final = {"content-type": "application/json"}


@dataclass(slots=True)
class _Sync:
    """One sync from its begin to its end."""

    run: str
    id: str
    policy: str
    began_ns: int
    waited_for: list[str] = field(default_factory=list[str])
    aborted: int = 0
    resumed: int = 0
    waited_s: float = 0.0


@dataclass(slots=True)
class _Seen:
    """What answers of one worker said of its weights."""

    version: str | None = None
    last_ns: int = 0
    aborts: int = 0


class WeightSyncs:
    """The gate of the data plane, and the eye on syncs nobody announced."""

    def __init__(
        self, clock: Clock, fleet: Fleet, spans: Spans, open_rollout: Mapping[str, str]
    ) -> None:
        self._clock = clock
        self._fleet = fleet
        self._spans = spans
        self._rollouts = open_rollout
        self._open = asyncio.Event()
        self._open.set()
        self._now: _Sync | None = None
        self._last: wire.WeightSyncState | None = None
        self._seen: dict[str, _Seen] = {}
        self.running: set[Step] = set()
        """Steps that an engine has now."""

    @property
    def shut(self) -> bool:
        """Whether weights change now."""
        return not self._open.is_set()

    async def passable(self) -> None:
        """Wait while weights change."""
        await self._open.wait()

    async def begin(self, asked: wire.WeightSyncBegin) -> wire.WeightSyncState:
        """Close the gate and apply the policy; again for the same id is no mistake."""
        if self._now is not None:
            return self._state(self._now, active=True)
        sync = self._now = _Sync(asked.run, asked.id, asked.policy, self._clock.now_ns())
        self._open.clear()
        sync.waited_for = sorted({step.trajectory.id for step in self.running})
        if asked.policy == "pause":
            await self._fleet.everywhere("/pause_generation", b'{"mode":"in_place"}')
        elif asked.policy == "abort":
            sync.aborted = len(self.running)
            body = orjson.dumps({"abort_all": True})
            await self._fleet.everywhere("/abort_request", body)
        if asked.policy != "pause":
            await self._drained(asked.timeout_s)
        # What ran on until here was work, not sync.
        sync.began_ns, asked_ns = self._clock.now_ns(), sync.began_ns
        sync.waited_s = (sync.began_ns - asked_ns) / 1e9
        return self._state(sync, active=True)

    async def end(self, asked: wire.WeightSyncEnd) -> wire.WeightSyncState:
        """Flush stale prefixes, let the engines and the held steps go on."""
        sync, self._now = self._now, None
        if sync is None:
            return self._last or wire.WeightSyncState(active=False)
        if sync.policy == "pause":
            await self._fleet.everywhere("/continue_generation", b"{}")
        elif asked.flush:
            await self._fleet.everywhere("/flush_cache", b"{}")
        self._open.set()
        self._last = self._state(sync, active=False)
        # The answers that come next carry the new version: that one was announced.
        self._seen.clear()
        self._told(sync.run, sync.id, sync.began_ns, self._attributes(sync, asked.version))
        return self._last

    def state(self) -> wire.WeightSyncState:
        """Whether one is under way."""
        if self._now is not None:
            return self._state(self._now, active=True)
        return self._last or wire.WeightSyncState(active=False)

    @property
    def aborting(self) -> bool:
        """Whether the sync under way has told engines to stop."""
        return self._now is not None and self._now.policy == "abort"

    def is_ours(self, usage: Usage) -> bool:
        """Whether an aborted answer was aborted by the sync under way, so that it goes on."""
        sync = self._now
        if sync is None or not self.aborting or usage.finish_reason != "abort":
            return False
        sync.resumed += 1
        return True

    def answered(self, step: Step, usage: Usage, *, ours: bool) -> None:
        """Look at an answer for what nobody announced."""
        if step.granted is None:
            return
        worker = step.granted.worker.id
        now_ns = self._clock.now_ns()
        if (seen := self._seen.get(worker)) is None:
            seen = self._seen[worker] = _Seen()
        seen.aborts += usage.finish_reason == "abort" and not ours
        version = usage.policy_version
        if version is None or version == seen.version:
            seen.last_ns = now_ns
            return
        if seen.version is not None and self._now is None:
            said = {
                "heddle.worker.id": worker,
                "heddle.unasked": True,
                "heddle.policy_version.before": seen.version,
                "heddle.policy_version": version,
                "heddle.aborted": seen.aborts,
                "heddle.sync.within_s": (now_ns - seen.last_ns) / 1e9,
                "heddle.because": "answers carry a new weight version that nobody announced",
            }
            run = step.trajectory.run
            # When exactly it happened nobody knows: no GPU time is booked on it.
            self._told(run, f"{worker}/{version}", now_ns, said)
        seen.version, seen.last_ns, seen.aborts = version, now_ns, 0

    async def _drained(self, timeout_s: float) -> None:
        until = asyncio.get_running_loop().time() + timeout_s
        while self.running and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(LOOK_S)

    def _state(self, sync: _Sync, *, active: bool) -> wire.WeightSyncState:
        return wire.WeightSyncState(
            active=active,
            id=sync.id,
            policy=sync.policy,
            aborted=sync.aborted,
            resumed=sync.resumed,
            waited_for=sync.waited_for,
            waited_s=sync.waited_s,
            still_running=len(self.running),
        )

    def _attributes(self, sync: _Sync, version: str | None) -> dict[str, object]:
        return {
            "heddle.sync.policy": sync.policy,
            "heddle.aborted": sync.aborted,
            "heddle.resumed": sync.resumed,
            "heddle.waited_for": sync.waited_for[:100],
            "heddle.drain_s": sync.waited_s,
            "heddle.policy_version": version,
        }

    def _told(self, run: str, name: str, start_ns: int, said: Mapping[str, object]) -> None:
        known = {**said, "gen_ai.operation.name": c.WEIGHT_SYNC, "heddle.run.id": run}
        rollout = self._rollouts.get(run, "")
        known |= {"heddle.rollout.id": rollout or None, "heddle.clock.speed": self._clock.speed}
        self._spans.emit(
            c.WEIGHT_SYNC,
            trace_id=ids.trace_id(run, f"rollout/{rollout}"),
            span_id=ids.span_id(run, "weight_sync", name, start_ns),
            start_ns=start_ns,
            end_ns=self._clock.now_ns(),
            attributes=known,
        )
