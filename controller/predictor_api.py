"""Which predictor serves, what is known of each version, and what is being trained?

The control plane's paths under /heddle/v1/predictor; the guard in front has checked the token of
every change.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from heddle.controller import wire_predictor as wire

router = APIRouter(prefix="/heddle/v1/predictor")


def _up(request: Request) -> Any:
    return request.app.state.up()


@router.get("", response_model=wire.PredictorState)
async def predictor(request: Request) -> Any:
    """Who predicts where prediction is `learned`, and which versions there are."""
    return _up(request).predictors.state()


@router.post("/promote", response_model=wire.PredictorState)
async def promote(request: Request, asked: wire.PredictorChoice) -> Any:
    """Put a version live; a broken one is refused and what serves goes on."""
    return _up(request).predictors.promote(asked)


@router.post("/rollback", response_model=wire.PredictorState)
async def rollback(request: Request, asked: wire.Rollback) -> Any:
    """Back to what served before."""
    return _up(request).predictors.rollback(asked)


@router.get("/audit", response_model=list[wire.PredictorDeed])
async def audit(request: Request, limit: int = 200) -> Any:
    """Who saved, promoted, forced or took back what, newest first."""
    return _up(request).predictors.audit(max(1, min(limit, 10_000)))


@router.get("/jobs", response_model=list[wire.PredictorJob])
async def jobs(request: Request) -> Any:
    """Every job since the controller started, newest first."""
    return _up(request).jobs.newest()


@router.post("/jobs", response_model=wire.PredictorJob)
async def begin_job(request: Request, asked: wire.JobAsked) -> Any:
    """Train or evaluate in a process of its own; one at a time, the answer comes at once."""
    return _up(request).jobs.begin(asked)


@router.get("/jobs/{job_id}", response_model=wire.PredictorJob)
async def job(request: Request, job_id: str) -> Any:
    """How far it is, and how it ended."""
    return _up(request).jobs.get(job_id)


@router.post("/jobs/{job_id}/cancel", response_model=wire.PredictorJob)
async def cancel_job(request: Request, job_id: str) -> Any:
    """End it; what serves goes on."""
    return await _up(request).jobs.cancel(job_id)


@router.get("/{version}", response_model=wire.PredictorCard)
async def version(request: Request, version: str) -> Any:
    """Its model card, the gate's table, and what it was made from."""
    return _up(request).predictors.card(version)
