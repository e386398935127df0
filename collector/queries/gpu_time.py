"""What did every GPU of a rollout do: accounts, partition by state, strips over time?

Reads a rollout's rows through the named queries and hands them to `facts` and `accounting`; the
sums are theirs, exact in integer nanoseconds. One rollout at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import duckdb
import polars as pl

from heddle.collector.accounting import Accounts, account
from heddle.collector.errors import QueryRefused
from heddle.collector.facts import Facts, gather
from heddle.collector.queries import rollouts, trajectories
from heddle.collector.queries.query import Answer, Filters, Query, table_of

STRIPS_CAP: Final = 2_000
_PARTS: Final = (
    trajectories.STEPS,
    trajectories.TOOL_CALLS,
    trajectories.MOVES,
    rollouts.WORKERS,
    trajectories.TRAJECTORIES,
)


class _Accounted(NamedTuple):
    run_id: str
    rollout_id: str
    announced: bool
    facts: Facts
    accounts: Accounts


def _account(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> _Accounted | None:
    # One transaction: all rows are of the same instant.
    cursor.begin()
    try:
        return _read(cursor, filters)
    finally:
        cursor.rollback()


def _read(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> _Accounted | None:
    asked = {name: filters[name] for name in ("run", "rollout") if filters.get(name)}
    # `seen_ns` and `announced` are of the view, not of the query's columns.
    names = {"run": "run_id", "rollout": "rollout_id"}
    where = " AND ".join(f"{names[name]} = ?" for name in asked)
    values = [values[0] for values in asked.values()]
    rows = cursor.sql(f"SELECT * FROM rollouts WHERE {where}", params=values).pl().to_dicts()
    if len(rows) > 1:
        message = "several runs have a rollout of that name; add the filter run"
        raise QueryRefused(message)
    if not rows:
        return None
    row = rows[0]
    whose = {"run": [row["run_id"]], "rollout": [row["rollout_id"]]}
    steps, tool_calls, moves, workers, known = (_frame(q, cursor, whose) for q in _PARTS)
    facts = gather(
        row,
        steps=steps,
        tool_calls=tool_calls,
        moves=moves,
        workers=workers,
        trajectories=known,
        now_ns=_watermark(row, (steps, tool_calls, moves, workers, known)),
    )
    accounts = account(facts.window, facts.gpus, facts.leases, facts.activities)
    return _Accounted(row["run_id"], row["rollout_id"], row["announced"], facts, accounts)


def _frame(query: Query, cursor: duckdb.DuckDBPyConnection, filters: Filters) -> pl.DataFrame:
    frame = pl.from_arrow(query.answer(cursor, filters).table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _watermark(row: dict[str, Any], frames: Sequence[pl.DataFrame]) -> int:
    """The latest instant anything of the rollout speaks of, in the rollout's own clock."""
    seen: list[int] = [row["seen_ns"] or 0, row["start_ns"] or 0]
    for frame in frames:
        for column in ("start_ns", "end_ns"):
            latest = frame[column].max()
            seen += [latest] if isinstance(latest, int) else []
    return max(seen)


def _accounts(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    found = _account(cursor, filters)
    if found is None:
        return Answer(table_of("accounts", []), 0)
    window, gpus = found.accounts.window, found.accounts.gpus
    wall_ns = window.end_ns - window.start_ns
    source = "rollout span" if found.announced else "steps"
    values = (
        found.run_id,
        found.rollout_id,
        gpus,
        wall_ns,
        window.start_ns,
        window.end_ns,
        found.facts.provisional,
        gpus * wall_ns,
        source,
    )
    return Answer(table_of("accounts", [values]), 1)


def _partition(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    found = _account(cursor, filters)
    cells = found.accounts.by_worker.items() if found else ()
    rows = [(worker, degree, state, ns) for (worker, degree, state), ns in cells if ns]
    rows.sort(key=lambda row: (row[0] is None, row[0] or "", row[1:3]))
    return Answer(table_of("partition", rows), len(rows))


def _strips(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    found = _account(cursor, filters)
    strips: Sequence[Any] = found.accounts.strips if found else ()
    longest = sorted(strips, key=lambda s: s.start_ns - s.end_ns)[:STRIPS_CAP]
    ordered = sorted(longest, key=lambda s: (s.worker_id is None, s.worker_id or "", s.start_ns))
    rows = [(s.worker_id, s.degree, s.state, s.start_ns, s.end_ns) for s in ordered]
    return Answer(table_of("strips", rows), len(strips))


ACCOUNTS = Query(
    name="accounts",
    meaning="The window a rollout's GPU time is accounted for, and its total.",
    filters=("run", "rollout"),
    needs=("rollout",),
    compute=_accounts,
)
PARTITION = Query(
    name="partition",
    meaning="GPU time of each worker in each state; sums to the total of accounts exactly.",
    filters=("run", "rollout"),
    needs=("rollout",),
    compute=_partition,
)
STRIPS = Query(
    name="strips",
    meaning=f"What each worker did when, merged pieces; at most the {STRIPS_CAP} longest.",
    filters=("run", "rollout"),
    needs=("rollout",),
    compute=_strips,
)
