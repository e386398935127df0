"""What does the controller ask of an engine, whoever makes it?

A port: the data plane and the loop know these calls and nothing of SGLang.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What an engine says of itself now."""

    running: int
    queued: int
    kv_used_tokens: int
    kv_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine is: zeros where it does not say."""

    model: str = ""
    degree: int = 0
    kv_tokens: int = 0
    max_running: int = 0
    priority: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
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


class Engine(Protocol):
    """One engine at one address."""

    url: str

    async def observe(self) -> EngineLoad:
        """Its load now."""
        ...

    async def capabilities(self) -> Capabilities:
        """What it is; asked once when it joins."""
        ...

    async def send(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """POST (GET without a body) and the whole answer; EngineLost when there is none."""
        ...

    async def stream(self, path: str, body: bytes, headers: Mapping[str, str]) -> Stream:
        """POST and the answer's head; EngineLost when there is none."""
        ...

    async def warm(self, ids: bytes, rid: str, headers: Mapping[str, str]) -> int:
        """Prefill those token ids (the inside of a JSON array); returns how many were new."""
        ...

    async def abort(self, rid: str) -> None:
        """Stop that request; says nothing when it is not there."""
        ...
