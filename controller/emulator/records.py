"""What came out of a rollout in virtual time?

Rows of steps, tools, moves, trajectories and engines, in seconds since the rollout began, in the
order in which they ended. `digest` is equal exactly when two rollouts were.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from heddle.controller.core.types import Switches


class StepRecord(NamedTuple):
    """One step: arrived at the controller, held, sent, queued in the engine, prefilled, decoded."""

    trajectory_id: str
    step_index: int
    attempt: int
    worker_id: str
    arrived_s: float
    end_s: float
    held_s: float
    queue_s: float
    prefill_s: float
    decode_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    retractions: int
    order_rank: int
    priority: int | None
    predicted_p50: float | None
    weight_version: str
    error: str | None


class ToolRecord(NamedTuple):
    """One tool call after a step."""

    trajectory_id: str
    step_index: int
    tool_name: str
    start_s: float
    end_s: float


class MoveRecord(NamedTuple):
    """A trajectory changed worker; what the tool did not hide is exposed."""

    trajectory_id: str
    step_index: int | None
    source: str
    target: str
    start_s: float
    end_s: float
    tokens: int
    hit_tokens: int | None
    hidden_s: float
    exposed_s: float
    because: str
    error: str | None


class DeathRecord(NamedTuple):
    """An engine that was lost, and how many steps with it."""

    worker_id: str
    at_s: float
    lost_steps: int


class SyncRecord(NamedTuple):
    """New weights on one engine: told at, serving again at."""

    worker_id: str
    version: str
    at_s: float
    end_s: float


class LeaseRecord(NamedTuple):
    """A worker belonged to the rollout; `generation` counts the engines that had this id."""

    worker_id: str
    generation: int
    degree: int
    start_s: float
    end_s: float


class PassRecord(NamedTuple):
    """What an engine really did: prefill, decode, weight_sync or down; idle between them."""

    worker_id: str
    state: str
    start_s: float
    end_s: float


@dataclass(slots=True)
class TrajectoryRecord:
    """One trajectory; `end_s` is None where the rollout ended before it did."""

    trajectory_id: str
    group_id: str
    sample_index: int
    task: str
    start_s: float
    end_s: float | None = None
    steps: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    held_s: float = 0.0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    tool_s: float = 0.0
    retractions: int = 0
    moves: int = 0
    worker_id: str | None = None
    predicted_p50: float | None = None
    truncated: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One engine of the fleet."""

    worker_id: str
    degree: int
    kv_tokens: int
    truth_hash: str


@dataclass(slots=True, kw_only=True)
class RolloutResult:
    """Everything a rollout in virtual time left behind."""

    switches: Switches
    layout: tuple[int, ...]
    seed: int
    system: str
    model: str
    workload_hash: str
    truth_hash: str
    predicted_makespan_s: float | None = None
    because: str = ""
    makespan_s: float = 0.0
    trajectories: list[TrajectoryRecord] = field(default_factory=list[TrajectoryRecord])
    steps: list[StepRecord] = field(default_factory=list[StepRecord])
    tools: list[ToolRecord] = field(default_factory=list[ToolRecord])
    moves: list[MoveRecord] = field(default_factory=list[MoveRecord])
    deaths: list[DeathRecord] = field(default_factory=list[DeathRecord])
    syncs: list[SyncRecord] = field(default_factory=list[SyncRecord])
    passes: list[PassRecord] = field(default_factory=list[PassRecord])
    workers: list[WorkerRecord] = field(default_factory=list[WorkerRecord])
    leases: list[LeaseRecord] = field(default_factory=list[LeaseRecord])
    """In the order in which they ended: a dead engine's ends when the controller notices."""
    events: int = 0
    decisions: int = 0
    """Full decisions of the loop; steps of started trajectories need none."""
    failures: int = 0
    """Decisions that raised."""
    cpu_s: float = 0.0

    @property
    def gpus(self) -> int:
        """GPUs of the layout."""
        return sum(self.layout)

    @property
    def gpu_s(self) -> float:
        """GPU-seconds of the window."""
        return self.gpus * self.makespan_s

    @property
    def finished(self) -> int:
        """Trajectories that reached their end."""
        return sum(t.end_s is not None and t.error is None for t in self.trajectories)

    def digest(self) -> str:
        """16 hex digits of everything but the seconds of this machine."""
        said: list[Any] = [
            self.makespan_s, self.steps, self.tools, self.moves, self.deaths, self.syncs,
            self.passes, self.workers, self.trajectories, self.layout, self.events,
        ]  # fmt: skip
        return blake2b(repr(said).encode(), digest_size=8).hexdigest()
