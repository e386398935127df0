"""Do moves of this run and interface bring anything, and how fast does a shared storage bring it?

A move is useful when the step after it finds most of the carried prefix on its new worker. Over
chat the engine builds the prompt anew from messages, and a template that rewrites earlier turns
(Qwen3 drops old thinking) breaks the prefix: the warm-up was for nothing, every time. One average a
run and interface; below half there are no more moves there, but for one now and then that looks
again. Of fetches it keeps seconds a token, by storage and degree, beginning with what a profile
measured where it did.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from heddle.controller.core.types import Fetches
from heddle.controller.live import LiveTrajectory

USELESS: Final = 0.5
"""A smaller share of the carried tokens found on arrival makes a move useless."""
WEIGHT: Final = 0.3
"""Of the newest move: three useless ones in a row from the start end the moves."""
AGAIN: Final = 64
"""Moves not made after which one is tried once more."""


@dataclass(slots=True)
class _Seen:
    """Of one run and interface."""

    share: float = 1.0
    moves: int = 0
    useless: int = 0
    kept_back: int = 0


class Benefit:
    """Averages of what moves brought."""

    def __init__(self, fetches: Fetches = MappingProxyType({})) -> None:
        self._seen: dict[tuple[str, str], _Seen] = {}
        self.fetches: dict[tuple[str, int], float] = dict(fetches)
        """Seconds a token that a storage brought to engines of that degree."""

    def learn(self, trajectory: LiveTrajectory, hit_tokens: int, tokens: int) -> bool:
        """What the step after a move found; returns whether the move was useless."""
        seen = self._seen.setdefault((trajectory.run, trajectory.interface), _Seen())
        share = min(hit_tokens / tokens, 1.0) if tokens > 0 else 1.0
        seen.share += WEIGHT * (share - seen.share)
        seen.moves += 1
        useless = share < USELESS
        seen.useless += useless
        return useless

    def fetched(self, storage: str, degree: int, tokens: int, took_s: float) -> None:
        """A warm-up found so many tokens in a storage; all of it but its prefill took so long."""
        if not storage or tokens <= 0:
            return
        token_s = max(took_s, 0.0) / tokens
        known_s = self.fetches.get((storage, degree), token_s)
        self.fetches[storage, degree] = known_s + WEIGHT * (token_s - known_s)

    def worth(self, trajectory: LiveTrajectory) -> bool:
        """Whether a move of it may bring something."""
        seen = self._seen.get((trajectory.run, trajectory.interface))
        if seen is None or seen.share >= USELESS:
            return True
        seen.kept_back += 1
        return seen.kept_back % AGAIN == 0

    def told(self) -> list[dict[str, str | int | float]]:
        """For who asks."""
        return [
            {
                "run": run,
                "interface": interface,
                "moves": seen.moves,
                "useless": seen.useless,
                "share": seen.share,
            }
            for (run, interface), seen in self._seen.items()
        ]
