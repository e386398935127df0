"""What does a trainer that expects SGLang's router find at this address?

The router's worker API, so that slime, Dressage and Relax work by pointing their router address
here: engines register themselves, and are remembered over a restart of the controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heddle.controller.errors import BadRequest, EngineError, NoWorker
from heddle.controller.wire import WorkerIn

router = APIRouter()


class RouterWorker(BaseModel):
    """What the router takes; fields that Heddle has no use for are let pass."""

    model_config = ConfigDict(extra="ignore")
    url: str = Field(max_length=2048)


async def register(up: Any, url: str, degree: int | None = None) -> Any:
    """Take an engine in, journal it; the same address again replaces it."""
    try:
        asked = WorkerIn(url=url, degree=degree)
    except ValidationError as wrong:
        raise BadRequest(wrong.errors()[0]["msg"].removeprefix("Value error, ")) from wrong
    worker = await up.fleet.join(None, asked.url, asked.degree)
    up.journal.add_worker(worker.id, worker.url, worker.degree)
    up.rollouts.joined(worker)
    up.loop.poke()
    return worker


def forget(up: Any, name: str) -> Any:
    """By id or by address: it takes no more steps; running ones end there."""
    known = _known(up, name)
    up.fleet.leave(known.id)
    up.journal.remove_worker(known.id)
    up.rollouts.left(known)
    up.loop.poke()
    return known


@router.post("/workers", status_code=202)
async def add(request: Request, asked: RouterWorker) -> dict[str, str]:
    """Register an engine, as it does itself at its start."""
    worker = await register(request.app.state.up(), _url(asked.url))
    said = {"status": "accepted", "worker_id": worker.id, "url": worker.url}
    return {**said, "location": f"/workers/{worker.id}", "message": f"added {worker.url}"}


@router.get("/workers")
async def listed(request: Request) -> dict[str, Any]:
    """Every worker, as the router lists them."""
    up = request.app.state.up()
    workers = [_told(w, up.config.model) for w in up.fleet.workers.values()]
    counts = {"regular_count": len(workers), "prefill_count": 0, "decode_count": 0}
    return {"workers": workers, "total": len(workers), "stats": counts}


@router.get("/workers/{worker:path}")
async def one(request: Request, worker: str) -> dict[str, Any]:
    """That worker, by id or by address."""
    up = request.app.state.up()
    return _told(_known(up, worker), up.config.model)


@router.delete("/workers/{worker:path}", status_code=202)
async def remove(request: Request, worker: str) -> dict[str, str]:
    """It takes no more steps."""
    gone = forget(request.app.state.up(), worker)
    return {"status": "accepted", "worker_id": gone.id, "message": f"removed {gone.url}"}


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
    refused = [w for w in found if w not in flushed]
    counts = {"workers_flushed": len(flushed), "total_workers": len(found)}
    status = "partial_success" if refused else "success"
    return {"status": status, **counts, "flushed": flushed, "refused": refused}


@router.get("/get_model_info")
async def model_info(request: Request) -> Response:
    """What the first engine that lives says of its model."""
    workers = request.app.state.up().fleet.alive
    if not workers:
        message = "no engine is here to say which model it serves"
        raise NoWorker(message)
    reply = await workers[0].wire.send("/model_info", b"", {})
    if reply.status != 200:
        message = f"{workers[0].url}/model_info answered {reply.status}"
        raise EngineError(message)
    return Response(reply.body, media_type="application/json")


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
    fleet = request.app.state.up().fleet
    count = len(fleet.alive)
    counts = {"healthy_workers": count, "total_workers": len(fleet.workers)}
    if count:
        return JSONResponse({"status": "ready", **counts})
    return JSONResponse({"status": "not ready", "reason": "no healthy worker", **counts}, 503)


@router.get("/engine_metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> str:
    """What every engine's /metrics says, each sample with its engine's address as a label."""
    workers = request.app.state.up().fleet.alive
    replies = [w.wire.send("/metrics", b"", {}) for w in workers]
    found = await asyncio.gather(*replies, return_exceptions=True)
    good = [
        (worker.url, reply.body.decode("utf-8", "replace"))
        for worker, reply in zip(workers, found, strict=True)
        if not isinstance(reply, BaseException) and reply.status == 200
    ]
    return merged(good)


def merged(pages: Iterable[tuple[str, str]]) -> str:
    """One page of several engines' metrics: each family once, with the samples of all of them."""
    families: dict[str, dict[str, None]] = {}
    for url, page in pages:
        family = families.setdefault("", {})
        for line in filter(None, page.splitlines()):
            words = line.split(maxsplit=3)
            if words[0] == "#" and len(words) > 2:
                family = families.setdefault(words[2], {})
            family.setdefault(line if line.startswith("#") else _labelled(line, url))
    return "".join(f"{line}\n" for family in families.values() for line in family)


def _labelled(sample: str, url: str) -> str:
    name, _, value = sample.partition(" ")
    if "{" not in name:
        return f'{name}{{worker_addr="{url}"}} {value}'
    name, _, rest = sample.partition("{")
    return f'{name}{{worker_addr="{url}"{"" if rest.startswith("}") else ","}{rest}'


async def _load(worker: Any) -> int:
    try:
        seen = await worker.engine.observe()
    except EngineError:
        return -1
    return int(seen.running + seen.queued)


def _known(up: Any, name: str) -> Any:
    known = up.fleet.workers.get(name) or up.fleet.at(unquote(name))
    if known is None:
        ids = ", ".join(up.fleet.workers) or "none"
        message = f"no worker {name!r}; there are: {ids}"
        raise BadRequest(message)
    return known


def _told(worker: Any, model: str) -> dict[str, Any]:
    """As the router lists a worker; priority and cost are its defaults: Heddle goes by neither."""
    return {
        "id": worker.id,
        "url": worker.url,
        "model_id": model,
        "priority": 50,
        "cost": 1.0,
        "worker_type": "regular",
        "is_healthy": worker.alive,
        "load": worker.running,
        "connection_mode": "HTTP",
        "disable_health_check": False,
        "metadata": {"tp_size": str(worker.degree), "served_model_name": model},
    }


def _url(url: str) -> str:
    return url if "://" in url else f"http://{url}"
