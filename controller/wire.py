"""What goes over the control plane, as pydantic models: requests, answers, one error shape."""

from __future__ import annotations

from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MAX_SAMPLES: Final = 100_000


class Wire(BaseModel):
    """Unknown fields of a request are refused by name."""

    model_config = ConfigDict(extra="forbid")


class GroupIn(Wire):
    """One prompt of a rollout to come."""

    group: str
    samples: int = Field(default=1, ge=0, le=10_000)
    task: str | None = None
    prompt_tokens: int = Field(default=0, ge=0)


class RolloutBegin(Wire):
    """Begin a rollout: allocation runs, the answer comes once the fleet serves."""

    run: str = Field(min_length=1)
    rollout: str = Field(min_length=1)
    kind: str = "train"
    expected: int = Field(default=0, ge=0)
    trainer_step: int | None = None
    groups: list[GroupIn] = Field(default_factory=list[GroupIn], max_length=MAX_SAMPLES)

    @model_validator(mode="after")
    def _bounded(self) -> RolloutBegin:
        """Every sample is planned for one by one: a million would stop the event loop."""
        total = max(sum(g.samples for g in self.groups), 0)
        if total > MAX_SAMPLES or (not self.groups and self.expected > MAX_SAMPLES):
            message = f"a rollout has at most {MAX_SAMPLES} trajectories"
            raise ValueError(message)
        return self


class RolloutEnd(Wire):
    """End a rollout, now or as many wall seconds ago as nothing has happened."""

    run: str = Field(min_length=1)
    quiet_s: float = Field(default=0.0, ge=0, le=86_400)


class TrajectoryFinish(Wire):
    """The trajectory is over."""

    run: str = "default"
    reward: float | None = None
    outcome: str | None = None
    truncated: bool | None = None


class ToolCall(Wire):
    """A tool of the trajectory starts, or has ended."""

    run: str = "default"
    tool: str = Field(min_length=1, max_length=256)
    status: Literal["start", "end"]
    call: str | None = Field(default=None, min_length=1, max_length=256)
    """Tells calls of one tool after one step apart."""
    error: str | None = Field(default=None, max_length=256)


class SwitchSet(Wire):
    """Change switches: a preset, single choices, or a preset and then choices."""

    run: str | None = None
    preset: str | None = None
    order: str | None = None
    admission: str | None = None
    placement: str | None = None
    migration: str | None = None
    allocation: str | None = None
    prediction: str | None = None
    who: str = "unknown"
    why: str = ""

    @property
    def changes(self) -> dict[str, str]:
        """The choices that were named."""
        known = self.model_dump(exclude_none=True)
        return {k: v for k, v in known.items() if k not in {"run", "preset", "who", "why"}}


def is_address(url: str) -> bool:
    """Whether a service can be called there over HTTP."""
    try:
        at = urlsplit(url)
        # Asked for its port, it says whether that is one; "a..b" is no name that can be looked up.
        known = at.scheme in ("http", "https") and (at.port is None or at.port > 0)
        host = (at.hostname or "").encode("idna")
    except ValueError:
        return False
    return known and bool(host) and url.isprintable() and " " not in url


class WorkerIn(Wire):
    """Register an engine; its degree is asked of it when it is not given."""

    url: str
    degree: int | None = Field(default=None, ge=1, le=1024)

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            message = f"a worker's url begins with http:// or https://, not {url[:40]!r}"
            raise ValueError(message)
        if not is_address(url):
            message = f"a worker's url is like http://host:30000, not {url[:80]!r}"
            raise ValueError(message)
        return url


class Acquire(Wire):
    """Ask where a step should go; its bytes then go there directly."""

    run: str = Field(default="default", min_length=1, max_length=512)
    trajectory: str = Field(min_length=1, max_length=512)
    step: int | None = Field(default=None, ge=0, lt=10**9)
    rollout: str | None = Field(default=None, max_length=512)
    group: str | None = Field(default=None, max_length=512)
    sample: int | None = Field(default=None, ge=0, lt=10**9)
    task: str | None = Field(default=None, max_length=512)
    model: str = Field(default="", max_length=512)
    rid: str | None = Field(default=None, max_length=512)
    traceparent: str | None = Field(default=None, max_length=128)
    prompt_tokens: int = Field(default=0, ge=0, lt=2**31)
    input_ids: list[int] | None = None
    """Only needed where moves should be able to carry the prefix."""
    final: bool = False
    deadline_s: float = Field(default=30.0, ge=0, le=600)
    """Wall seconds after which an answer comes even if the step is still held."""


class Release(Wire):
    """How an acquired step went; `meta_info` as SGLang's answer had it says all of it."""

    rid: str = Field(min_length=1, max_length=512)
    input_tokens: int = Field(default=0, ge=0, lt=2**31)
    output_tokens: int = Field(default=0, ge=0, lt=2**31)
    cached_tokens: int | None = Field(default=None, ge=0, lt=2**31)
    input_ids: list[int] | None = None
    """The prompt, for moves to carry, from a caller that spared its acquire the time."""
    output_ids: list[int] | None = None
    meta_info: dict[str, Any] | None = None
    policy_version: str | None = Field(default=None, max_length=512)
    """Which weights sampled, by the trainer's own count; meta_info's where this is not given."""
    error: str | None = Field(default=None, max_length=512)
    final: bool = False
    late_s: float = Field(default=0.0, ge=0, le=60)
    """Wall seconds since the step ended: what this call itself took is not the step's."""


class WeightSyncBegin(Wire):
    """Weights are about to change: hold new steps, then wait for, abort or pause what runs."""

    run: str = Field(default="default", min_length=1, max_length=512)
    id: str = Field(default="", max_length=512)
    policy: Literal["wait", "abort", "pause"] = "wait"
    timeout_s: float = Field(default=60.0, ge=0, le=3600)


class WeightSyncEnd(Wire):
    """They have changed: flush stale prefixes and go on."""

    version: str | None = Field(default=None, max_length=512)
    flush: bool = True


class Acquired(BaseModel):
    """Where the step goes; not granted: it is still held, ask again for the same step."""

    granted: bool
    trajectory: str
    step: int
    held_s: float
    worker: str | None = None
    url: str | None = None
    rid: str | None = None
    priority: int | None = None
    decision: str = ""
    because: str = ""
    traceparent: str | None = None


class Released(BaseModel):
    """Whether the rid was one that is acquired."""

    known: bool


class WeightSyncState(BaseModel):
    """The sync under way, or the last one."""

    active: bool
    id: str = ""
    policy: str = ""
    aborted: int = 0
    resumed: int = 0
    waited_for: list[str] = Field(default_factory=list[str])
    waited_s: float = 0.0
    still_running: int = 0


class RolloutReply(BaseModel):
    """What a rollout got."""

    run: str
    rollout: str
    layout: list[int]
    workers: list[str]
    predicted_makespan_s: float | None
    because: str
    reallocated: bool


class RolloutEnded(BaseModel):
    """How long it took, in fleet seconds."""

    run: str
    rollout: str
    makespan_s: float


class RunState(BaseModel):
    """One run that has live trajectories, an open rollout or switches of its own."""

    run: str
    preset: str | None
    rollout: str | None
    """The one that is open."""
    trajectories: int
    held: int
    running: int


class RolloutState(BaseModel):
    """One rollout this controller began."""

    run: str
    rollout: str
    kind: str
    expected: int
    gpus: int
    start_ns: int
    end_ns: int | None


class SwitchState(BaseModel):
    """What is in force, and what there is."""

    run: str
    preset: str | None
    switches: dict[str, str]
    known: dict[str, list[str]]
    presets: dict[str, dict[str, str]]


class AuditEntry(BaseModel):
    """One change of one switch."""

    version: int
    run: str
    at_ns: int
    choice: str
    before: str
    after: str
    who: str
    why: str


class WorkerState(BaseModel):
    """One worker now."""

    worker_id: str
    url: str
    degree: int
    alive: bool
    running: int
    trajectories: int
    kv_tokens: int
    launched: bool
    draining: str = ""
    """Why it takes no new steps; empty: it takes them."""
    missing: list[str] = []
    """What its engine cannot do, and what Heddle does instead."""
    priority_changes: int = 0
    """Sent after requests that its engine already had."""
    preemptions: int = 0
    """By priority, as its plugin counts them."""


class TrajectoryState(BaseModel):
    """One live trajectory now."""

    run: str
    trajectory: str
    rollout: str | None
    group: str | None
    task: str | None
    state: str
    worker: str | None
    steps: int
    context_tokens: int
    output_tokens: int
    remaining_p50: float | None


class PlanState(BaseModel):
    """The latest plan of each run's open rollout."""

    plans: list[RolloutReply]


class Health(BaseModel):
    """Whether the controller can take steps."""

    ok: bool
    workers: int
    alive: int
    trajectories: int
    held: int
    decision_failures: int
    last_failure: str
    spans_dropped: int
    pins_failures: int = 0
    """Writes of where trajectories are that the disk did not take."""
    pins_failure: str = ""
    """Why a restart now would not know where they are; empty: it would."""
    pins_skipped: int = 0
    """Lines that made no sense when this controller started."""
    clock_origin_ns: int
    clock_speed: float


class Failure(BaseModel):
    """Every error of the control plane."""

    error: str


Decision = dict[str, Any]
