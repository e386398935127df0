"""What does an emulated engine say of its load, and what has it counted?"""

from __future__ import annotations

from dataclasses import dataclass


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
