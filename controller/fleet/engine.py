"""What does the controller ask of an engine, whoever makes it?

A port: the data plane and the loop know these calls and nothing of SGLang.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What an engine says of itself now."""

    running: int
    queued: int
    kv_used_tokens: int
    kv_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine is and can: zeros where it does not say."""

    model: str = ""
    degree: int = 0
    kv_tokens: int = 0
    max_running: int = 0
    priority: bool = False
    """It serves its queue by priority."""
    margin: int | None = None
    """It preempts for a priority that is more than this above another's; None: it never does."""
    metrics: bool = False
    """It says timings of a request, and counters."""
    trace: bool = False
    """It sends spans, of which Heddle asks for level 1."""
    storage: str = ""
    """Where its HiCache keeps pages that other engines may read."""
    plugin: int = 0
    """Port at which Heddle's plugin inside it takes new priorities."""
    memory_saver: bool = False
    """It can be put to sleep."""
    refused: str = ""
    """Why no step may go there."""
    missing: tuple[str, ...] = ()
    """A sentence for each thing it cannot do: what Heddle does instead, and what would help."""


class Reply(NamedTuple):
    """A whole answer."""

    status: int
    content_type: str
    body: bytes


class Stream(Protocol):
    """An answer that is still coming; `close` may be called at any time and twice."""

    status: int
    content_type: str

    def chunks(self) -> AsyncIterator[bytes]:
        """The bytes as they arrive; EngineError when the engine dies in between."""
        ...

    async def close(self) -> None:
        """Let the connection go."""
        ...


class Warmed(NamedTuple):
    """What a warm-up found and did."""

    prompt_tokens: int
    cached_tokens: int
    stored_tokens: int = 0
    """Of the cached ones, fetched from a storage that engines share."""

    @property
    def new_tokens(self) -> int:
        """Prefilled by it."""
        return self.prompt_tokens - self.cached_tokens


class Priorities(NamedTuple):
    """What an engine's plugin has done so far, over all who asked."""

    asked: int = 0
    applied: int = 0
    preemptions: int = 0


class Steered(Protocol):
    """What decides needs of an engine at one address: no bytes of requests."""

    url: str

    async def observe(self) -> EngineLoad:
        """Its load now."""
        ...

    async def capabilities(self) -> Capabilities:
        """What it is; asked once when it joins."""
        ...

    async def warm(self, ids: bytes, rid: str, headers: Mapping[str, str]) -> Warmed:
        """Prefill those token ids (the inside of a JSON array)."""
        ...

    async def abort(self, rid: str) -> None:
        """Stop that request; says nothing when it is not there."""
        ...


class Engine(Steered, Protocol):
    """One engine that also carries requests, byte by byte."""

    async def send(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """POST (GET without a body) and the whole answer; EngineLost when there is none."""
        ...

    async def stream(self, path: str, body: bytes, headers: Mapping[str, str]) -> Stream:
        """POST and the answer's head; EngineLost when there is none."""
        ...

    async def warm_chat(self, chat: bytes, rid: str, headers: Mapping[str, str]) -> Warmed:
        """Prefill that chat (a JSON object of messages and tools), answer included."""
        ...

    async def prioritise(self, port: int, changes: Mapping[str, int]) -> Priorities:
        """Give requests it has new priorities, through its plugin at that port."""
        ...

    async def sleep(self) -> None:
        """Give the GPUs' memory back; EngineError when it cannot."""
        ...

    async def wake(self) -> None:
        """Take the memory again; its prefix cache is empty."""
        ...

    async def weight_version(self) -> str:
        """Which weights it serves, as it says."""
        ...

    async def load_weights(self, path: str, version: str) -> None:
        """Serve the weights in that folder from now on, under that name; it must be idle."""
        ...

    async def flush(self) -> None:
        """Forget every prefix."""
        ...
