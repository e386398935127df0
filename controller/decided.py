"""What was decided last, and why?

The newest releases and moves as they were made; what a person reads of them is put together when
somebody asks, because every step comes by here and hardly anybody asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from heddle.controller.core.types import Move, Park, Release

KEPT: Final = 2000


class Decided:
    """A bounded log of single decisions."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: deque[tuple[int, str, str, Release | Move | Park]] = deque(maxlen=KEPT)

    def note(self, at_ns: int, run: str, order: str, made: Sequence[Release | Move | Park]) -> None:
        """Keep what one decision did to each trajectory."""
        for one in made:
            self._rows.append((at_ns, run, order, one))

    def newest(self, limit: int) -> list[dict[str, Any]]:
        """At least one if there is any, the newest first."""
        return [
            {
                "at_ns": at_ns,
                "run": run,
                "order": order,
                "kind": type(one).__name__.lower(),
                **(one._asdict() if isinstance(one, Release) else asdict(one)),
            }
            for at_ns, run, order, one in list(reversed(self._rows))[: max(1, limit)]
        ]
