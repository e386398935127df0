"""Who turns a layout into serving engines?

A port: the loop asks for a layout and gets addresses, and cannot tell a list of URLs from
subprocesses or actors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from heddle.controller.core.types import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """One engine that serves."""

    worker_id: str
    url: str
    degree: int


class Launcher(Protocol):
    """Places, starts and stops engines."""

    can_reallocate: bool
    """Whether `place` can change degrees; if not, the layout is what is there."""

    async def place(self, layout: Layout) -> list[Started]:
        """Return once engines of exactly that layout serve; LaunchFailed with one sentence."""
        ...

    async def stop(self) -> None:
        """Stop everything that was started here; may be called twice."""
        ...
