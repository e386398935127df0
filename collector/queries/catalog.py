"""Which named queries are there? A new one is one line here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from heddle.collector.errors import QueryRefused
from heddle.collector.queries import (
    calibration,
    device,
    explain,
    gpu_time,
    long_tail,
    policies,
    rollouts,
    trainer,
    trajectories,
)
from heddle.collector.queries.query import PAGING, Query

QUERIES: Final[dict[str, Query]] = {
    query.name: query
    for query in (
        rollouts.RUNS,
        rollouts.ROLLOUTS,
        trajectories.TRAJECTORIES,
        trajectories.GROUPS,
        trajectories.STEPS,
        trajectories.TOOL_CALLS,
        trajectories.MOVES,
        rollouts.WORKERS,
        trajectories.SPANS,
        rollouts.INGEST_LAG,
        rollouts.SWITCHES,
        rollouts.PLANS,
        rollouts.REPLAYS,
        gpu_time.PARTITION,
        gpu_time.ACCOUNTS,
        gpu_time.STRIPS,
        gpu_time.WINDOWS,
        explain.BLAME,
        explain.CRITICAL_PATH,
        explain.DECOMPOSITION,
        explain.FINDINGS,
        explain.COST,
        explain.EFFICIENCY,
        explain.COUNTERS,
        trajectories.HISTORY,
        calibration.CALIBRATION,
        trajectories.TAIL,
        long_tail.TAIL_SLICES,
        long_tail.SPREAD,
        long_tail.STRAGGLERS_QUERY,
        long_tail.CCDF,
        long_tail.DRIFT,
        trainer.GATHER,
        trainer.TRAINER,
        device.DEVICE,
        long_tail.TAIL_SOURCES,
        policies.POLICY_PARTS,
        policies.HOT_SPOTS,
    )
}


class UnknownQuery(QueryRefused):
    """No query has that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no query called {name!r}; choose one of {', '.join(sorted(QUERIES))}")


def described() -> list[dict[str, Any]]:
    """Every query with its filters and its columns, their types, units and meanings."""
    return [
        {
            "name": query.name,
            "meaning": query.meaning,
            "filters": [*query.filters, *PAGING],
            "needs": list(query.needs),
            "columns": [asdict(column) for column in query.columns],
        }
        for query in QUERIES.values()
    ]


def find(name: str) -> Query:
    """The query of that name."""
    if name not in QUERIES:
        raise UnknownQuery(name)
    return QUERIES[name]
