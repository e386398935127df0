"""Which moves were made, what did they bring, and may I have one?

The control plane's paths under /heddle/v1/moves; the guard in front has checked the token of every
change.
"""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request

from heddle.controller import wire_moves as wire
from heddle.controller.core.types import Move
from heddle.controller.errors import Conflict, NotFound
from heddle.controller.live import LiveMove, LiveTrajectory

router = APIRouter(prefix="/heddle/v1/moves")


@router.get("", response_model=wire.Moves)
async def moves(request: Request, limit: int = 50) -> Any:
    """The newest ones first, and what moves of each run and interface brought."""
    mover = request.app.state.up().loop.mover
    newest = list(reversed(mover.made))[: max(1, min(limit, 200))]
    benefit = [wire.MoveBenefit.model_validate(told) for told in mover.benefit.told()]
    return wire.Moves(moves=[_state(t, move) for t, move in newest], benefit=benefit)


@router.post("", response_model=wire.MoveState)
async def move(request: Request, asked: wire.MoveIn) -> Any:
    """Begin one now; its span comes once the next step has shown what it brought."""
    loop = request.app.state.up().loop
    trajectory = loop.trajectories.get(f"{asked.run}/{asked.trajectory}")
    target = loop.fleet.workers.get(asked.target)
    if trajectory is None or target is None or not target.alive:
        name = f"trajectory {asked.trajectory!r}" if trajectory is None else asked.target
        message = f"{name} is not here; see GET /heddle/v1/trajectories and /heddle/v1/workers"
        raise NotFound(message)
    why = f"{asked.who} asked for it" + (f": {asked.why}" if asked.why else "")
    wanted = Move(
        trajectory=trajectory.key,
        source=trajectory.worker or "",
        target=asked.target,
        because=why,
    )
    refused = _refusal(trajectory, asked)
    carry = loop.mover.interrupt if asked.mid_generation else loop.mover.carry
    if refused or not carry(trajectory, wanted):
        message = refused or "its running step cannot go on elsewhere: /generate with ids can"
        raise Conflict(message)
    return _state(trajectory, trajectory.move)


def _refusal(trajectory: LiveTrajectory, asked: wire.MoveIn) -> str:
    if trajectory.moving:
        return f"{asked.trajectory} is moving already"
    if trajectory.worker in (None, asked.target):
        return f"{asked.trajectory} is on {trajectory.worker or 'no worker yet'}"
    if asked.mid_generation:
        return "" if trajectory.running else f"{asked.trajectory} has no running step"
    if trajectory.state != "tool":
        return f"{asked.trajectory} is {trajectory.state}: move between steps, or mid_generation"
    if not trajectory.has_prefix:
        return f"the context of {asked.trajectory} is not kept; chats are kept where moves are on"
    return ""


def _state(trajectory: LiveTrajectory, move: LiveMove | None) -> wire.MoveState:
    assert move is not None, "a move that was begun is there"
    state: Literal["moving", "moved", "failed"] = "failed" if move.error else "moved"
    ended = move.ended_ns > 0
    return wire.MoveState(
        run=trajectory.run,
        trajectory=trajectory.id,
        source=move.source,
        target=move.target,
        method=move.method,
        because=move.because,
        tokens=move.tokens,
        state=state if ended else "moving",
        took_s=(move.ended_ns - move.started_ns) / 1e9 if ended else None,
        hit_tokens=move.hit_tokens,
        useless=move.useless,
        slow_down=move.slow_down,
        error=move.error,
    )
