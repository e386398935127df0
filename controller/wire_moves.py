"""What goes over the control plane about moves: one that is asked for, what was made of each."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from heddle.controller.wire import Wire


class MoveIn(Wire):
    """Carry a trajectory to another worker, whatever the policy would do."""

    run: str = Field(default="default", min_length=1, max_length=512)
    trajectory: str = Field(min_length=1, max_length=512)
    target: str = Field(min_length=1, max_length=512)
    mid_generation: bool = False
    """Stop its running step and let it go on there: /generate with token ids alone."""
    who: str = Field(default="unknown", max_length=512)
    why: str = Field(default="", max_length=2000)


class MoveState(BaseModel):
    """One move: under way, made, or given up with an error."""

    run: str
    trajectory: str
    source: str
    target: str
    method: Literal["reprefill", "l3_fetch", "resume"]
    because: str
    tokens: int
    state: Literal["moving", "moved", "failed"]
    took_s: float | None
    """Fleet seconds; None while it is under way."""
    hit_tokens: int | None
    """Found by the step after it; None until then, or where nobody says."""
    useless: bool | None
    slow_down: float | None
    error: str | None


class MoveBenefit(BaseModel):
    """What moves of one run and interface brought."""

    run: str
    interface: Literal["generate", "chat"]
    moves: int
    useless: int
    share: float
    """Of the carried tokens, found on arrival; the newest count most."""


class Moves(BaseModel):
    """The newest moves first, and what was learned of them."""

    moves: list[MoveState]
    benefit: list[MoveBenefit]
