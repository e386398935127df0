"""Why did the GPU time of a rollout go where it went: blame, critical path, parts, cost, findings?

One rollout at a time, from its kept result (results.py). Amounts are integer GPU-nanoseconds that
sum to what they explain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

import duckdb
import polars as pl

from heddle.collector.accounting import account
from heddle.collector.decompose import PARTS, REWRITTEN
from heddle.collector.laws import parse_laws
from heddle.collector.ledger import SATURATED
from heddle.collector.queries.gpu_time import option, positive
from heddle.collector.queries.query import Answer, Filters, Query, table_of
from heddle.collector.queries.results import RESULTS, Result, remembered
from heddle.collector.records import schema
from heddle.collector.spare import spare

BLAMED_BY: Final = ("trajectory", "group", "tool", "worker", "state")
ROLLED_UP: Final = ("trajectory", "group", "task", "rollout")
PRICE: Final = 2.0
"""Per GPU hour where nobody says: an H100 costs about that to rent."""
_HOUR_NS: Final = 3_600e9


@remembered
def _blame(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    by = option(filters, "by", BLAMED_BY, "trajectory")
    found = RESULTS.of(cursor, filters)
    if found is None:
        return Answer(table_of("blame", []), 0)
    split: dict[str, Any] = getattr(found.blame, f"by_{by}")
    rows: list[tuple[Any, ...]] = list(split.items())
    if by != "tool" and found.blame.unexplained_ns:
        rows.append((None, found.blame.unexplained_ns))
    total = sum(amount for _, amount in rows)
    told = [(by, key, amount, amount / total) for key, amount in rows if amount]
    return Answer(table_of("blame", told), len(told))


@remembered
def _critical_path(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    found = RESULTS.of(cursor, filters)
    path = found.path if found else None
    rows = [
        (path.trajectory_id, s.doing, s.start_ns, s.end_ns, s.worker_id or None, s.name or None)
        for s in path.segments
    ] if path else []  # fmt: skip
    return Answer(table_of("critical_path", rows), len(rows))


@remembered
def _decomposition(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    by = option(filters, "by", ROLLED_UP, "trajectory")
    laws = parse_laws(filters.get("law", ()))
    found = RESULTS.of(cursor, filters)
    if found is None:
        return Answer(table_of("decomposition", []), 0)
    tasks = found.reading.trajectories.select("trajectory_id", "task")
    parts = found.parts_by(laws) if laws else found.parts
    parts = parts.join(tasks, on="trajectory_id", how="left", maintain_order="left")
    if wanted := filters.get("trajectory"):
        parts = parts.filter(pl.col("trajectory_id").is_in(list(wanted)))
    return _answer("decomposition", roll_up(parts, by))


def roll_up(parts: pl.DataFrame, by: str) -> pl.DataFrame:
    """Rows of decompose() (and task) summed by group, task or rollout, or as they are."""
    key = {"group": "group_id", "task": "task"}.get(by)
    sums = [pl.col(name).sum() for name in ("duration_ns", *PARTS, REWRITTEN)]
    counted = pl.len().cast(pl.Int64).alias("trajectories")
    if by == "trajectory":
        rows = parts.with_columns(trajectories=pl.lit(1, pl.Int64))
    elif key:
        rows = parts.group_by(key).agg(counted, *sums).sort(key)
    else:
        rows = parts.select(counted, *sums)
    columns = schema("decomposition")
    missing = [
        pl.lit(None, kind).alias(name) for name, kind in columns.items() if name not in rows.columns
    ]
    return rows.with_columns(missing).select(*columns)


@remembered
def _findings(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    found = RESULTS.of(cursor, filters)
    rows = [
        (f.rule, f.severity, f.title, _evidence(f.evidence, found), f.knob, f.lost_share)
        for f in found.findings
    ] if found else []  # fmt: skip
    return Answer(table_of("findings", rows), len(rows))


def _evidence(evidence: str, found: Result) -> str:
    """A query anyone can run: with its run and rollout."""
    sign = "&" if "?" in evidence else "?"
    whose = urlencode({"run": found.run_id, "rollout": found.rollout_id})
    return f"{evidence}{sign}{whose}"


@remembered
def _cost(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    by = option(filters, "by", ("trajectory", "group"), "trajectory")
    price = positive(filters, "price", PRICE)
    found = RESULTS.of(cursor, filters)
    if found is None:
        return Answer(table_of("cost", []), 0)
    groups = found.facts.groups
    used, caused = found.used, found.blame.by_trajectory
    if by == "group":
        used, caused = _by_group(used, groups), _by_group(caused, groups)
    rows = [
        (
            None if by == "group" else key,
            key if by == "group" else groups.get(key, ""),
            used.get(key, 0),
            caused.get(key, 0),
            (used.get(key, 0) + caused.get(key, 0)) * price / _HOUR_NS,
        )
        for key in used.keys() | caused.keys()
    ]
    rows.sort(key=lambda row: (-row[2] - row[3], str(row[:2])))
    return Answer(table_of("cost", rows), len(rows))


def _by_group(amounts: Mapping[str, int], groups: Mapping[str, str]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for trajectory, amount in amounts.items():
        group = groups.get(trajectory, "")
        totals[group] = totals.get(group, 0) + amount
    return totals


@remembered
def _efficiency(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    saturated = round(positive(filters, "saturated", SATURATED))
    found = RESULTS.of(cursor, filters)
    if found is None:
        return Answer(table_of("efficiency", []), 0)
    split = found.spare
    if saturated != split.saturated:
        f = found.facts
        split = spare(account(f.window, f.gpus, f.leases, f.activities, max(saturated, 1)))
    row = (
        found.accounts.total_gpu_ns,
        found.accounts.busy_ns,
        split.effective_ns,
        split.recoverable_ns,
        split.unavoidable_ns,
        split.saturated,
    )
    return Answer(table_of("efficiency", [row]), 1)


def _counters(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    found = RESULTS.of(cursor, filters)
    names = list(schema("counters"))
    rows = [
        tuple(getattr(row, name) for name in names)
        for row in (found.counted if found else ())
        if not filters.get("worker") or row.worker_id in filters["worker"]
    ]
    return Answer(table_of("counters", rows), len(rows))


def _answer(name: str, frame: pl.DataFrame) -> Answer:
    return Answer(table_of(name, frame.rows()), frame.height)


_ROLLOUT: Final = ("run", "rollout")
BLAME = Query(
    name="blame",
    meaning="Idle GPU time by whom it waited for (by=); sums to it (by=tool: to tool_wait).",
    filters=(*_ROLLOUT, "by"),
    needs=("rollout",),
    compute=_blame,
)
CRITICAL_PATH = Query(
    name="critical_path",
    meaning="What the end of the rollout waited for; durations sum to the makespan.",
    filters=_ROLLOUT,
    needs=("rollout",),
    compute=_critical_path,
)
DECOMPOSITION = Query(
    name="decomposition",
    meaning="Each trajectory's time in parts that sum to it; by= rolls up, law= splits decode.",
    filters=(*_ROLLOUT, "trajectory", "by", "law"),
    needs=("rollout",),
    compute=_decomposition,
)
FINDINGS = Query(
    name="findings",
    meaning="What is wrong, in a sentence with its numbers, its evidence and the knob.",
    filters=_ROLLOUT,
    needs=("rollout",),
    compute=_findings,
)
COST = Query(
    name="cost",
    meaning="GPU time each trajectory (by=group: prompt) used and caused, priced per GPU hour.",
    filters=(*_ROLLOUT, "by", "price"),
    needs=("rollout",),
    compute=_cost,
)
EFFICIENCY = Query(
    name="efficiency",
    meaning="How full busy engines were, and how much starving a placement could have saved.",
    filters=(*_ROLLOUT, "saturated"),
    needs=("rollout",),
    compute=_efficiency,
)
COUNTERS = Query(
    name="counters",
    meaning="Each engine by its own counters, and how that differs from what the spans show.",
    filters=(*_ROLLOUT, "worker"),
    needs=("rollout",),
    compute=_counters,
)
