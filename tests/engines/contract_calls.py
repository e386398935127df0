"""How do the claims of the contract speak to an engine, whichever kind it is?"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from heddle.controller.fleet.sglang import SglangEngine, open_session

MARGIN = 1000
"""Preemption threshold of the engines that preempt: the bands of other tests stay below it."""
SLOTS = 2
"""Running requests those engines take."""
DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine that answers: which kind, and where."""

    kind: str
    url: str


def prompt(start: int, tokens: int) -> list[int]:
    """Another *start* shares no prefix; all ids are inside the tiny model's vocabulary of 370.

    An id outside it ends a genuine engine: nothing checks it before the embedding's lookup.
    """
    return [10 + (start * 37 + i * 7 + (i * i) % 11) % 350 for i in range(tokens)]


def body_of(ids: list[int], new: int, **body: Any) -> dict[str, Any]:
    """A body of /generate that makes exactly *new* tokens."""
    return {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": new, "ignore_eos": True},
        **body,
    }


def ask(http: httpx.Client, ids: list[int], new: int, **body: Any) -> dict[str, Any]:
    reply = http.post("/generate", json=body_of(ids, new, **body))
    assert reply.status_code == 200, reply.text
    return reply.json()


def load(http: httpx.Client) -> dict[str, Any]:
    """The one rank's load; some of it is as old as 15 iterations."""
    (rank,) = http.get("/v1/loads", params={"include": "core,memory,queues"}).json()["loads"]
    return rank


def until(true: Callable[[], Any]) -> Any:
    """What it answers once that is true."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := true()):
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.02)
    return found


@dataclass
class Going:
    """A streamed request in a thread: how many tokens it has, and what it ended with."""

    url: str
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)
    tokens: int = 0
    last: dict[str, Any] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    """Request ids in the order in which they ended; several may share the list."""

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        body = {**self.body, "stream": True}
        with (
            httpx.Client(base_url=self.url, timeout=120.0) as http,
            http.stream("POST", "/generate", json=body, headers=self.headers) as reply,
        ):
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    self.last = httpx.Response(200, content=line[6:]).json()
                    self.tokens = self.last["meta_info"]["completion_tokens"]
        self.done.append(str(self.body.get("rid")))

    def begun(self, tokens: int = 1) -> Going:
        """Itself once it has that many tokens."""
        until(lambda: self.tokens >= tokens)
        return self

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> dict[str, Any]:
        """Its last event."""
        self._thread.join(120)
        assert not self._thread.is_alive(), f"{self.body.get('rid')} never ended"
        return self.last


def through_the_port(url: str, call: Callable[[SglangEngine], Awaitable[Any]]) -> Any:
    """What *call* makes of the controller's own port to that engine."""

    async def run() -> Any:
        async with open_session() as session:
            return await call(SglangEngine(url, session))

    return asyncio.run(run())
