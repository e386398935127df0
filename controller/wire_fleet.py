"""What goes over the control plane about the fleet itself: layouts, their changes, their levers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from heddle.controller.wire import GroupIn, Wire, WorkerState

Name = Field(default="", max_length=512)


class FleetPlanIn(Wire):
    """Which layout: these degrees, or what the run's allocation policy wants for its lengths."""

    layout: list[int] | None = Field(default=None, max_length=4096)
    run: str = Field(default="default", min_length=1, max_length=512)
    expected: int = Field(default=0, ge=0, le=100_000)
    groups: list[GroupIn] = Field(default_factory=list[GroupIn], max_length=100_000)
    floor: float | None = Field(default=None, ge=0, le=1)
    """Share of the serving GPUs that go on; 0.5 while trajectories live, else 0."""


class FleetApplyIn(FleetPlanIn):
    """The same, carried out."""

    who: str = "unknown"
    why: str = Name
    wait: bool = False
    """Answer at its end and not at its beginning."""


class DrainIn(Wire):
    """Take no new steps there, or take them again."""

    who: str = "unknown"
    why: str = Name


class WeightsIn(Wire):
    """Who brings weights to engines that join: a versioned path, the trainer, the engines."""

    owner: Literal["engine", "disk", "trainer"]
    path: str = Field(default="", max_length=4096)
    version: str = Name


class WeightsState(BaseModel):
    """Who owns the weights, and where the current ones are."""

    owner: str
    path: str
    version: str
    unavailable: str
    """Why layouts cannot change because of it; empty: they can."""


class PlaceState(BaseModel):
    """A block of GPUs of one node; `method`: launch or wake."""

    node: int
    first: int
    degree: int
    method: str = ""


class GroupState(BaseModel):
    """GPUs that change hands together."""

    drains: list[str]
    starts: list[PlaceState]


class FleetPlanState(BaseModel):
    """A change before it happens."""

    before: list[int]
    layout: list[int]
    available: bool
    unavailable: str
    """Why it cannot be applied; empty: it can."""
    change: bool
    """Whether its gain beats its cost with the margin; a layout asked for by hand may not."""
    because: str
    stays: list[str]
    waves: list[list[GroupState]]
    floor_gpus: int
    lowest_gpus: int
    cost_s: float
    gain_s: float | None
    makespan_s: float | None


class PhaseState(BaseModel):
    """One worker in one phase of a change; fleet nanoseconds."""

    name: str
    worker: str
    degree: int
    start_ns: int
    end_ns: int
    error: str


class ReallocationState(BaseModel):
    """One change of the layout, under way or over."""

    id: str
    state: str
    """running, done or rolled back"""
    error: str
    before: list[int]
    wanted: list[int]
    after: list[int]
    because: str
    who: str
    waves: int
    start_ns: int
    end_ns: int
    expected_s: float
    gain_s: float | None
    floor_gpus: int
    lowest_gpus: int
    moved: int
    """Trajectories carried away before their engine ended."""
    longest_s: dict[str, float]
    """Phase -> seconds of the worker that took longest."""
    phases: list[PhaseState]


class SleeperState(BaseModel):
    """An engine that sleeps on GPUs another one uses."""

    url: str
    place: PlaceState


class FleetWorker(WorkerState):
    """A worker with what its engine says of itself now."""

    takes: bool
    """Whether it takes steps."""
    state: str
    """serving, draining, or why it does not answer"""
    place: PlaceState | None
    queued: int | None
    """Requests that wait in the engine; None: it did not answer."""
    engine_running: int | None
    kv_used_tokens: int | None
    kv_usage: float | None
    context_tokens: int
    """Of the trajectories that live there."""
    restarts: int
    said: str
    """The end of its log when it last ended by itself."""
    node: str
    can: dict[str, bool]
    sleep: str
    """Why a change would stop it instead of putting it to sleep; empty: it would sleep."""


class LeverState(BaseModel):
    """One lever under one trainer."""

    trainer: str
    lever: str
    works: Literal["yes", "with consent", "no"]
    because: str


class CostState(BaseModel):
    """What one method takes at one degree."""

    degree: int
    method: str
    seconds: float
    measured: int
    """How often it was measured; 0: the latency profile says so."""


class FleetState(BaseModel):
    """Everything about the fleet itself."""

    launcher: str
    nodes: list[int]
    gpus: int
    layout: list[int]
    serving_gpus: int
    unavailable: str
    """Why the layout cannot change now; empty: it can."""
    weights: WeightsState
    workers: list[FleetWorker]
    asleep: list[SleeperState]
    reallocations: list[ReallocationState]
    """The newest first."""
    costs: list[CostState]
    levers: list[LeverState]
