"""What goes into an emulated engine, what comes out, and what it keeps of a request meanwhile?

Times are the engine's seconds; output token ids are a hash of content and position, so that a
request resumed from prompt + received tokens continues exactly where it stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from heddle.controller.emulator.cache import Ids
from heddle.controller.emulator.plain import Plain, plain
from heddle.controller.emulator.span import Span
from heddle.controller.emulator.truth import TruthParams

Tokens: TypeAlias = Ids | Span
"""A context: its token ids, or in virtual time its name and length."""
NO_IDS: Final[Ids] = np.empty(0, dtype=np.int32)
# Ids of generated tokens stay clear of specials at both ends of Qwen3's 151,936.
_FIRST_ID: Final = 1_000
_IDS: Final = 148_000
_LETTERS: Final = np.frombuffer(b"etaoinshrdlcumwfgypbvk      ", dtype=np.uint8).astype(np.int32)
MEAN_FREE_TOKENS: Final = 240
"""Mean output of a request that may stop by itself (no ignore_eos)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig(Plain):
    """HiCache: KV on the host, `ratio` times the GPU's room."""

    ratio: float = 2.0
    write: Literal["through", "back"] = "through"
    """At every insert, or when the GPU evicts."""
    load_bytes_per_s: float = 40e9
    """Of one GPU's PCIe link."""
    storage_bytes_per_s: float = 2e9
    """Each GPU reads its own share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(Plain):
    """One emulated engine; defaults are SGLang 0.5.23's where it has the setting."""

    system: str = "h100_sxm"
    model: str = "Qwen3-14B"
    degree: int = 1
    worker_id: str = "w0"
    kv_tokens: int | None = None
    """KV room; None: what the profile says fits."""
    context_tokens: int = 131_072
    max_running: int = 256
    max_queued: int | None = None
    chunk_tokens: int = 8_192
    priority_scheduling: bool = True
    schedule_policy: Literal["fcfs", "lof"] = "fcfs"
    """Within one priority: first come first served, or longest max_new_tokens first."""
    preemption_threshold: int | None = None
    """None: ordering only (--disable-priority-preemption), as Heddle deploys engines."""
    retraction_policy: Literal["length", "priority"] = "length"
    truth: TruthParams = field(default_factory=TruthParams)
    host: HostConfig | None = None
    """None: what the GPU evicts is gone."""


@dataclass(slots=True, kw_only=True)
class Request:
    """One generation; `salt` separates samples of one prompt (a seed or a session id)."""

    rid: str
    ids: Tokens
    max_new_tokens: int = 128
    priority: int = 0
    ignore_eos: bool = True
    salt: str = ""
    text: bool = False
    """Generate ids that are letters, for the byte tokenizer."""

    def __post_init__(self) -> None:
        # Every step makes one: only what is counted is looked at.
        if type(self.max_new_tokens) is not int or type(self.priority) is not int:
            self.max_new_tokens, self.priority = plain(self.max_new_tokens), plain(self.priority)


Lap = tuple[float, float | None, float | None, float]
"""Queued, entered, prefilled at, until: its end or a retraction. None: it did not come so far."""


Reason = Literal["length", "stop", "abort"]


class Finished(NamedTuple):
    """How a request ended; `at_s` and `sequence` order events totally."""

    rid: str
    at_s: float
    sequence: int
    reason: Reason
    output_ids: Ids
    """Empty for a span."""
    output_tokens: int
    prompt_tokens: int
    cached_tokens: int
    host_tokens: int
    """Of these, loaded from the host."""
    arrival_s: float
    queue_s: float
    entry_s: float | None
    prefill_end_s: float | None
    retractions: int
    weight_version: str
    laps: tuple[Lap, ...]
    """One, and one more for each retraction."""


def content_salt(ids: Ids, salt: str) -> int:
    """64 bits of salt and first tokens: what a resumed request shares with its first life."""
    digest = blake2b(ids[:64].tobytes(), digest_size=8)
    digest.update(salt.encode())
    return int.from_bytes(digest.digest(), "little")


def output_ids(salt: int, position: int, count: int, *, text: bool = False) -> Ids:
    """Tokens `position` .. `position + count` of the sequence with that salt."""
    bits = _mix(salt, position, count)
    if text:
        return _LETTERS[(bits % np.uint64(len(_LETTERS))).astype(np.int64)]
    return (bits % np.uint64(_IDS)).astype(np.int32) + np.int32(_FIRST_ID)


def target_of(request: Request, salt: int, most: int) -> tuple[int, bool]:
    """Output tokens to come, and whether it stops by itself before its limit."""
    if request.ignore_eos or most == 0:
        return most, False
    ends = _mix(salt ^ 0x656F73, len(request.ids), most) % np.uint64(MEAN_FREE_TOKENS) == 0
    first = int(ends.argmax()) if ends.any() else most
    return (first + 1, True) if first < most else (most, False)


def _mix(salt: int, position: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """splitmix64 of consecutive positions."""
    z = np.arange(position, position + count, dtype=np.uint64)
    z = z * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
