"""What does a trainer that expects SGLang's router find at this address?

The router's worker API, so that slime, Dressage and Relax work by pointing their router address
here: engines register themselves, and are remembered over a restart of the controller.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from heddle.controller.errors import BadRequest, EngineError
from heddle.controller.wire import WorkerIn

router = APIRouter()


class RouterWorker(BaseModel):
    """What the router takes; fields that Heddle has no use for are let pass."""

    model_config = ConfigDict(extra="ignore")
    url: str = Field(max_length=2048)


async def register(up: Any, url: str, degree: int | None = None) -> Any:
    """Take an engine in, journal it; the same address again replaces it."""
    asked = WorkerIn(url=url, degree=degree)
    worker = await up.fleet.join(None, asked.url, asked.degree)
    up.journal.add_worker(worker.id, worker.url, worker.degree)
    up.rollouts.joined(worker)
    up.loop.poke()
    return worker


def forget(up: Any, name: str) -> Any:
    """By id or by address: it takes no more steps; running ones end there."""
    known = up.fleet.workers.get(name) or up.fleet.at(unquote(name))
    if known is None:
        ids = ", ".join(up.fleet.workers) or "none"
        message = f"no worker {name!r}; there are: {ids}"
        raise BadRequest(message)
    up.fleet.leave(known.id)
    up.journal.remove_worker(known.id)
    up.rollouts.left(known)
    up.loop.poke()
    return known


@router.post("/workers", status_code=202)
async def add(request: Request, asked: RouterWorker) -> dict[str, str]:
    """Register an engine, as it does itself at its start."""
    worker = await register(request.app.state.up(), _url(asked.url))
    return {"status": "accepted", "worker_id": worker.id, "url": worker.url}


@router.get("/workers")
async def listed(request: Request) -> dict[str, Any]:
    """Every worker, as the router lists them."""
    up = request.app.state.up()
    workers = [
        {
            "id": w.id,
            "url": w.url,
            "model_id": up.config.model,
            "worker_type": "regular",
            "is_healthy": w.alive,
            "load": w.running,
            "metadata": {"tp_size": str(w.degree)},
        }
        for w in up.fleet.workers.values()
    ]
    counts = {"regular_count": len(workers), "prefill_count": 0, "decode_count": 0}
    return {"workers": workers, "total": len(workers), "stats": counts}


@router.delete("/workers/{worker:path}")
async def remove(request: Request, worker: str) -> dict[str, str]:
    """It takes no more steps."""
    gone = forget(request.app.state.up(), worker)
    return {"status": "accepted", "worker_id": gone.id}


@router.post("/add_worker")
async def add_by_url(request: Request, url: str) -> dict[str, str]:
    """The older form of registering."""
    worker = await register(request.app.state.up(), _url(url))
    return {"message": f"Successfully added worker: {worker.url}"}


@router.post("/remove_worker")
async def remove_by_url(request: Request, url: str) -> dict[str, str]:
    """The older form of leaving."""
    gone = forget(request.app.state.up(), url)
    return {"message": f"Successfully removed worker: {gone.url}"}


@router.get("/list_workers")
async def urls(request: Request) -> dict[str, list[str]]:
    """Addresses alone."""
    return {"urls": [w.url for w in request.app.state.up().fleet.workers.values()]}


@router.get("/get_loads")
async def loads(request: Request) -> dict[str, Any]:
    """Running and queued requests, as each engine says."""
    workers = request.app.state.up().fleet.alive
    found = await asyncio.gather(*(_load(w) for w in workers))
    return {"workers": [{"worker": w.url, "load": n} for w, n in zip(workers, found, strict=True)]}


@router.post("/flush_cache")
async def flush(request: Request) -> dict[str, Any]:
    """On every engine; one that is busy says so and keeps its cache."""
    found = await request.app.state.up().fleet.everywhere("/flush_cache", b"{}")
    flushed = [w for w, status in found.items() if status == 200]
    return {"flushed": flushed, "refused": [w for w in found if w not in flushed]}


@router.get("/health", response_class=PlainTextResponse)
@router.get("/health_generate", response_class=PlainTextResponse)
@router.get("/liveness", response_class=PlainTextResponse)
async def alive(request: Request) -> str:
    """The controller answers, whatever its engines do."""
    _ = request
    return "OK"


@router.get("/readiness", responses={503: {"description": "no engine takes steps"}})
async def ready(request: Request) -> JSONResponse:
    """Whether steps can be taken."""
    count = len(request.app.state.up().fleet.alive)
    said = {"status": "ready" if count else "not ready", "healthy_workers": count}
    return JSONResponse(said, 200 if count else 503)


@router.get("/engine_metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> str:
    """What every engine's /metrics says, one after the other."""
    workers = request.app.state.up().fleet.alive
    replies = [w.wire.send("/metrics", b"", {}) for w in workers]
    found = await asyncio.gather(*replies, return_exceptions=True)
    good = [r for r in found if not isinstance(r, BaseException) and r.status == 200]
    return "\n".join(reply.body.decode("utf-8", "replace") for reply in good)


async def _load(worker: Any) -> int:
    try:
        seen = await worker.engine.observe()
    except EngineError:
        return -1
    return int(seen.running + seen.queued)


def _url(url: str) -> str:
    return url if "://" in url else f"http://{url}"
