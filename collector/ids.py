"""Which trace and span ids belong to a trajectory, whoever sends its spans?

Derived from run and trajectory by hashing, so that trainer and controller agree without talking.
Standard library only.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

# A step's ids are asked for four times while it is served; a hit costs 0.1 us, a digest 3 us.
_remembered = lru_cache(maxsize=16_384)


def _digest(parts: tuple[str, ...], size: int) -> str:
    # A separator that no id contains keeps ("a", "bc") and ("ab", "c") apart.
    # Lone surrogates are what a name that is no UTF-8 becomes (os.fsdecode).
    named = "\x1f".join(parts).encode("utf-8", "surrogatepass")
    return blake2b(named, digest_size=size).hexdigest()


@_remembered
def trace_id(run: str, trajectory: str) -> str:
    """32 hex digits: the trace of one trajectory of one run."""
    return _digest(("trace", run, trajectory), 16)


def span_id(run: str, *path: str | int) -> str:
    """16 hex digits of a thing named by its path: ("t17", "step", 3, 0) or ("rollout", "r1")."""
    return _digest(("span", run, *map(str, path)), 8)


@_remembered
def trajectory_span_id(run: str, trajectory: str) -> str:
    """The root span of a trajectory: parent of its steps and tool calls."""
    return span_id(run, trajectory, "trajectory")


@_remembered
def step_span_id(run: str, trajectory: str, step: int, attempt: int = 0) -> str:
    """The span of one LLM call; a retry elsewhere is another attempt."""
    return span_id(run, trajectory, "step", step, attempt)


def tool_span_id(run: str, trajectory: str, step: int, call: int = 0) -> str:
    """The span of the call-th tool call after that step."""
    return span_id(run, trajectory, "tool", step, call)


def marker_id(announced_span_id: str) -> str:
    """The start marker of a span has an id of its own: spans are unique on (trace, span)."""
    return _digest(("start", announced_span_id), 8)
