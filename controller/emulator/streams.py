"""How do tokens leave the engine while they are made?

Streams look at the engine a few times a second and send what is new; nothing is kept per token.
Each function yields the bytes of server-sent events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import orjson

from heddle.controller.emulator import replies
from heddle.controller.emulator.cache import Ids
from heddle.controller.emulator.parse import Body, text_of
from heddle.controller.emulator.request import NO_IDS, Finished, Request
from heddle.controller.emulator.runner import Runner

DONE = b"data: [DONE]\n\n"
# Wall seconds between looks; with many streams they look less often, so that all of them together
# send no more than about 640 events a second (an event repeats all ids so far: 30 kB late on).
LOOK_S = 0.05
_STREAMS_AT_FULL_RATE = 32
# Streams that began together would all look at the same instant, and the engine's own timer would
# wait behind them (0.3 s with 256): their first looks are spread by the golden section.
_SPREAD = 0.618034


def event(payload: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(payload, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n\n"


async def progress(
    runner: Runner, request: Request, future: asyncio.Future[Finished]
) -> AsyncIterator[Ids]:
    """The ids made since the last look, each time there are some, until the request has ended."""
    seen = 0
    runner.streams += 1
    runner.begun += 1
    share = 0.25 + runner.begun * _SPREAD % 1.0
    try:
        while not future.done():
            wait_s = LOOK_S * max(1.0, runner.streams / _STREAMS_AT_FULL_RATE)
            await asyncio.wait({future}, timeout=wait_s * share)
            share = 1.0
            runner.catch_up()
            if future.done():
                return
            made = runner.engine.progress(request.rid, runner.now())
            if made > seen:
                fresh = runner.engine.output_between(request.rid, seen, made)
                seen = made
                yield fresh
    finally:
        runner.streams -= 1


async def generate_events(
    runner: Runner, request: Request, future: asyncio.Future[Finished]
) -> AsyncIterator[bytes]:
    """The stream of /generate."""
    ids = NO_IDS
    async for fresh in progress(runner, request, future):
        ids = np.concatenate([ids, fresh])
        yield event(replies.partial(request, ids, text_of(ids) if request.text else ""))
    yield event(replies.generated(future.result(), request, runner.stamp)) + DONE


async def openai_events(
    runner: Runner,
    request: Request,
    future: asyncio.Future[Finished],
    body: Body,
    chat: bool,  # noqa: FBT001
) -> AsyncIterator[bytes]:
    """Chunks of a chat or a completion; the last ones carry finish reason and usage."""
    head = openai_head(runner, request, chat, stream=True)
    if chat:
        yield event({**head, "choices": [_choice(chat, "", None, role="assistant")]})
    seen = 0
    async for fresh in progress(runner, request, future):
        yield event({**head, "choices": [_choice(chat, text_of(fresh), None)]})
        seen += len(fresh)
    done = future.result()
    rest = text_of(done.output_ids[seen:])
    reason = replies.finish_reason(done)["type"]
    yield event({**head, "choices": [_choice(chat, rest, reason)]})
    if (body.get("stream_options") or {}).get("include_usage"):
        yield event({**head, "choices": [], "usage": replies.usage(done)})
    yield DONE


def openai_reply(
    runner: Runner,
    request: Request,
    done: Finished,
    body: Body,
    chat: bool,  # noqa: FBT001
) -> dict[str, Any]:
    """The whole answer at once."""
    text, reason = text_of(done.output_ids), replies.finish_reason(done)
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason["type"]}
    if chat:
        choice["message"] = {"role": "assistant", "content": text, "tool_calls": None}
    else:
        choice["text"] = text
    if body.get("return_meta_info"):
        choice["meta_info"] = replies.meta_info(done, runner.stamp)
    if body.get("return_token_ids"):
        choice["token_ids"] = done.output_ids.tolist()
    head = openai_head(runner, request, chat, stream=False)
    metadata = {"weight_version": done.weight_version}
    return {**head, "choices": [choice], "usage": replies.usage(done), "metadata": metadata}


def openai_head(runner: Runner, request: Request, chat: bool, *, stream: bool) -> dict[str, Any]:  # noqa: FBT001
    """What every chunk and answer begins with."""
    kind = "text_completion"
    if chat:
        kind = "chat.completion.chunk" if stream else "chat.completion"
    created = int(runner.stamp(runner.now()))
    return {
        "id": request.rid,
        "object": kind,
        "created": created,
        "model": runner.engine.config.model,
    }


def _choice(chat: bool, text: str, reason: str | None, role: str | None = None) -> dict[str, Any]:  # noqa: FBT001
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
    if chat:
        choice["delta"] = {"role": role, "content": text} if role else {"content": text}
    else:
        choice["text"] = text
    return choice
