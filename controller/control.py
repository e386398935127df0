"""What can an operator ask and change? The control plane under /heddle/v1.

The guard in front has already checked token, content type, Origin and Host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from heddle.collector import conventions as c
from heddle.collector import ids
from heddle.collector.exposition import MEDIA
from heddle.controller import (
    compat,
    fleet_api,
    fleet_view,
    lifecycle,
    metrics,
    moves_api,
    predictor_api,
    tool_calls,
    wire,
)
from heddle.controller.core.policies import KNOWN, PRESETS, preset_name
from heddle.controller.core.types import CoreError
from heddle.controller.errors import BadRequest, ControllerError, TooMany
from heddle.controller.journal import Change

router = APIRouter(prefix="/heddle/v1")
FAILURES: Final = {
    400: "what was asked cannot be done; the sentence says why",
    401: "changing anything needs the token",
    403: "Origin or Host is not one of this controller's",
    404: "nothing of that name",
    409: "not now; the sentence says what is in the way",
    405: "not with this method",
    413: "the body is too large",
    415: "a body must be application/json",
    429: "too many of these at once",
    503: "nobody takes steps now",
}


def control_app(up: Callable[[], Any]) -> FastAPI:
    """The control plane; `up` gives the running controller."""
    app = FastAPI(
        title="Heddle controller",
        # FastAPI would trace itself into any global tracer provider (stack.md section 4).
        telemetry={"tracing": False, "metrics": False, "logs": False},
        responses={
            status: {"model": wire.Failure, "description": said}
            for status, said in FAILURES.items()
        },
    )
    app.state.up = up
    app.include_router(router)
    app.include_router(predictor_api.router)
    app.include_router(moves_api.router)
    app.include_router(fleet_api.router)
    app.include_router(compat.router)
    app.include_router(lifecycle.router)
    app.include_router(tool_calls.router)
    app.add_exception_handler(ControllerError, _controller_error)
    app.add_exception_handler(CoreError, _core_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_api_route("/healthz", health, methods=["GET"], response_model=wire.Health)
    app.add_api_route("/metrics", _metrics, methods=["GET"], response_class=PlainTextResponse)
    describe = app.openapi
    app.openapi = lambda: _documented(describe())  # pyright: ignore[reportAttributeAccessIssue]
    return app


def _documented(schema: dict[str, Any]) -> dict[str, Any]:
    """FastAPI documents its own 422, which is a 400 with a sentence here."""
    for path in schema["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    return schema


def _up(request: Request) -> Any:
    return request.app.state.up()


async def _metrics(request: Request) -> Response:
    """Its counters, in Prometheus' text."""
    return Response(metrics.render(_up(request)), media_type=MEDIA)


@router.get("/healthz", response_model=wire.Health)
async def health(request: Request) -> Any:
    """Whether steps can be taken, and what went wrong so far."""
    up = _up(request)
    trajectories = up.loop.trajectories.values()
    return wire.Health(
        ok=True,
        workers=len(up.fleet.workers),
        alive=len(up.fleet.alive),
        trajectories=len(trajectories),
        held=sum(len(t.waiting) for t in trajectories),
        decision_failures=up.loop.failures,
        last_failure=up.loop.last_failure,
        spans_dropped=up.emitter.dropped if up.emitter else 0,
        pins_failures=up.journal.where.failures,
        pins_failure=up.journal.where.failure,
        pins_skipped=up.journal.where.skipped,
        clock_origin_ns=up.config.clock.origin_ns,
        clock_speed=up.config.clock.speed,
    )


@router.get("/runs", response_model=list[wire.RunState])
async def runs(request: Request) -> Any:
    """Every run that is known here now."""
    up = _up(request)
    states: dict[str, Counter[str]] = {run: Counter() for run in up.switchboard.runs}
    states |= {run: Counter() for run in up.loop.open_rollout}
    for trajectory in up.loop.trajectories.values():
        states.setdefault(trajectory.run, Counter())[trajectory.state] += 1
    return [
        wire.RunState(
            run=run,
            preset=preset_name(up.switchboard.of(run)),
            rollout=up.loop.open_rollout.get(run),
            trajectories=counted.total(),
            held=counted["held"],
            running=counted["running"],
        )
        for run, counted in sorted(states.items())
    ]


@router.post("/rollouts", response_model=wire.RolloutReply)
async def begin_rollout(request: Request, asked: wire.RolloutBegin) -> Any:
    """Allocate, launch, open the window."""
    return await _up(request).rollouts.begin(asked)


@router.post("/rollouts/{rollout}/end", response_model=wire.RolloutEnded)
async def end_rollout(request: Request, rollout: str, asked: wire.RolloutEnd) -> Any:
    """Close the window."""
    return _up(request).rollouts.end(asked.run, rollout, quiet_s=asked.quiet_s)


@router.get("/rollouts", response_model=list[wire.RolloutState])
async def rollouts(request: Request) -> Any:
    """Every rollout begun here, in that order."""
    return [
        wire.RolloutState(
            run=r.run,
            rollout=r.id,
            kind=r.kind,
            expected=r.expected,
            gpus=r.gpus,
            start_ns=r.start_ns,
            end_ns=r.end_ns,
        )
        for r in _up(request).rollouts.known.values()
    ]


@router.post("/trajectories/{trajectory:path}/finish")
async def finish(
    request: Request, trajectory: str, asked: wire.TrajectoryFinish
) -> dict[str, bool]:
    """The trajectory is over; finishing twice is no mistake."""
    loop = _up(request).loop
    live = loop.finish(asked.run, trajectory, truncated=bool(asked.truncated))
    said = {
        "heddle.reward": asked.reward,
        "heddle.outcome": asked.outcome,
        "heddle.truncated": asked.truncated,
    }
    return {"known": loop.spans.finished(asked.run, trajectory, said) or live}


@router.post("/acquire", response_model=wire.Acquired)
async def acquire(request: Request, asked: wire.Acquire) -> Any:
    """Where a step goes whose bytes do not pass here; waits until the deadline."""
    return await _up(request).acquired.acquire(asked)


@router.post("/release", response_model=wire.Released)
async def release(request: Request, asked: wire.Release) -> Any:
    """How an acquired step went."""
    return await _up(request).acquired.release(asked)


@router.get("/trajectories", response_model=list[wire.TrajectoryState])
async def trajectories(request: Request, run: str | None = None) -> Any:
    """The live ones."""
    return [
        wire.TrajectoryState(
            run=t.run,
            trajectory=t.id,
            rollout=t.rollout,
            group=t.group,
            task=t.task,
            state=t.state,
            worker=t.worker,
            steps=t.steps,
            context_tokens=t.context_tokens,
            output_tokens=t.output_tokens,
            remaining_p50=t.remaining.p50 if t.remaining else None,
        )
        for t in _up(request).loop.trajectories.values()
        if run is None or t.run == run
    ]


@router.get("/switches", response_model=wire.SwitchState)
async def switches(request: Request, run: str = "") -> Any:
    """What is in force for a run, or for every run without its own."""
    return _state(_up(request), run)


@router.post("/switches", response_model=wire.SwitchState)
async def switch(request: Request, asked: wire.SwitchSet) -> Any:
    """In force from the next decision on."""
    up = _up(request)
    if asked.preset is None and not asked.changes:
        message = f"name a preset or a choice; the choices are {', '.join(KNOWN)}"
        raise BadRequest(message)
    changes = up.switchboard.set(
        asked.run,
        asked.changes,
        preset=asked.preset,
        who=asked.who,
        why=asked.why,
        at_ns=up.config.clock.now_ns(),
    )
    for change in changes:
        _span(up, change)
    up.loop.switched()
    return _state(up, asked.run or "")


@router.get("/switches/audit", response_model=list[wire.AuditEntry])
async def audit(request: Request, limit: int = 200) -> Any:
    """Who changed what, newest first."""
    found = _up(request).switchboard.audit(max(1, min(limit, 10_000)))
    return [wire.AuditEntry(**_fields(change)) for change in found]


@router.get("/workers", response_model=list[wire.WorkerState])
async def workers(request: Request) -> Any:
    """Every worker, dead ones included."""
    up = _up(request)
    return [fleet_view.worker_state(up, w) for w in up.fleet.workers.values()]


@router.post("/workers", response_model=wire.WorkerState)
async def add_worker(request: Request, asked: wire.WorkerIn) -> Any:
    """Register an engine; the same address again replaces it."""
    up = _up(request)
    worker = await compat.register(up, asked.url, asked.degree)
    return fleet_view.worker_state(up, worker)


@router.delete("/workers/{worker_id}")
async def remove_worker(request: Request, worker_id: str) -> dict[str, str]:
    """It takes no more steps; running ones end there."""
    return {"worker_id": compat.forget(_up(request), worker_id).id}


@router.post("/weight_sync/begin", response_model=wire.WeightSyncState)
async def begin_sync(request: Request, asked: wire.WeightSyncBegin) -> Any:
    """Returns once nothing runs, or the time is up: then the trainer may load weights."""
    return await _up(request).syncs.begin(asked)


@router.post("/weight_sync/end", response_model=wire.WeightSyncState)
async def end_sync(request: Request, asked: wire.WeightSyncEnd) -> Any:
    """Held steps go on; ending twice is no mistake."""
    return await _up(request).syncs.end(asked)


@router.get("/weight_sync", response_model=wire.WeightSyncState)
async def sync_state(request: Request) -> Any:
    """Whether weights change now."""
    return _up(request).syncs.state()


@router.get("/decisions")
async def decisions(request: Request, limit: int = 100) -> list[dict[str, Any]]:
    """The newest releases and moves first."""
    return _up(request).loop.decisions.newest(limit)


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def events(request: Request, run: str | None = None) -> StreamingResponse:
    """What happens from now on, as server-sent events; a reader that is too slow is told so."""
    told = _up(request).events
    if told.full:
        message = "too many readers of events; close one"
        raise TooMany(message)
    return StreamingResponse(told.stream(run), media_type="text/event-stream")


@router.get("/plan", response_model=wire.PlanState)
async def plan(request: Request) -> Any:
    """What each open rollout got."""
    rollouts = _up(request).rollouts
    opened = [key for key, rollout in rollouts.known.items() if rollout.end_ns is None]
    return wire.PlanState(
        plans=[rollouts.replies[key] for key in opened if key in rollouts.replies]
    )


def _state(up: Any, run: str) -> wire.SwitchState:
    in_force = up.switchboard.of(run)
    return wire.SwitchState(
        run=run,
        preset=preset_name(in_force),
        switches=_fields(in_force),
        known={choice: list(policies) for choice, policies in KNOWN.items()},
        presets={name: _fields(preset) for name, preset in PRESETS.items()},
    )


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _span(up: Any, change: Change) -> None:
    rollout = up.loop.open_rollout.get(change.run, "")
    up.spans.emit(
        c.SWITCH,
        trace_id=ids.trace_id(change.run, f"rollout/{rollout}"),
        span_id=ids.span_id(change.run, "switch", change.version, change.at_ns),
        start_ns=change.at_ns,
        end_ns=change.at_ns,
        attributes={
            "gen_ai.operation.name": c.SWITCH,
            "heddle.run.id": change.run,
            "heddle.rollout.id": rollout or None,
            "heddle.switch.choice": change.choice,
            "heddle.switch.before": change.before,
            "heddle.switch.after": change.after,
            "heddle.switch.who": change.who,
            "heddle.switch.why": change.why,
            "heddle.clock.speed": up.config.clock.speed,
        },
    )


def _controller_error(request: Request, error: Exception) -> JSONResponse:
    _ = request
    return JSONResponse({"error": str(error)}, getattr(error, "status", 500))


def _core_error(request: Request, error: Exception) -> JSONResponse:
    _ = request
    return JSONResponse({"error": str(error)}, 400)


def _invalid(request: Request, error: Exception) -> JSONResponse:
    _ = request
    found: Any = error.errors() if isinstance(error, RequestValidationError) else []
    said = [f"{'.'.join(map(str, e['loc'][1:])) or 'body'}: {e['msg']}" for e in found]
    return JSONResponse({"error": "; ".join(said) or "the request is not valid"}, 400)


def _http_error(request: Request, error: Exception) -> JSONResponse:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return JSONResponse({"error": f"{request.method} {request.url.path}: {error}"}, status)
