"""How does the controller reach an emulated engine in virtual time?

The steering half of the engine port, without a network: requests go in as objects, what ended
comes back as a callback at its virtual time. It may die and come back empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

from heddle.controller.emulator.control import TAGS
from heddle.controller.emulator.engine import Engine, PauseMode
from heddle.controller.emulator.errors import EngineBusy
from heddle.controller.emulator.request import EngineConfig, Finished, Request
from heddle.controller.emulator.span import Span
from heddle.controller.emulator.stored import make_engine
from heddle.controller.emulator.tiers import Storage
from heddle.controller.emulator.truth import Truth
from heddle.controller.emulator.virtual import VirtualLoop
from heddle.controller.errors import EngineFull, EngineLost
from heddle.controller.fleet.engine import Capabilities, EngineLoad, Warmed
from heddle.controller.fleet.sglang import WARM_PRIORITY

Then = Callable[[Finished | None], object]
"""Called with how a request ended; None: its engine was lost."""


class VirtualEngine:
    """One engine at `url`; `context_of` finds the context behind the bytes a warm-up brings."""

    def __init__(
        self,
        loop: VirtualLoop,
        url: str,
        config: EngineConfig,
        truth: Truth,
        context_of: Callable[[bytes], Span],
        storage: Storage | None = None,
    ) -> None:
        self.url = url
        self.config = config
        self.passes: list[tuple[str, float, float]] = []
        self.alive = True
        self._loop = loop
        self._truth = truth
        self._context_of = context_of
        self._storage = storage
        self._waiting: dict[str, Then] = {}
        self._armed_s = inf
        self._bell = self._ring
        self._down_s = 0.0
        self._slow_s = 0.0
        self._loads = 0
        """Of weights, asked for and not over; the engine serves after the last."""
        self.engine = self._fresh()

    def submit(self, request: Request, then: Then) -> None:
        """Queue a request; EngineLost when nobody is there, EngineFull when many wait."""
        if not self.alive:
            message = f"the engine at {self.url} is down"
            raise EngineLost(message)
        try:
            self.engine.submit(request, self._loop.now_s)
        except EngineBusy as error:
            message = f"the queue of the engine at {self.url} is full: {error}"
            raise EngineFull(message) from error
        self._waiting[request.rid] = then
        self.arm()

    def arm(self) -> None:
        """Wake when the engine has something to say."""
        due_s = self.engine.next_event_s()
        if due_s != self._armed_s:
            self._armed_s = due_s
            if due_s != inf:
                self._loop.at(due_s, self._bell, due_s)

    def slow_down(self, seconds: float) -> None:
        """Every iteration takes that much longer, also after a death."""
        self._slow_s = seconds
        self.engine.slow_down(seconds, self._loop.now_s)
        self.arm()

    def log(self, now_s: float) -> list[tuple[str, float, float]]:
        """(state, start_s, end_s) of what it did up to now, the pass under way included."""
        under_way = self.engine.under_way(now_s) if self.alive else ("down", self._down_s, now_s)
        return [*self.passes, under_way] if under_way else list(self.passes)

    def die(self) -> int:
        """It stops, and everything it held is gone; returns how many requests that were."""
        if not self.alive:
            return 0
        now_s = self._loop.now_s
        under_way = self.engine.under_way(now_s)
        if under_way:
            self.passes.append(under_way)
        elif self.passes and self.passes[-1][2] > now_s:
            # It was loading weights.
            self.passes[-1] = (*self.passes[-1][:2], now_s)
        self.alive = False
        self._armed_s = inf
        self._down_s = now_s
        lost, self._waiting = self._waiting, {}
        for then in lost.values():
            then(None)
        return len(lost)

    def come_back(self) -> None:
        """A new engine at the same address."""
        if not self.alive:
            self.passes.append(("down", self._down_s, self._loop.now_s))
            self.alive = True
            self.engine = self._fresh()

    def pause(self, mode: PauseMode) -> None:
        """Stop generating, as /pause_generation."""
        self.engine.pause(mode, self._loop.now_s)
        self.arm()

    def load_weights(self, version: str, then: Callable[[], object]) -> None:
        """New weights once the iteration under way has ended; `then` when it serves again."""
        self._loads += 1
        self._load(self.engine, version, then)

    def _load(self, engine: Engine, version: str, then: Callable[[], object]) -> None:
        if not self._lives(engine):
            return
        # Who waited and was aborted ends at once, and hides when the pass under way will.
        self._settle()
        start_s, due_s = self._loop.now_s, engine.next_event_s()
        if self.passes and self.passes[-1][2] > start_s:
            due_s = self.passes[-1][2]  # others are still being loaded
        if due_s != inf and due_s > start_s:
            self._loop.at(due_s, self._load, engine, version, then)
            return
        end_s = start_s + engine.load_weights(version, start_s)
        self.passes.append(("weight_sync", start_s, end_s))
        self._loop.at(end_s, self._serve_again, engine, then)

    def _serve_again(self, engine: Engine, then: Callable[[], object]) -> None:
        if not self._lives(engine):
            return
        self._loads -= 1
        if not self._loads:
            engine.resume(self._loop.now_s)
            self.arm()
        then()

    def _lives(self, engine: Engine) -> bool:
        """Whether it has not died since, come back empty or not."""
        return self.alive and engine is self.engine

    def _fresh(self) -> Engine:
        self._loads = 0
        engine = make_engine(self.config, self._truth, storage=self._storage, spans=True)
        engine.passes = self.passes
        engine.slow_s = self._slow_s
        return engine

    def _ring(self, due_s: float) -> None:
        if due_s != self._armed_s:
            return  # asked again for another time since
        self._armed_s, waiting = inf, self._waiting
        # Not through `_settle` and `arm`: most wakings end a pass and nothing else.
        for finished in self.engine.advance(self._loop.now_s):
            waiting.pop(finished.rid)(finished)
        due_s = self.engine.next_event_s()
        if due_s != self._armed_s:
            self._armed_s = due_s
            if due_s != inf:
                self._loop.at(due_s, self._bell, due_s)

    def _settle(self) -> None:
        for finished in self.engine.advance(self._loop.now_s):
            self._waiting.pop(finished.rid)(finished)

    # the port of the controller

    async def observe(self) -> EngineLoad:
        """Its load now."""
        load = self.engine.loads(self._loop.now_s)
        return EngineLoad(
            running=load.running,
            queued=load.waiting,
            kv_used_tokens=load.active_tokens,
            kv_tokens=load.capacity_tokens,
        )

    async def capabilities(self) -> Capabilities:
        """What it is."""
        if not self.alive:
            message = f"the engine at {self.url} is down"
            raise EngineLost(message)
        return Capabilities(
            model=self.config.model,
            degree=self.config.degree,
            kv_tokens=self.engine.scheduler.capacity,
            max_running=self.config.max_running,
            priority=self.config.priority_scheduling,
            margin=self.config.preemption_threshold,
            memory_saver=True,
        )

    async def sleep(self) -> None:
        """Give the memory back."""
        self.engine.sleep(set(TAGS), self._loop.now_s)

    async def wake(self) -> None:
        """Serve again as soon as the weights are back."""
        self.engine.wake(set(TAGS), self._loop.now_s)
        self.arm()

    async def warm(self, ids: bytes, rid: str, headers: Mapping[str, str]) -> Warmed:
        """Prefill that context."""
        _ = headers
        span = self._context_of(ids)
        future = self._loop.create_future()
        request = Request(rid=rid, ids=span, max_new_tokens=0, priority=WARM_PRIORITY)
        self.submit(request, lambda ended: future.done() or future.set_result(ended))
        ended: Finished | None = await future
        if ended is None:
            message = f"the engine at {self.url} was lost"
            raise EngineLost(message)
        return Warmed(ended.prompt_tokens, ended.cached_tokens)

    async def abort(self, rid: str) -> None:
        """Stop that request."""
        if self.alive:
            self.engine.abort(rid, self._loop.now_s)
            self.arm()
