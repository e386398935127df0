"""What does the core see, and what may it decide?

Frozen facts in, a frozen plan out; seconds and tokens only. Knows no clock, no engine, no span.
What every step makes one of is a named tuple: a frozen dataclass takes four times as long to make.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

State = Literal["held", "running", "tool"]

DEFAULT_RUNNING: Final = 256
"""Sequences an engine decodes at once when it does not say (SGLang's usual cap on H100)."""

SELDOM: Final = 1e-3
"""Resets below which a series stands in for the closed form of `kept_depth`."""


class CoreError(ValueError):
    """Root of what can go wrong in a decision; its text is one sentence for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """The law of one engine of `degree` GPUs, in seconds and tokens."""

    degree: int
    a_s: float
    b_s: float
    c_s: float
    p0_s: float
    p1_s: float
    p2_s: float
    kv_tokens: int
    max_running: int = DEFAULT_RUNNING

    def prefill_s(self, new_tokens: float, prefix_tokens: float = 0.0) -> float:
        """Prefill of new tokens after a cached prefix; 0 when nothing is new."""
        if new_tokens <= 0:
            return 0.0
        area = new_tokens * (prefix_tokens + new_tokens / 2)
        return self.p0_s + self.p1_s * new_tokens + self.p2_s * area


class Length(NamedTuple):
    """Output tokens still to come, as quantiles and a mean; never a point alone."""

    p10: float
    p50: float
    p90: float
    mean: float


class Trajectory(NamedTuple):
    """One live trajectory. `held`: its next step waits here; `tool`: between two steps.

    `arrival` orders arrivals of the waiting step; its tool runs since `tool_since_s`. A fact stays
    the same object until something about the trajectory changes: `Memory` counts on it.
    """

    id: str
    arrival: int
    group: str = ""
    state: State = "held"
    steps: int = 0
    prompt_tokens: int = 0
    context_tokens: int = 0
    output_tokens: int = 0
    remaining: Length | None = None
    worker: str | None = None
    tool_since_s: float = 0.0
    moving: bool = False
    movable: bool = True
    """Whether its prefix is known here, so that a move can carry it."""
    parked: bool = False
    """Its worker had no room for its context any more: the next step waits for a place anywhere."""

    @property
    def is_fresh(self) -> bool:
        """Whether its first step has not been released yet."""
        return self.steps == 0 and self.worker is None

    def in_tool_s(self, now_s: float) -> float:
        """Seconds its tool has been running."""
        return max(now_s - self.tool_since_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One engine that takes steps; `latency` is what the planner believes of it."""

    id: str
    latency: Latency
    share: int = 0
    """Trajectories the plan of this rollout meant for it (the paper's group size); 0: no plan."""
    storage: str = ""
    """Where it keeps pages that others of its degree may read; empty: nowhere."""

    @property
    def degree(self) -> int:
        """GPUs of the engine."""
        return self.latency.degree


class Rates(NamedTuple):
    """What a trajectory of this task does beside generating, from what was seen or history."""

    remaining_tokens: float = 1024.0
    """Taken where a trajectory has no prediction."""
    context_per_output: float = 1.0
    """Context tokens gained for each output token: observations included."""
    tool_s: float = 0.0
    """Seconds of one tool interval."""
    away_s: float = 60.0
    """In a tool for longer than this it no longer holds a place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Which policy is in force for each of the six choices."""

    order: str
    admission: str
    placement: str
    migration: str
    allocation: str
    prediction: str


Fetches = Mapping[tuple[str, int], float]
"""Seconds a token of fetches seen, by storage and degree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that one decision may know."""

    trajectories: tuple[Trajectory, ...]
    workers: tuple[Worker, ...]
    rates: Rates = field(default_factory=Rates)
    now_s: float = 0.0
    """Fleet seconds, by the clock that `tool_since_s` is read from."""
    fetches: Fetches = field(default_factory=dict[tuple[str, int], float])


class Release(NamedTuple):
    """Send the waiting step of a trajectory to a worker; rank 0 was first among the waiting."""

    trajectory: str
    worker: str
    rank: int
    priority: int | None
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Carry one trajectory's prefix to another worker while its tool runs."""

    trajectory: str
    source: str
    target: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """Let a trajectory's next step wait for a place instead of going home."""

    trajectory: str
    worker: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every waiting step is released once or stays held with the reason in `held`."""

    releases: tuple[Release, ...] = ()
    moves: tuple[Move, ...] = ()
    parks: tuple[Park, ...] = ()
    held: Mapping[str, str] = field(default_factory=dict[str, str])


def kept_depth(resets: float) -> float:
    """Mean depth of a context that grows evenly and falls back that often, of one that never does.

    Resets as a Poisson process of rate r over a length of 1: 2 (r - 1 + e^-r) / r^2.
    """
    if resets < SELDOM:
        # The difference above loses its digits there.
        return 1.0 - resets / 3.0
    return 2.0 * (resets + math.expm1(-resets)) / resets**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One trajectory the allocation plans for; observations come spread over its output."""

    output_tokens: float
    prompt_tokens: float = 0.0
    observation_tokens: float = 0.0
    steps: float = 1.0
    tool_s: float = 0.0
    resets: float = 0.0
    """Times its context is expected to fall back to the prompt, anywhere with the same odds."""

    @property
    def depth_tokens(self) -> float:
        """What its context holds beyond the prompt, on average over its output tokens."""
        half = (self.output_tokens + self.observation_tokens) / 2
        return half * kept_depth(self.resets) if self.resets else half

    @property
    def area(self) -> float:
        """Context summed over its own output tokens: token-iterations of KV it occupies."""
        return self.output_tokens * (self.prompt_tokens + self.depth_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees of the workers, highest first, and how many trajectories each is meant for."""

    degrees: tuple[int, ...]
    shares: tuple[int, ...] = ()
    makespan_s: float | None = None
    because: str

    @property
    def gpus(self) -> int:
        """GPUs the layout uses."""
        return sum(self.degrees)
