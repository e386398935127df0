"""How is an SGLang engine spoken to over HTTP?

By the controller's own links where it is plain HTTP, else by one shared aiohttp session with the
settings a long generation needs: no total time limit, no connection limit (the default 100 queues
silently), no decompression, no cookies.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import orjson

from heddle.controller.errors import EngineError, EngineLost
from heddle.controller.fleet.engine import (
    Capabilities,
    EngineLoad,
    Priorities,
    Reply,
    Stream,
    Warmed,
)
from heddle.controller.fleet.links import CONNECT_S, KEEP_ALIVE_S, EngineLinks, Links
from heddle.controller.sglang_plugin import PROTOCOL

ASK_S: Final = 5.0
"""Time limit of questions that no generation waits behind."""
PLUGIN_S: Final = 1.0
"""A plugin answers from memory."""
# Warm-ups go behind every real step: bands start at 0, and within 10 of them nothing preempts.
WARM_PRIORITY: Final = -1
_LOST: Final = (aiohttp.ClientError, ConnectionError, TimeoutError)


def open_session() -> aiohttp.ClientSession:
    """The session all engines of a controller share; close it when the controller ends."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, limit_per_host=0, keepalive_timeout=KEEP_ALIVE_S, ttl_dns_cache=300
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


class SglangStream:
    """An answer that is still coming."""

    def __init__(self, url: str, response: aiohttp.ClientResponse) -> None:
        self._url = url
        self._response = response
        self.status = response.status
        self.content_type = response.headers.get("Content-Type", "application/json")

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes as they arrive."""
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except _LOST as error:
            message = f"the engine at {self._url} died in the middle of its answer ({error})"
            raise EngineError(message) from error

    async def close(self) -> None:
        """Let the connection go."""
        self._response.close()


class SglangEngine:
    """One SGLang server; `session` and `links` are shared and not closed here."""

    def __init__(
        self, url: str, session: aiohttp.ClientSession, links: Links | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._links = links
        self.drafts = False
        """Whether it decodes speculatively: then nothing can be prefilled without a token."""

    async def observe(self) -> EngineLoad:
        """From /v1/loads; the sum over its data-parallel ranks."""
        ranks = (await self._ask("/v1/loads")).get("loads") or []
        return EngineLoad(
            running=_total(ranks, "num_running_reqs"),
            queued=_total(ranks, "num_waiting_reqs"),
            kv_used_tokens=_total(ranks, "num_used_tokens"),
            kv_tokens=_total(ranks, "max_total_num_tokens"),
        )

    async def capabilities(self) -> Capabilities:
        """From /server_info, which merges the resolved arguments with the scheduler's state.

        An engine that traces is told to do it at level 1: its default, 3, is a span a decode
        iteration and request.
        """
        info = await self._ask("/server_info")
        can = capabilities_of(info)
        self.drafts = bool(info.get("speculative_algorithm"))
        if can.plugin and not await self._has_plugin(can.plugin):
            missing = (*can.missing, SILENT_PLUGIN)
            can = replace(can, plugin=0, missing=missing)
        if can.trace:
            asked = self.send(f"/set_trace_level?level={TRACE_LEVEL}", b"{}", _JSON)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asked, ASK_S)
        return can

    async def send(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """POST, or GET where the body is empty, and the whole answer."""
        if (link := self._linked()) is not None:
            return await link.send(path, body, headers)
        try:
            async with self._open(path, body, headers) as response:
                content_type = response.headers.get("Content-Type", "application/json")
                return Reply(
                    status=response.status, content_type=content_type, body=await response.read()
                )
        except _LOST as error:
            raise self._lost(error) from error

    async def stream(self, path: str, body: bytes, headers: Mapping[str, str]) -> Stream:
        """POST and the answer's head."""
        if (link := self._linked()) is not None:
            return await link.stream(path, body, headers)
        try:
            return SglangStream(self.url, await self._open(path, body, headers))
        except _LOST as error:
            raise self._lost(error) from error

    async def warm(self, ids: bytes, rid: str, headers: Mapping[str, str]) -> Warmed:
        """Prefill only: no token is generated, the radix cache keeps the prefix."""
        sampling = {"max_new_tokens": 1 if self.drafts else 0}
        known = {"sampling_params": sampling, "log_metrics": False, **_warming(rid)}
        body = b'{"input_ids":[' + ids + b"]," + orjson.dumps(known)[1:]
        return _warmed((await self._warm("/generate", body, headers)).get("meta_info"))

    async def warm_chat(self, chat: bytes, rid: str, headers: Mapping[str, str]) -> Warmed:
        """One token is generated: chat takes 0 for a missing limit."""
        asked = {**orjson.loads(chat), **_ONE_TOKEN, **_warming(rid)}
        reply = await self._warm("/v1/chat/completions", orjson.dumps(asked), headers)
        (choice,) = reply.get("choices") or [{}]
        return _warmed(choice.get("meta_info"))

    async def _warm(self, path: str, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
        reply = await self.send(path, body, headers)
        if reply.status >= 400:
            message = f"the engine at {self.url} refused a warm-up with status {reply.status}"
            raise EngineError(message)
        return orjson.loads(reply.body)

    async def abort(self, rid: str) -> None:
        """Best effort: an engine that is gone has nothing to abort."""
        with contextlib.suppress(EngineError, TimeoutError):
            body = orjson.dumps({"rid": rid})
            await asyncio.wait_for(self.send("/abort_request", body, _JSON), ASK_S)

    async def prioritise(self, port: int, changes: Mapping[str, int]) -> Priorities:
        """One POST to the plugin, which broadcasts to all ranks at its own pace."""
        body = orjson.dumps({"changes": dict(changes)})
        found = await self._plugin(port, body)
        return Priorities(*(int(found.get(name) or 0) for name in Priorities._fields))

    async def _has_plugin(self, port: int) -> bool:
        try:
            found = await self._plugin(port, b"")
        except EngineError:
            return False
        return (found.get("plugin"), found.get("protocol")) == ("heddle", PROTOCOL)

    async def _plugin(self, port: int, body: bytes) -> dict[str, Any]:
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        at = f"{parts.scheme}://{host}:{port}/"
        try:
            opened = self._session.request("POST" if body else "GET", at, data=body or None)
            async with asyncio.timeout(PLUGIN_S), opened as response:
                found: Any = orjson.loads(await response.read()) if response.ok else {}
        except orjson.JSONDecodeError:
            return {}
        except _LOST as error:
            raise self._lost(error) from error
        if body and not found:
            message = f"the priority plugin of {self.url} refused changes"
            raise EngineError(message)
        return found if isinstance(found, dict) else {}

    async def sleep(self) -> None:
        """Without the memory saver SGLang answers 200 and keeps everything: asked first."""
        if not (await self.capabilities()).memory_saver:
            message = f"the engine at {self.url} cannot sleep: {NO_MEMORY_SAVER}"
            raise EngineError(message)
        await self._occupation("release")

    async def wake(self) -> None:
        """Weights, graphs and KV room come back; the prefix cache is empty."""
        await self._occupation("resume")

    async def weight_version(self) -> str:
        """From /model_info."""
        return str((await self._ask("/model_info")).get("weight_version") or "")

    async def load_weights(self, path: str, version: str) -> None:
        """By /update_weights_from_disk, which answers when they are loaded."""
        body = orjson.dumps({"model_path": path, "weight_version": version})
        reply = await self.send("/update_weights_from_disk", body, _JSON)
        said: Any = orjson.loads(reply.body) if reply.status < 400 else {}
        if not said.get("success"):
            why = said.get("message") or reply.body.decode(errors="replace")[:200]
            message = f"the engine at {self.url} did not load the weights in {path}: {why}"
            raise EngineError(message)

    async def flush(self) -> None:
        """By /flush_cache, which a busy engine refuses."""
        reply = await self.send("/flush_cache", b"{}", _JSON)
        if reply.status >= 400:
            said = reply.body.decode(errors="replace")[:200]
            message = f"the engine at {self.url} did not flush its cache: {said}"
            raise EngineError(message)

    async def _occupation(self, verb: str) -> None:
        reply = await self.send(f"/{verb}_memory_occupation", b"{}", _JSON)
        if reply.status >= 400:
            said = reply.body.decode(errors="replace")[:200]
            message = f"the engine at {self.url} did not {verb} its memory: {said}"
            raise EngineError(message)

    def _linked(self) -> EngineLinks | None:
        return self._links.to(self.url) if self._links is not None else None

    def _open(self, path: str, body: bytes, headers: Mapping[str, str]) -> Any:
        method = "POST" if body else "GET"
        return self._session.request(method, self.url + path, data=body or None, headers=headers)

    async def _ask(self, path: str) -> dict[str, Any]:
        try:
            reply = await asyncio.wait_for(self.send(path, b"", {}), ASK_S)
            found: Any = orjson.loads(reply.body) if reply.status < 400 else {}
        except orjson.JSONDecodeError:
            return {}
        except TimeoutError as error:
            raise self._lost(error) from error
        return found if isinstance(found, dict) else {}

    def _lost(self, error: BaseException) -> EngineLost:
        said = str(error) or type(error).__name__
        return EngineLost(f"the engine at {self.url} did not answer ({said})")


_JSON: Final = {"Content-Type": "application/json"}
TRACE_LEVEL: Final = 1
NO_MEMORY_SAVER: Final = "it is never put asleep; start it with --enable-memory-saver"
_MISSING: Final = {
    "priority": "it serves in order of arrival, whatever order the plan has; start it with "
    "--enable-priority-scheduling --default-priority-value 0",
    "metrics": "a step's queue, prefill and decode are guessed from first and last byte; start it "
    "with --enable-metrics",
    "trace": "it sends no spans of its own; start it with --enable-trace",
    "storage": "a move prefills the context again; start it with --enable-hierarchical-cache and "
    "a --hicache-storage-backend that its neighbours share",
    "plugin": "a request keeps the priority it was sent with; install heddle-rollout beside SGLang "
    "and set HEDDLE_PRIORITY_PORT",
    "memory_saver": NO_MEMORY_SAVER,
}


def capabilities_of(info: Mapping[str, Any]) -> Capabilities:
    """What a /server_info says; refused where it says what no SGLang does."""
    try:
        return _capabilities(info)
    except _NoNumber as error:
        return Capabilities(refused=f"its /server_info says {error}, which is no number")


class _NoNumber(Exception):
    """A key of which a number is expected, and what it says."""


def _capabilities(info: Mapping[str, Any]) -> Capabilities:
    states: Any = info.get("internal_states")
    state: Any = states[0] if isinstance(states, list) and states else None
    state = state if isinstance(state, dict) else {}
    running = _number(info, "max_running_requests")
    priority = bool(info.get("enable_priority_scheduling"))
    preempts = priority and not info.get("disable_priority_preemption")
    shares = bool(info.get("enable_hierarchical_cache"))
    threshold = _number(info, "priority_scheduling_preemption_threshold")
    can = Capabilities(
        model=str(info.get("served_model_name") or info.get("model_path") or ""),
        degree=_number(info, "tp_size"),
        kv_tokens=_number(info, "max_total_num_tokens"),
        max_running=running or _number(state, "effective_max_running_requests_per_dp"),
        priority=priority,
        margin=threshold if preempts else None,
        metrics=bool(info.get("enable_metrics")),
        trace=bool(info.get("enable_trace")),
        storage=str(info.get("hicache_storage_backend") or "") if shares else "",
        plugin=_number(state, "heddle_priority_port"),
        memory_saver=bool(info.get("enable_memory_saver")),
    )
    missing = [sentence for name, sentence in _MISSING.items() if not getattr(can, name)]
    version = str(info.get("version") or "of a version it does not say")
    if can.plugin and _number(info, "pp_size") > 1:
        version += " with pipeline stages"
    if can.plugin and version not in VERIFIED:
        can = replace(can, plugin=0)
        missing.append(UNVERIFIED.format(version))
    if priority and info.get("default_priority_value", 0) is None:
        missing.append(UNRANKED)
    drafts = info.get("speculative_algorithm")
    if drafts:
        missing.append(DRAFTS.format(drafts))
    return replace(can, missing=tuple(missing), refused=_refused(info))


def _number(info: Mapping[str, Any], key: str) -> int:
    """What it says there; 0 where it says nothing."""
    said = info.get(key) or 0
    try:
        return int(said)
    except (TypeError, ValueError, OverflowError):
        message = f"{key}: {said!r:.40}"
        raise _NoNumber(message) from None


def _refused(info: Mapping[str, Any]) -> str:
    """Engines of which a step cannot be placed: the sentence names what they are."""
    mode = str(info.get("disaggregation_mode") or "null")
    if mode != "null":
        return PAIRED.format(mode)
    ranks = _number(info, "dp_size") or 1
    if ranks > 1 or info.get("enable_dp_attention"):
        return DATA_PARALLEL.format(ranks)
    return ""


PAIRED: Final = (
    "it is one half of a PD-disaggregated pair (--disaggregation-mode {}), and a step needs both "
    "halves; put SGLang's own router before the pair and leave it out here, or start it whole"
)
DATA_PARALLEL: Final = (
    "it runs data-parallel (--dp-size {}, or --enable-dp-attention) with a prefix cache a rank, "
    "and picks the rank itself, so no trajectory would stay with its prefix; start one engine a "
    "rank"
)
DRAFTS: Final = (
    "it decodes speculatively ({}): a warm-up generates one token, and plans use the law of plain "
    "decoding until it is measured with heddle profile"
)
SILENT_PLUGIN: Final = (
    "a request keeps the priority it was sent with: the engine names a priority plugin that does "
    "not answer as one of this version; see that HEDDLE_PRIORITY_PORT is reachable from here"
)
UNVERIFIED: Final = (
    "a request keeps the priority it was sent with: the plugin was never tried on SGLang {}, on "
    "0.5.23 it was"
)
VERIFIED: Final = frozenset({"0.5.23"})
"""Versions of SGLang whose ranks took 200 changes during 64 queued requests and lost nothing."""
UNRANKED: Final = (
    "a request without a priority comes after all others there; start it with "
    "--default-priority-value 0"
)


_ONE_TOKEN: Final = {"max_tokens": 1, "temperature": 0, "return_meta_info": True, "stream": False}


def _warming(rid: str) -> dict[str, Any]:
    return {"rid": rid, "priority": WARM_PRIORITY}


def _warmed(meta: Any) -> Warmed:
    said: Mapping[str, Any] = meta if isinstance(meta, Mapping) else {}
    details: Any = said.get("cached_tokens_details")
    stored = details.get("storage") if isinstance(details, Mapping) else 0
    return Warmed(
        int(said.get("prompt_tokens") or 0), int(said.get("cached_tokens") or 0), int(stored or 0)
    )


def _total(ranks: Any, key: str) -> int:
    return sum(int(rank.get(key) or 0) for rank in ranks if isinstance(rank, dict))
