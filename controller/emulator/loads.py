"""What does an emulated engine say of its load, and what has it counted?"""

from __future__ import annotations

from dataclasses import dataclass

from heddle.controller.emulator.admission import Scheduler


@dataclass(slots=True)
class Counters:
    """Totals since the start, for /metrics and /v1/loads."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    iterations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """What a controller polls."""

    running: int
    waiting: int
    used_tokens: int
    evictable_tokens: int
    active_tokens: int
    capacity_tokens: int
    waiting_tokens: int
    paused: bool
    asleep: bool

    @classmethod
    def of(cls, s: Scheduler, prefilling: int, paused: bool, asleep: bool) -> Loads:  # noqa: FBT001
        """Of a queue and a batch, and of so many requests that are prefilled now."""
        half = 1 if s.chunked is not None and s.chunked.batch is None else 0
        return cls(
            running=len(s.running) + max(half, prefilling),
            waiting=len(s.waiting),
            used_tokens=s.private_tokens + s.cache.held_tokens,
            evictable_tokens=s.cache.evictable_tokens,
            active_tokens=s.private_tokens + s.cache.locked_tokens,
            capacity_tokens=s.capacity,
            waiting_tokens=sum(live.size for live in s.waiting),
            paused=paused,
            asleep=asleep,
        )
