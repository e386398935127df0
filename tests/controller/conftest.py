"""A tiny SGLang-shaped engine, and controller and engines on real sockets of one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import orjson
import pytest
from app_server import TOKEN, Recorder, served

from heddle.controller.dataplane import asgi
from heddle.controller.service import App, ControllerConfig, create_app

pytest.register_assert_rewrite(
    "contract_fleets", "contract_requests", "contract_spans", "contract_steering"
)
AUTH = {"Authorization": f"Bearer {TOKEN}"}


class StubEngine:
    """Answers like SGLang 0.5.23; `delay_s` a generation, `gate` holds all of them."""

    def __init__(self, degree: int = 1, kv_tokens: int = 100_000) -> None:
        self.degree = degree
        self.kv_tokens = kv_tokens
        self.delay_s = 0.005
        self.gate: asyncio.Event | None = None
        self.bodies: list[dict[str, Any]] = []
        self.raw: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.aborted: list[dict[str, Any]] = []
        self.refuse = 0
        self.stream_bytes: list[bytes] = []
        self.dies_after: int | None = None
        """Chunks of its next stream after which the connection breaks."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        raw = await asgi.read_body(receive, 1 << 30)
        if path == "/health":
            await asgi.answer(send, 200, b"", "text/plain")
        elif path == "/server_info":
            await self._json(send, self._info())
        elif path == "/v1/models":
            await self._json(send, {"data": [{"id": "stub"}]})
        elif path == "/model_info":
            await self._json(send, {"model_path": "stub", "is_generation": True})
        elif path == "/abort_request":
            self.aborted.append(orjson.loads(raw))
            await self._json(send, {})
        else:
            await self._step(scope, path, raw, send)

    async def _step(self, scope: Any, path: str, raw: bytes, send: Any) -> None:
        body = orjson.loads(raw)
        self.raw.append(raw)
        self.bodies.append(body)
        self.headers.append(asgi.headers_of(scope))
        if self.refuse:
            await self._json(send, {"error": "no"}, self.refuse)
            return
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(self.delay_s)
        if body.get("stream"):
            await asgi.begin(send, 200, "text/event-stream")
            for number, chunk in enumerate(self.stream_bytes):
                if number == self.dies_after:
                    self.dies_after = None
                    return  # uvicorn closes a connection whose answer is not whole
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await asyncio.sleep(0.01)
            await send({"type": "http.response.body", "body": b""})
        elif path == "/generate":
            await self._json(send, generated(body))
        else:
            await self._json(send, completed(body))

    def _info(self) -> dict[str, Any]:
        return {
            "served_model_name": "stub",
            "tp_size": self.degree,
            "max_total_num_tokens": self.kv_tokens,
            "max_running_requests": 64,
        }

    async def _json(self, send: Any, body: Any, status: int = 200) -> None:
        await asgi.answer(send, status, orjson.dumps(body), "application/json")


def meta(body: dict[str, Any], output: int) -> dict[str, Any]:
    prompt = len(body.get("input_ids") or []) or 7
    return {
        "id": body.get("rid"),
        "finish_reason": {"type": "stop"},
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "cached_tokens": prompt // 2,
        "num_retractions": 2,
        "weight_version": "v3",
        "e2e_latency": 0.003,
        "queue_time": 0.0005,
        "forward_entry_time": 100.0,
        "prefill_finished_time": 100.001,
        "request_finished_ts": 100.0025,
    }


def generated(body: dict[str, Any]) -> dict[str, Any]:
    n = int(body.get("sampling_params", {}).get("max_new_tokens", 4))
    return {"text": "x" * n, "output_ids": list(range(n)), "meta_info": meta(body, n)}


def completed(body: dict[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = {"message": {"content": "hi"}, "finish_reason": "stop"}
    if body.get("return_meta_info"):
        choice["meta_info"] = meta(body, 5)
    return {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}


class Stack:
    """A controller in front of stub engines."""

    def __init__(self, app: App, url: str, engines: list[StubEngine], spans: Recorder) -> None:
        self.app, self.url, self.engines, self.spans = app, url, engines, spans

    @property
    def loop(self) -> Any:
        return self.app.up.loop


@contextlib.asynccontextmanager
async def make_stack(engines: int | list[Any] = 2, **config: Any) -> AsyncGenerator[Stack]:
    """Everything up; engines in the order w0, w1..., or those given."""
    async with contextlib.AsyncExitStack() as exits:
        stubs = [StubEngine() for _ in range(engines)] if isinstance(engines, int) else engines
        urls = [await exits.enter_async_context(served(stub)) for stub in stubs]
        spans = Recorder()
        chosen: dict[str, Any] = {"preset": "verl", **config}
        app = create_app(ControllerConfig(workers=tuple(urls), token=TOKEN, spans=spans, **chosen))
        url = await exits.enter_async_context(served(app))
        yield Stack(app, url, stubs, spans)


@pytest.fixture
def stack():
    """`async with stack(engines=2, preset="verl") as s:`"""
    return make_stack


@pytest.fixture
def serve_app():
    """`async with serve_app(asgi_app) as url:`"""
    return served


@pytest.fixture
def auth():
    """The token as a header."""
    return AUTH


@pytest.fixture
def stub_engine():
    """The engine's class."""
    return StubEngine


@pytest.fixture(scope="session")
def serve_stack():
    """The same for a module that serves it from a thread."""
    return make_stack
