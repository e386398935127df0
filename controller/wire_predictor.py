"""What goes over the control plane about predictors: versions, jobs, the gate's table."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from heddle.controller.wire import Wire

Name = Field(default=None, min_length=1, max_length=512)
WHO = Field(default="unknown", max_length=512)
WHY = Field(default="", max_length=2000)


class PredictorChoice(Wire):
    """Which predictor version to serve; `force` overrides the gate's refusal and is noted."""

    version: str
    who: str = WHO
    why: str = WHY
    force: bool = False


class Rollback(Wire):
    """Back to the predictor before."""

    who: str = WHO
    why: str = WHY


class JobAsked(Wire):
    """Train on what the collector recorded, or evaluate a version on what it never saw."""

    kind: Literal["train", "evaluate"]
    run: str | None = Name
    """Only of this run."""
    rollout: str | None = Name
    """Only of this rollout."""
    split: Literal["group", "task", "rollout", "time"] = "group"
    """What is held out whole."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    epochs: int = Field(default=60, ge=1, le=1000)
    version: str | None = Name
    """To evaluate; the one that serves where none is named."""
    promote: bool = False
    """Put it live if the gate accepts."""
    who: str = WHO
    why: str = WHY


class GateRow(BaseModel):
    """One comparison on held-out trajectories; `k` -1 is the mean over the steps, `low` and `high`
    are the 90 % interval of the difference."""

    against: str
    k: int
    n: int
    metric: str
    baseline: float | None
    candidate: float | None
    difference: float | None
    low: float | None
    high: float | None


class PredictorJob(BaseModel):
    """One job; `sentence` says what it does now, or how it ended."""

    id: str
    kind: Literal["train", "evaluate"]
    state: Literal["running", "done", "failed", "cancelled"] = "running"
    progress: float = 0.0
    """From 0 to 1."""
    sentence: str = "starting"
    asked: JobAsked
    version: str | None = None
    accepted: bool | None = None
    """What the gate said; None until it has."""
    promoted: bool = False
    table: list[GateRow] = Field(default_factory=list[GateRow])
    started_ns: int
    ended_ns: int | None = None


class PredictorVersion(BaseModel):
    """One version of the registry in short."""

    version: str
    accepted: bool
    because: str
    created_ns: int
    fingerprint: str
    metrics: dict[str, float]
    """Held-out means over the steps, by metric."""


class PredictorState(BaseModel):
    """Who predicts where prediction is `learned`; `refused` says which newer one is broken."""

    version: str
    known: list[str]
    refused: list[str] = Field(default_factory=list[str])
    versions: list[PredictorVersion] = Field(default_factory=list[PredictorVersion])
    """Of the registry, newest first."""


class PredictorCard(PredictorVersion):
    """All that is kept of one version."""

    serving: bool
    card: str
    """Markdown."""
    table: list[GateRow]
    trained: dict[str, Any]
    """Arguments and sizes of its training."""


class PredictorDeed(BaseModel):
    """One line of the registry's audit."""

    at_ns: int
    deed: str
    """save, promote, promote-forced, rollback, refused."""
    version: str
    who: str
    why: str
