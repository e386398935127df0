"""Which endpoints of SGLang steer or describe an engine, and what does each do here?

One table: path, methods, call. Calls that take time on a GPU take it here in fleet time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from heddle.controller.emulator import replies
from heddle.controller.emulator.errors import BadRequest
from heddle.controller.emulator.parse import Body
from heddle.controller.emulator.runner import Runner
from heddle.controller.sglang_plugin import PROTOCOL

Answer = dict[str, Any] | str
Call = Callable[[Runner, Body], Awaitable[Answer]]
TAGS: Final = frozenset({"kv_cache", "weights", "cuda_graph"})
_LEVEL_DIGITS: Final = 9
_MODES: Final = ("abort", "retract", "in_place")
# Wall seconds between two looks of a weight update that waits for running requests.
_LOOK_S: Final = 0.02
# An iteration once begun ends when it was due: a sleep of years would never let the engine go.
_MOST_SLEEP_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path's methods and what answers it."""

    methods: tuple[str, ...]
    call: Call


async def health(_runner: Runner, _body: Body) -> Answer:
    """Alive: the emulated engine generates nothing to find out."""
    return ""


async def models(runner: Runner, _body: Body) -> Answer:
    """GET /v1/models: the one model."""
    config = runner.engine.config
    card = {
        "id": config.model,
        "object": "model",
        "created": int(runner.stamp(runner.now())),
        "owned_by": "sglang",
        "root": config.model,
        "max_model_len": config.context_tokens,
    }
    return {"object": "list", "data": [card]}


async def abort_request(runner: Runner, body: Body) -> Answer:
    """By exact live rid, as SGLang's HTTP layer demands, or all; unknown rids are ignored."""
    rid = body.get("rid")
    if rid is not None and not isinstance(rid, str):
        sentence = f"rid must be a string, got {rid!r}"
        raise BadRequest(sentence)
    if body.get("abort_all"):
        runner.abort(None)
    elif rid is not None and rid in runner.engine.live_rids:
        runner.abort(rid)
    return ""


async def pause_generation(runner: Runner, body: Body) -> Answer:
    """Abort all, retract all, or freeze; new requests wait until continue. Answers when the
    iteration under way is over: SGLang's scheduler looks at no message before."""
    mode = body.get("mode", "abort")
    if mode not in _MODES:
        sentence = f"no pause mode called {mode!r}; choose one of {', '.join(_MODES)}"
        raise BadRequest(sentence)
    runner.engine.pause(mode, runner.now())
    await runner.standstill()
    return {"message": "Generation paused successfully.", "status": "ok"}


async def continue_generation(runner: Runner, _body: Body) -> Answer:
    """End a pause."""
    runner.engine.resume(runner.now())
    runner.settle()
    return {"message": "Generation continued successfully.", "status": "ok"}


async def flush_cache(runner: Runner, _body: Body) -> Answer:
    """Empty the prefix cache, or 400 while requests are pending."""
    runner.engine.flush(runner.now())
    return "Cache flushed.\n"


async def release_memory(runner: Runner, body: Body) -> Answer:
    """Sleep; answers when the memory is released."""
    await runner.clock.sleep(runner.engine.sleep(_tags(body), runner.now()))
    return {}


async def resume_memory(runner: Runner, body: Body) -> Answer:
    """Wake; answers when the engine serves again."""
    took_s = runner.engine.wake(_tags(body), runner.now())
    runner.settle()
    await runner.clock.sleep(took_s)
    return {}


async def update_weights(runner: Runner, body: Body) -> Answer:
    """Waits for running requests unless paused, as SGLang's writer lock does."""
    path = body.get("model_path")
    if not isinstance(path, str) or not path:
        sentence = "model_path must name the weights to load"
        raise BadRequest(sentence)
    if body.get("abort_all_requests"):
        runner.abort(None)
    engine = runner.engine
    while not engine.is_idle and engine.paused is None:
        await asyncio.sleep(_LOOK_S)
    await runner.standstill()
    version = str(body.get("weight_version") or path)
    took_s = engine.load_weights(version, runner.now())
    runner.settle()
    await runner.clock.sleep(took_s)
    message = "Succeeded to update model weights."
    return {"success": True, "message": message, "num_paused_requests": 0}


async def slow_down(runner: Runner, body: Body) -> Answer:
    """Every iteration sleeps that much longer; nothing and less than nothing end it."""
    seconds = body.get("forward_sleep_time")
    seconds = 0.0 if seconds is None else seconds
    if type(seconds) not in (int, float) or seconds > _MOST_SLEEP_S:
        sentence = f"forward_sleep_time must be seconds, at most {_MOST_SLEEP_S:.0f}"
        raise BadRequest(sentence)
    runner.engine.slow_down(float(seconds), runner.now())
    runner.settle()
    return {}


async def set_trace_level(runner: Runner, body: Body) -> Answer:
    """0: no spans; every other level is shaped as level 1."""
    level = str(body.get("level", ""))
    if not level.isascii() or not level.isdigit() or len(level) > _LEVEL_DIGITS:
        sentence = f"level must be a whole number, zero or more, of at most {_LEVEL_DIGITS} digits"
        raise BadRequest(sentence)
    if runner.spans is not None:
        runner.spans.level = int(level)
    return "success"


async def priorities(runner: Runner, body: Body) -> Answer:
    """What the plugin answers on a port of its own: {"changes": {rid: priority}}."""
    changes = body.get("changes", {})
    if not isinstance(changes, dict) or not all(type(p) is int for p in changes.values()):
        sentence = 'send {"changes": {"<rid>": <integer priority>}}'
        raise BadRequest(sentence)
    runner.prioritise(cast("dict[str, int]", changes))
    return {
        "plugin": "heddle",
        "protocol": PROTOCOL,
        "taken": len(changes),
        "asked": runner.asked,
        "applied": runner.applied,
        "preemptions": runner.engine.scheduler.preempted,
    }


async def server_info(runner: Runner, _body: Body) -> Answer:
    """Resolved settings."""
    said = replies.server_info(runner.engine, runner.port, runner.lag_s)
    return {**said, "enable_trace": runner.spans is not None}


async def model_info(runner: Runner, _body: Body) -> Answer:
    """Model and weight version."""
    return replies.model_info(runner.engine)


async def loads(runner: Runner, _body: Body) -> Answer:
    """What the controller polls."""
    return replies.loads(runner.engine, runner.now(), runner.stamp)


async def metrics(runner: Runner, _body: Body) -> Answer:
    """Prometheus text."""
    return replies.metrics(runner.engine, runner.now(), runner.began_s)


def _tags(body: Body) -> set[str]:
    tags = body.get("tags")
    if tags is None:
        return set(TAGS)
    known = sorted(TAGS)
    if not isinstance(tags, list) or any(tag not in known for tag in cast("list[Any]", tags)):
        sentence = f"tags must be a list out of {', '.join(known)}"
        raise BadRequest(sentence)
    return set(cast("list[str]", tags))


_GET: Final = ("GET",)
_POST: Final = ("POST",)
_BOTH: Final = ("GET", "POST")

CONTROL: Final[dict[str, Endpoint]] = {
    "/": Endpoint(_BOTH, priorities),
    "/health": Endpoint(_GET, health),
    "/health_generate": Endpoint(_GET, health),
    "/v1/models": Endpoint(_GET, models),
    "/abort_request": Endpoint(_POST, abort_request),
    "/pause_generation": Endpoint(_POST, pause_generation),
    "/continue_generation": Endpoint(_POST, continue_generation),
    "/flush_cache": Endpoint(_BOTH, flush_cache),
    "/release_memory_occupation": Endpoint(_BOTH, release_memory),
    "/resume_memory_occupation": Endpoint(_BOTH, resume_memory),
    "/update_weights_from_disk": Endpoint(_POST, update_weights),
    "/slow_down": Endpoint(_BOTH, slow_down),
    "/set_trace_level": Endpoint(_BOTH, set_trace_level),
    "/server_info": Endpoint(_GET, server_info),
    "/get_server_info": Endpoint(_GET, server_info),
    "/model_info": Endpoint(_GET, model_info),
    "/get_model_info": Endpoint(_GET, model_info),
    "/v1/loads": Endpoint(_GET, loads),
    "/metrics": Endpoint(_GET, metrics),
}
