"""How is an SGLang engine spoken to over HTTP?

One shared aiohttp session with the settings a long generation needs: no total time limit, no
connection limit (the default 100 queues silently), no decompression, no cookies.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp
import orjson

from heddle.controller.errors import EngineError, EngineLost
from heddle.controller.fleet.engine import Capabilities, EngineLoad, Reply

CONNECT_S: Final = 5.0
KEEP_ALIVE_S: Final = 75.0
ASK_S: Final = 5.0
"""Time limit of questions that no generation waits behind."""
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
    """One SGLang server; `session` is shared and not closed here."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url.rstrip("/")
        self._session = session

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
        """From /server_info, which merges the resolved arguments with the scheduler's state."""
        info = await self._ask("/server_info")
        states = info.get("internal_states") or [{}]
        return Capabilities(
            model=str(info.get("served_model_name") or info.get("model_path") or ""),
            degree=int(info.get("tp_size") or 0),
            kv_tokens=int(info.get("max_total_num_tokens") or 0),
            max_running=int(
                info.get("max_running_requests")
                or states[0].get("effective_max_running_requests_per_dp")
                or 0
            ),
            priority=bool(info.get("enable_priority_scheduling")),
        )

    async def send(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """POST, or GET where the body is empty, and the whole answer."""
        try:
            async with self._open(path, body, headers) as response:
                content_type = response.headers.get("Content-Type", "application/json")
                return Reply(
                    status=response.status, content_type=content_type, body=await response.read()
                )
        except _LOST as error:
            raise self._lost(error) from error

    async def stream(self, path: str, body: bytes, headers: Mapping[str, str]) -> SglangStream:
        """POST and the answer's head."""
        try:
            return SglangStream(self.url, await self._open(path, body, headers))
        except _LOST as error:
            raise self._lost(error) from error

    async def warm(self, ids: bytes, rid: str, headers: Mapping[str, str]) -> int:
        """Prefill only: no token is generated, the radix cache keeps the prefix."""
        rest = orjson.dumps(
            {
                "sampling_params": {"max_new_tokens": 0},
                "rid": rid,
                "priority": WARM_PRIORITY,
                "log_metrics": False,
            }
        )
        reply = await self.send("/generate", b'{"input_ids":[' + ids + b"]," + rest[1:], headers)
        if reply.status >= 400:
            message = f"the engine at {self.url} refused a warm-up with status {reply.status}"
            raise EngineError(message)
        meta = orjson.loads(reply.body).get("meta_info", {})
        return int(meta.get("prompt_tokens", 0)) - int(meta.get("cached_tokens", 0))

    async def abort(self, rid: str) -> None:
        """Best effort: an engine that is gone has nothing to abort."""
        with contextlib.suppress(EngineError, TimeoutError):
            body = orjson.dumps({"rid": rid})
            await asyncio.wait_for(self.send("/abort_request", body, _JSON), ASK_S)

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


def _total(ranks: Any, key: str) -> int:
    return sum(int(rank.get(key) or 0) for rank in ranks if isinstance(rank, dict))
