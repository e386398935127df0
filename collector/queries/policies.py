"""What did trajectories' time go to under each policy, and which workers were hot spots?"""

from __future__ import annotations

from typing import Any, Final

import duckdb
import polars as pl

from heddle.collector.decompose import PARTS, REWRITTEN
from heddle.collector.queries.explain import roll_up
from heddle.collector.queries.gpu_time import option
from heddle.collector.queries.memory import Memory
from heddle.collector.queries.query import Answer, Filters, Query, table_of
from heddle.collector.queries.reading import Version, rows_of, versions
from heddle.collector.queries.results import RESULTS, Result, database, remembered
from heddle.collector.states import BUSY

LATEST: Final = 12
"""Rollouts rolled up, the latest: each is accounted for in full."""
_ROLLOUTS: Final = (
    "SELECT rollout_id, preset, policies, makespan_s FROM rollouts"
    f" WHERE run_id = ? AND end_ns IS NOT NULL ORDER BY start_ns DESC LIMIT {LATEST}"
)
_SUMMED: Final = ("trajectories", "duration_ns", *PARTS, REWRITTEN)


_MEMORY: Final = Memory[pl.DataFrame](16 * LATEST)


def _by_policy(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    by = option(filters, "by", ("preset", "policies"), "preset")
    run = filters["run"][0]
    rows = rows_of(cursor, _ROLLOUTS, [run]).to_dicts()
    of = versions(cursor, run, [row["rollout_id"] for row in rows]) if rows else {}
    frames: list[pl.DataFrame] = []
    for row in rows:
        summed = _summed_up(cursor, run, row["rollout_id"], of[row["rollout_id"]])
        if summed is not None:
            key = pl.lit(row[by], pl.String).alias("key")
            length = pl.lit(row["makespan_s"], pl.Float64).alias("makespan_s")
            frames.append(summed.with_columns(key, length))
    if not frames:
        return Answer(table_of("policy_parts", []), 0)
    summed = [pl.col(name).sum() for name in _SUMMED]
    rows = (
        pl.concat(frames)
        .group_by("key")
        .agg(pl.len().cast(pl.Int64).alias("rollouts"), pl.col("makespan_s").mean(), *summed)
    )
    told = [(by, *row) for row in rows.sort("key", nulls_last=True).iter_rows()]
    return Answer(table_of("policy_parts", told), len(told))


def _summed_up(
    cursor: duckdb.DuckDBPyConnection, run: str, rollout: str, version: Version
) -> pl.DataFrame | None:
    """One row of a rollout's parts; kept, for more rollouts are rolled up than results are held."""
    key = (database(cursor), run, rollout)
    kept = _MEMORY.of(key, version)
    if kept is not None:
        return kept
    found = RESULTS.of(cursor, {"run": [run], "rollout": [rollout]})
    if found is None:
        return None
    parts = found.parts.with_columns(task=pl.lit(None, pl.String))
    summed = roll_up(parts, "rollout").select(*_SUMMED)
    _MEMORY.keep(key, found.reading.version, summed)
    return summed


@remembered
def _hot_spots(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    found = RESULTS.of(cursor, filters)
    rows = _workers(found) if found else []
    return Answer(table_of("hot_spots", rows), len(rows))


def _workers(found: Result) -> list[tuple[Any, ...]]:
    """Every worker that leased GPUs, that which generated most first."""
    steps = found.reading.steps.filter(pl.col("worker_id").is_not_null())
    homes = steps.group_by("trajectory_id").agg(pl.col("worker_id").n_unique().alias("homes"))
    seen = (
        steps.join(homes, on="trajectory_id")
        .group_by("worker_id")
        .agg(
            pl.col("trajectory_id").n_unique().alias("trajectories"),
            pl.col("trajectory_id").filter(pl.col("homes") == 1).n_unique().alias("stayed"),
            pl.len().alias("steps"),
            pl.when(pl.col("output_tokens").count() > 0).then(pl.col("output_tokens").sum()),
        )
    )
    of = {row["worker_id"]: row for row in seen.iter_rows(named=True)}
    names = sorted({name for name, *_ in found.accounts.by_worker if name})
    # None where it had steps and none of them told.
    tokens: dict[str, int | None] = {
        name: of.get(name, {"output_tokens": 0})["output_tokens"] for name in names
    }
    told = [count for count in tokens.values() if count is not None]
    mean = sum(told) / len(told) if told else 0.0
    spent: dict[str, dict[str, int]] = {name: {} for name in names}
    for (name, _, state), amount in found.accounts.by_worker.items():
        if name is not None:
            spent[name][state] = spent[name].get(state, 0) + amount
    rows: list[tuple[Any, ...]] = []
    for name in sorted(names, key=lambda one: (-(tokens[one] or 0), one)):
        mine, whole = of.get(name, {}), sum(spent[name].values())
        shares = [
            sum(spent[name].get(state, 0) for state in states) / whole if whole else 0.0
            for states in (BUSY, ("queued",), ("tail_bubble", "starved_gap"))
        ]
        counts = [int(mine.get(key, 0)) for key in ("trajectories", "stayed", "steps")]
        made = tokens[name]
        times = made / mean if mean and made is not None else None
        rows.append((name, *counts, made, times, *shares))
    return rows


POLICY_PARTS = Query(
    name="policy_parts",
    meaning=f"Trajectories' time in parts by preset or policies; of the latest {LATEST} rollouts.",
    filters=("run", "by"),
    needs=("run",),
    compute=_by_policy,
)
HOT_SPOTS = Query(
    name="hot_spots",
    meaning="Which workers the sessions stuck to, and what that made of them; fullest first.",
    filters=("run", "rollout"),
    needs=("rollout",),
    compute=_hot_spots,
)
