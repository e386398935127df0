"""An application on a real socket of the test's event loop, and who takes its spans."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import uvicorn

TOKEN = "secret-of-the-test"


class Recorder:
    """Takes what an Emitter takes."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.starts: list[dict[str, Any]] = []

    def emit(self, name: str, **said: Any) -> None:
        self.spans.append({"name": name, **said})

    def start(self, op: str, **said: Any) -> None:
        self.starts.append({"op": op, **said})

    def of(self, op: str) -> list[dict[str, Any]]:
        return [s for s in self.spans if s["attributes"]["gen_ai.operation.name"] == op]


@contextlib.asynccontextmanager
async def served(app: Any, port: int = 0, **how: Any) -> AsyncGenerator[str]:
    """The application at an address of its own."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, log_level="error", ws="none", lifespan="auto",
        timeout_graceful_shutdown=1, **how,
    )  # fmt: skip
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done(), "the server did not start"
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
