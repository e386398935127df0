"""What is going on right now: trajectories, their waiting and running steps, workers, rollouts?

Mutable, owned by the loop, touched only on its event loop; the core sees frozen facts made of it.
Nanoseconds are fleet time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, cast

from heddle.collector import ids
from heddle.collector.span_bytes import Shared
from heddle.controller.clock import Clock
from heddle.controller.core.types import Latency, Length, Switches, Trajectory, Worker
from heddle.controller.dataplane.identity import Whose
from heddle.controller.dataplane.usage import Usage
from heddle.controller.errors import ControllerError
from heddle.controller.fleet.engine import Engine, Steered
from heddle.controller.pins import Pin
from heddle.controller.shape import Shape

# Every step makes one of each: from a tuple they cost half of what they do through __new__.
_fact: Final = Trajectory._make
_pin: Final = Pin._make


class Grant(NamedTuple):
    """Where a step goes, and what its span and headers say of the decision."""

    worker: LiveWorker
    rid: str
    rank: int
    priority: int | None
    because: str
    decision: str


class Call(NamedTuple):
    """What the loop needs to know of a request beside whose it is."""

    prompt_tokens: int = 0
    ids: bytes | None = None
    model: str = ""
    client_rid: str | None = None
    priority: int | None = None
    """What the client asks for; nobody changes that."""
    resumable: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """One LLM call between its arrival and its last byte."""

    trajectory: LiveTrajectory
    whose: Whose
    index: int
    arrival: int
    arrived_ns: int
    prompt_tokens: int
    ids: bytes | None
    model: str
    client_rid: str | None
    grant: asyncio.Future[Grant]
    asked_priority: int | None = None
    """The client's own."""
    priority: int | None = None
    """What the engine was told last; None: nothing."""
    steered_s: float = -math.inf
    """Loop time of the last change after it was sent."""
    resumable: bool = False
    """Whether another engine can go on where one stops."""
    leaving: bool = False
    """Its engine was told to stop, so that it goes on elsewhere."""
    task: asyncio.Task[Any] | None = None
    """What carries its bytes; None where they do not pass here."""
    given_up: ControllerError | None = None
    attempt: int = 0
    granted: Grant | None = None
    released_ns: int = 0
    predicted: Length | None = None
    predictor_version: str | None = None

    def give_up(self, because: ControllerError) -> None:
        """Take it off its engine: an EngineError sends it elsewhere, another one ends it."""
        if self.task is not None and self.given_up is None:
            self.given_up = because
            self.task.cancel()

    @property
    def held_s(self) -> float:
        """Seconds it waited here."""
        held_ns = self.released_ns - self.arrived_ns
        return held_ns / 1e9 if held_ns > 0 else 0.0

    def through_ns(self, ended_ns: int, usage: Usage | None) -> int:
        """When its engine was through with it: as the engine says, where its clock can be right;
        else what it worked after the release, or when it ended here."""
        inside_s = max(ended_ns - self.released_ns, 0) / 1e9
        took_s = sum(usage.fitted(inside_s)) if usage else 0.0
        if usage is None or not took_s:
            return ended_ns
        said_ns = round((usage.finished_s or 0.0) * 1e9)
        return min(max(said_ns, self.released_ns + round(took_s * 1e9)), ended_ns)

    def ended_ns(self, clock: Clock, late_s: float) -> int:
        """So many wall seconds ago, but not before it was released."""
        now_ns = clock.now_ns()
        if not late_s:
            return now_ns
        return max(now_ns - round(late_s * clock.speed * 1e9), min(self.released_ns, now_ns))


@dataclass(slots=True, kw_only=True)
class LiveMove:
    """A move under way or waiting for the step that shows what it brought."""

    source: str
    target: str
    because: str
    tokens: int
    started_ns: int
    ended_ns: int = 0
    error: str | None = None
    method: Literal["reprefill", "l3_fetch", "resume"] = "reprefill"
    hit_tokens: int | None = None
    useless: bool | None = None
    """Most of what was carried was not found by the next step; None: nobody knows."""
    slow_down: float | None = None
    """Share by which streams on the target were slower while it lasted; None: there were none."""
    events: int = 0
    """Of streams on the target: before it began, then during it."""
    events_after: int = 0
    """Of streams on the target so far, when it ended."""


@dataclass(slots=True, kw_only=True, eq=False)
class LiveTrajectory:
    """One trajectory that has not finished."""

    run: str
    id: str
    number: int
    key: str = field(init=False)
    """Unique over all runs."""
    digest: str = field(init=False)
    """Of the key; of fixed width, so that rids made with it are prefix-free: SGLang aborts by
    prefix."""
    own_trace: tuple[str, str] = field(init=False)
    """Trace and span of it where no client says others, derived from its name."""
    group: str | None = None
    rollout: str | None = None
    sample: int | None = None
    task: str | None = None
    trace: tuple[str, str] | None = None
    worker: str | None = None
    steps: int = 0
    """Finished ones."""
    attempts: dict[int, int] = field(default_factory=dict[int, int])
    """How often each step index arrived or was sent again."""
    prompt_tokens: int = 0
    context_tokens: int = 0
    output_tokens: int = 0
    shape: Shape = field(default_factory=Shape)
    remaining: Length | None = None
    predictor_version: str | None = None
    believed: str | None = None
    """The prediction policy `remaining` was asked of; None: something changed since."""
    prompt_ids: bytes | None = None
    output_ids: bytes | None = None
    """Of its last step."""
    chat: bytes | None = None
    """Its last chat and the answer, as a warm-up sends it; kept where moves are on."""
    stays: bool = False
    """Moves of its like were useless."""
    waiting: list[Step] = field(default_factory=list[Step])
    running: set[Step] = field(default_factory=set[Step])
    last_end_ns: int = 0
    last_step: int = -1
    last_done: tuple[int, int] = (-1, 0)
    """Index and output tokens of the newest finished step."""
    move: LiveMove | None = None
    moving: bool = False
    parked: bool = False
    final: bool = False
    errors: int = 0
    known: Trajectory | None = None
    """The fact as last told; None: something changed since."""
    labels: tuple[object, dict[str, Any]] | None = None
    """What its spans say of it, and what that was made of."""
    told: tuple[object, Shared] | None = None
    """The same of its steps..."""
    tools_told: tuple[object, Shared] | None = None
    """... and of its tools."""
    steered: tuple[Trajectory, Switches, int] | None = None
    """What the priorities of its running steps were last worked out from."""

    def __post_init__(self) -> None:
        self.key = f"{self.run}/{self.id}"
        self.digest = blake2b(self.key.encode(), digest_size=8).hexdigest()
        trace = ids.trace_id(self.run, self.id)
        self.own_trace = trace, ids.trajectory_span_id(self.run, self.id)

    @property
    def state(self) -> Literal["held", "running", "tool"]:
        """Held while moving counts as tool: its step waits for the move, not for a decision."""
        if self.waiting and not self.moving:
            return "held"
        return "running" if self.running else "tool"

    @property
    def has_prefix(self) -> bool:
        """Whether another engine can be given its context."""
        return self.prompt_ids is not None or self.chat is not None

    @property
    def interface(self) -> str:
        """How its steps come."""
        return "generate" if self.prompt_ids is not None else "chat"

    @property
    def ids(self) -> bytes | None:
        """Its context, as a move carries it: put together when one does, not at every step."""
        if self.prompt_ids is None or not self.output_ids:
            return self.prompt_ids
        return self.prompt_ids + b"," + self.output_ids

    def changed(self) -> None:
        """Whoever changes anything that `fact` tells says so here."""
        self.known = None

    def grow(self, step: Step, usage: Usage) -> None:
        """What a finished step added."""
        self.shape.stepped(self.context_tokens, usage.input_tokens, usage.output_tokens)
        if not self.steps:
            self.prompt_tokens = usage.input_tokens
        if step.index == self.last_done[0]:
            # A client that lost the answer asked again: the step is still one.
            self.steps -= 1
            self.output_tokens -= self.last_done[1]
        self.last_done = step.index, usage.output_tokens
        self.steps += 1
        self.context_tokens = usage.input_tokens + usage.output_tokens
        self.output_tokens += usage.output_tokens
        self.prompt_ids, self.output_ids = step.ids, usage.output_ids
        self.changed()

    @property
    def pin(self) -> Pin:
        """What a restarted controller needs of it."""
        return _pin((self.run, self.id, self.worker or "", self.last_done[0], self.last_end_ns))

    def comes_back(self, pin: Pin) -> None:
        """It was here before: a step's number is never given twice."""
        self.worker, self.last_end_ns = pin.worker or None, pin.ended_ns
        self.last_step, self.last_done = pin.step, (pin.step, 0)
        self.steps = pin.step + 1

    def park(self) -> None:
        """Its next step waits for a place anywhere."""
        self.parked = True
        self.changed()

    def fact(self) -> Trajectory:
        """What the core may know of it: the same object until something changes."""
        if self.known is None:
            self.known = self._fact()
        return self.known

    def _fact(self) -> Trajectory:
        first = self.waiting[0] if self.waiting else None
        context = self.context_tokens
        if first is not None and first.prompt_tokens > context:
            context = first.prompt_tokens
        # In the order of its fields: every step makes one, and names double its price.
        return _fact(
            (
                self.key,
                first.arrival if first else self.number,
                f"{self.run}/{self.group}" if self.group else "",
                self.state,
                self.steps,
                self.prompt_tokens,
                context,
                self.output_tokens,
                # One that is no number would spoil the sums of everybody on its worker.
                told if (told := self.remaining) is None or math.isfinite(sum(told)) else None,
                self.worker,
                self.last_end_ns / 1e9 if self.last_end_ns else math.inf,
                self.moving,
                self.has_prefix and not self.final and not self.stays,
                self.parked,
            )
        )


@dataclass(slots=True, kw_only=True, eq=False)
class LiveWorker:
    """One engine that takes steps; `generation` counts the engines that had this id."""

    id: str
    engine: Steered
    latency: Latency
    generation: int = 0
    share: int = 0
    storage: str = ""
    """Where it keeps pages that others may read, as it said when it joined."""
    alive: bool = True
    launched: bool = False
    draining: str = ""
    """Why it takes no new steps; empty: it takes them."""
    joined_ns: int = 0
    running: int = 0
    events: int = 0
    """Chunks of streams that came from it."""
    ended: int = 0
    """Steps that left it, however they went."""
    through_ns: int = 0
    """Since when it has worked on nothing, as far as is known; told only of one that drains."""
    wedged: bool = False
    """It answers, and gets on with nothing: it has to prove itself before it is back."""

    def drain(self, because: str, at_ns: int) -> None:
        """It takes no more steps."""
        self.draining, self.through_ns = because, at_ns

    def left(self, step: Step, ended_ns: int, usage: Usage | None) -> None:
        """One of its steps is no longer there."""
        self.running -= 1
        self.ended += 1
        if self.draining:
            self.through_ns = max(self.through_ns, step.through_ns(ended_ns, usage))

    @property
    def takes(self) -> bool:
        """Whether a step may be sent there."""
        return self.alive and not self.draining

    @property
    def url(self) -> str:
        """Its address."""
        return self.engine.url

    @property
    def wire(self) -> Engine:
        """The same engine as what carries requests: any but those of a fleet in virtual time."""
        return cast("Engine", self.engine)

    @property
    def degree(self) -> int:
        """GPUs of the engine."""
        return self.latency.degree

    def fact(self) -> Worker:
        """What the core may know of it."""
        return Worker(id=self.id, latency=self.latency, share=self.share, storage=self.storage)


@dataclass(slots=True, kw_only=True)
class Rollout:
    """One generation phase, from the answer to its begin until its end."""

    run: str
    id: str
    kind: str
    expected: int
    start_ns: int
    gpus: int
    attributes: dict[str, object]
    trainer_step: int | None = None
    end_ns: int | None = None
    leases: dict[str, tuple[int, Mapping[str, object]]] = field(
        default_factory=dict[str, tuple[int, Mapping[str, object]]]
    )
    """Span id of each worker's lease -> when it joined, what its span says."""
