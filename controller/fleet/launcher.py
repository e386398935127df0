"""Who turns a block of GPUs into a serving engine?

A port: the controller asks for an engine at a place and gets its address, and cannot tell a list of
URLs from subprocesses or actors. An engine that ends by itself is started again, later each time.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from heddle.controller.core.regroup import Place

BACK_OFF_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Wall seconds before each new start of an engine that ended by itself; the last one repeats."""
STEADY_S: Final = 60.0
"""An engine that served for so long begins with the first of them again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """One engine that serves."""

    worker_id: str
    url: str
    degree: int


@dataclass(slots=True)
class Health:
    """What the launcher knows of an engine it keeps."""

    state: str = "starting"
    """starting, serving, waiting (to be started again), ended"""
    restarts: int = 0
    said: str = ""
    """The end of its log when it last ended by itself."""
    node: str = ""


Ended = Callable[[str], Awaitable[object]]
Returned = Callable[[Started], Awaitable[object]]


class Launcher(Protocol):
    """Places, starts, keeps and stops engines."""

    kind: str
    nodes: tuple[int, ...]
    """GPUs of each node; none: the engines are somebody else's and degrees stay."""
    why_not: str
    """Why several engines cannot hold the same GPUs, all but one asleep; empty: they can."""
    ended: Ended
    """Told of a worker whose engine ended by itself..."""
    returned: Returned
    """... and of its next one, maybe at another address."""

    async def open(self) -> None:
        """Reach what the engines will run on; LaunchFailed with one sentence."""
        ...

    async def start(self, worker_id: str, place: Place) -> Started:
        """Return once an engine serves on those GPUs; LaunchFailed with one sentence."""
        ...

    async def end(self, worker_id: str) -> None:
        """Stop that engine for good; not known is no mistake."""
        ...

    def health(self) -> dict[str, Health]:
        """Of every engine it keeps, by worker id."""
        ...

    async def stop(self) -> None:
        """Stop everything that was started here; may be called twice."""
        ...


async def nobody(said: object) -> None:
    """Whom nobody tells."""
    _ = said


@dataclass(slots=True, kw_only=True)
class Kept:
    """One engine that a launcher keeps, and whoever watches it."""

    health: Health = field(default_factory=Health)
    keeper: asyncio.Task[None] | None = None


K = TypeVar("K", bound=Kept)


class Keeping(ABC, Generic[K]):
    """The half of a launcher that does not care what its engines run on."""

    def __init__(self) -> None:
        self.ended: Ended = nobody
        self.returned: Returned = nobody
        self._kept: dict[str, K] = {}

    @abstractmethod
    async def _begin(self, kept: K) -> Started:
        """Return once it serves; LaunchFailed with one sentence."""

    @abstractmethod
    async def _keep(self, kept: K) -> None:
        """Start it again whenever it ends."""

    @abstractmethod
    async def _let_go(self, kept: K) -> None:
        """End what runs of it, and give its GPUs back."""

    async def _hold(self, worker_id: str, kept: K) -> Started:
        """Keep it from its first health on; what does not come up leaves nothing."""
        self._kept[worker_id] = kept
        try:
            started = await self._begin(kept)
        except BaseException:
            del self._kept[worker_id]
            await self._let_go(kept)
            raise
        kept.keeper = asyncio.create_task(self._keep(kept), name=f"heddle-keep-{worker_id}")
        return started

    async def end(self, worker_id: str) -> None:
        """End its engine, and nobody starts it again."""
        kept = self._kept.pop(worker_id, None)
        if kept is None:
            return
        if kept.keeper is not None:
            kept.keeper.cancel()
            await asyncio.gather(kept.keeper, return_exceptions=True)
        kept.health.state = "ended"
        await self._let_go(kept)

    def health(self) -> dict[str, Health]:
        """Of every engine kept."""
        return {worker: kept.health for worker, kept in self._kept.items()}

    async def stop(self) -> None:
        """End every engine started here."""
        await asyncio.gather(*(self.end(worker) for worker in list(self._kept)))
