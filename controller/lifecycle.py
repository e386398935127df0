"""How do clients of other proxies say that a trajectory is over?

SkyRL's, ThunderAgent's and SGLang's own calls mean what `/heddle/v1/trajectories/{id}/finish`
means; engines that keep a session's prefix are told to let it go.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from heddle.controller.dataplane.identity import DEFAULT_RUN
from heddle.controller.errors import EngineError

router = APIRouter()


class Program(BaseModel):
    """ThunderAgent's name for a trajectory."""

    model_config = ConfigDict(extra="ignore")
    program_id: str = Field(min_length=1, max_length=512)


class Session(BaseModel):
    """SGLang's name for one."""

    model_config = ConfigDict(extra="ignore")
    session_id: str = Field(min_length=1, max_length=512)


@router.post("/finish_session")
async def finish_session(request: Request, session_id: str) -> dict[str, bool]:
    """SkyRL's call at a trajectory's end."""
    return await _finish(request, session_id)


@router.post("/programs/release")
async def release_program(request: Request, asked: Program) -> dict[str, bool]:
    """ThunderAgent's."""
    return await _finish(request, asked.program_id)


@router.post("/close_session")
async def close_session(request: Request, asked: Session) -> dict[str, bool]:
    """SGLang's own, as Relax sends it; every engine gets it too."""
    return await _finish(request, asked.session_id)


async def _finish(request: Request, trajectory: str) -> dict[str, bool]:
    up = request.app.state.up()
    run = request.headers.get("x-heddle-run") or DEFAULT_RUN
    live = up.loop.finish(run, trajectory)
    known = up.loop.spans.finished(run, trajectory, {"heddle.outcome": "finished"})
    body = orjson.dumps({"session_id": trajectory})
    await asyncio.gather(*(_closed(w, body) for w in up.fleet.alive))
    return {"known": bool(live or known)}


async def _closed(worker: Any, body: bytes) -> None:
    # Without --enable-session-radix-cache an engine refuses; there is nothing to let go then.
    try:
        await worker.wire.send("/close_session", body, {"content-type": "application/json"})
    except EngineError:
        return
