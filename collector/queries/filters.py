"""Which filters do the named queries share, and what does each mean?

Several values of one filter mean any of them; several filters mean all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from heddle.collector.errors import QueryRefused


def instant(text: str) -> int:
    """Integer nanoseconds UTC, or ISO 8601 (without a zone it is UTC)."""
    if re.fullmatch(r"-?\d{1,19}", text):
        return int(text)
    try:
        told = datetime.fromisoformat(text)
    except ValueError:
        message = (
            f"{text[:40]!r} is no time; give nanoseconds UTC or ISO 8601 like 2026-09-01T12:00:00Z"
        )
        raise QueryRefused(message) from None
    told = told if told.tzinfo else told.replace(tzinfo=timezone.utc)
    whole = told.replace(microsecond=0)
    return int(whole.timestamp()) * 1_000_000_000 + told.microsecond * 1_000


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter: its condition, `?` where the value goes, and how to read the value."""

    meaning: str
    sql: str
    read: Callable[[str], Any] = str

    def condition(self, count: int) -> str:
        """For that many values."""
        if count > 1 and self.sql.endswith(" = ?"):
            return f"{self.sql.removesuffix(' = ?')} IN ({', '.join('?' * count)})"
        return f"({' OR '.join([self.sql] * count)})"


FILTERS: Final[dict[str, Filter]] = {
    "run": Filter("the training experiment", "run_id = ?"),
    "rollout": Filter("the generation phase", "rollout_id = ?"),
    "group": Filter("the prompt", "group_id = ?"),
    "trajectory": Filter("the trajectory", "trajectory_id = ?"),
    "task": Filter("the task family", "task = ?"),
    "worker": Filter("the engine", "worker_id = ?"),
    "state": Filter("running, finished or abandoned", "state = ?"),
    "outcome": Filter("finished, aborted, failed ...", "outcome = ?"),
    "policy": Filter(
        "a preset, or choice=policy, in force in the rollout",
        "(run_id, rollout_id) IN (SELECT (run_id, rollout_id) FROM rolled_rollouts WHERE"
        " list_contains(list_concat([preset], string_split(coalesce(policies, ''), ',')), ?))",
    ),
    "since": Filter("began then or later", "start_ns >= ?", instant),
    "until": Filter("began before", "start_ns < ?", instant),
    "step": Filter("which LLM call, from 0", "CAST(step_index AS VARCHAR) = ?"),
    "tool": Filter("the tool", "tool_name = ?"),
    "op": Filter("the operation of the span", "op = ?"),
    "trace": Filter("the trace, 32 hex digits", "trace_id = ?"),
}
