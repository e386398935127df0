"""What is wrong with this rollout, and which knob would change it?

One pure function per rule, one table. A healthy rollout has no finding. A rule that explains
another's symptom silences it (SILENCES): starving GPUs have one cause, so a slow engine is not also
a crowded worker, and spans that were lost are not also waiting clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from heddle.collector.findings import engines, starving, waiting, wasted
from heddle.collector.findings.case import Case, Finding

Rule = Callable[[Case], Finding | None]

RULES: Final[dict[str, Rule]] = {
    "dropped-spans": waiting.dropped_spans,
    "telemetry-gaps": waiting.telemetry_gaps,
    "dead-engine": engines.dead_engine,
    "sync-blocked": engines.sync_blocked,
    "weight-sync": engines.weight_sync_long,
    "slow-engine": engines.slow_engine,
    "kv-full": engines.kv_full,
    "cache-lost": engines.cache_lost,
    "host-bound": engines.host_bound,
    "one-at-a-time": starving.one_at_a_time,
    "crowded-worker": starving.crowded_worker,
    "sticky-imbalance": starving.sticky_imbalance,
    "degree-too-low": starving.degree_too_low,
    "one-straggler": starving.one_straggler,
    "tool-bound": waiting.tool_bound,
    "waiting-for-service": waiting.waiting_for_service,
    "clients-wait": waiting.clients_wait,
    "client-bound": waiting.client_bound,
    "invalid-tool-loop": waiting.invalid_tool_loop,
    "refused-steps": wasted.refused,
    "group-waste": wasted.group_waste,
    "gather-timeout": starving.gather_timeout,
    "slow-start": starving.slow_start,
}
_STARVING: Final = ("crowded-worker", "sticky-imbalance", "degree-too-low", "one-straggler")
SILENCES: Final[dict[str, tuple[str, ...]]] = {
    "dropped-spans": ("telemetry-gaps", "clients-wait", "client-bound", *_STARVING),
    "clients-wait": ("client-bound",),
    "dead-engine": ("waiting-for-service", "cache-lost", "group-waste", *_STARVING),
    "sync-blocked": ("weight-sync", *_STARVING),
    "slow-engine": ("waiting-for-service", *_STARVING),
    "kv-full": ("waiting-for-service", *_STARVING),
    "one-at-a-time": ("slow-start", *_STARVING),
    "crowded-worker": ("sticky-imbalance", "waiting-for-service"),
    "sticky-imbalance": ("waiting-for-service",),
    "tool-bound": ("one-at-a-time",),
}
"""Which symptoms a cause explains."""


def diagnose(case: Case) -> list[Finding]:
    """Every finding that no other explains, the costliest first (ties in the table's order)."""
    found = {name: made for name, rule in RULES.items() if (made := rule(case)) is not None}
    silent = {name for cause in found for name in SILENCES.get(cause, ())}
    kept = [made for name, made in found.items() if name not in silent]
    return sorted(kept, key=lambda made: -made.lost_share)
