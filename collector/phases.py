"""Into which phases is one finished step cut, and what is left over?

By the rules of facts.py, for whoever draws a step: held, queue, prefill and decode in that order
from its start, cut at its end. What is left is the orchestrator's (`rest`); of a step that tells
neither prefill nor decode nobody knows what it was (`unknown`). Engines' slices are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

PHASES: Final = ("held", "queue", "prefill", "decode")
REST: Final = "rest"
UNKNOWN: Final = "unknown"


def phases(row: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    """Phase, start and end of each piece of a row of `steps`; they cover it without overlap."""
    at, end = row["start_ns"], row["end_ns"]
    for phase in PHASES:
        until = min(at + max(row[f"{phase}_ns"] or 0, 0), end)
        if until > at:
            yield phase, at, until
            at = until
    if end > at:
        is_blind = row["prefill_ns"] is None and row["decode_ns"] is None
        yield UNKNOWN if is_blind else REST, at, end
