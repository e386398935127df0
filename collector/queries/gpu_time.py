"""What did every GPU of a rollout do: accounts, partition by state, strips over time?

Sums are exact in integer nanoseconds. One rollout at a time (`windows`: one run, fixed intervals,
where rollouts overlap); results are kept until rows change (results.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from typing import Any, Final

import duckdb

from heddle.collector.counters import refined
from heddle.collector.errors import QueryRefused
from heddle.collector.queries.intervals import INTERVALS
from heddle.collector.queries.query import Answer, Filters, Query, table_of
from heddle.collector.queries.results import RESULTS, Result, database, remembered

STRIPS_CAP: Final = 2_000
WIDTH_S: Final = 60.0
SOURCES: Final = ("spans", "counters")


def option(filters: Filters, name: str, known: Sequence[str], otherwise: str) -> str:
    """The one value of a filter that chooses; QueryRefused when it is none of *known*."""
    given = (filters.get(name) or [otherwise])[0]
    if given in known:
        return given
    message = f"{name} is {given!r}; choose one of {', '.join(known)}"
    raise QueryRefused(message)


def positive(filters: Filters, name: str, otherwise: float) -> float:
    """The one value of a filter that is a number above 0."""
    given = (filters.get(name) or [str(otherwise)])[0]
    try:
        value = float(given)
    except ValueError:
        value = 0.0
    if 0 < value < float("inf"):
        return value
    message = f"{name} is {given!r}, expected a number above 0"
    raise QueryRefused(message)


def _accounts(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    found = RESULTS.of(cursor, filters)
    if found is None:
        return Answer(table_of("accounts", []), 0)
    window, gpus = found.accounts.window, found.accounts.gpus
    source = "rollout span" if found.announced else "steps"
    if not found.reading.slices.is_empty():
        source += " + engine spans"
    if any(row.forward_ns is not None for row in found.counted):
        source += " + engine counters"
    values = (
        found.run_id,
        found.rollout_id,
        gpus,
        found.accounts.wall_ns,
        window.start_ns,
        window.end_ns,
        found.facts.provisional,
        found.accounts.total_gpu_ns,
        source,
    )
    return Answer(table_of("accounts", [values]), 1)


@remembered
def _partition(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    source = option(filters, "source", SOURCES, "spans")
    found = RESULTS.of(cursor, filters)
    cells = _cells(found, source) if found else {}
    rows = [(worker, degree, state, ns) for (worker, degree, state), ns in cells.items() if ns]
    rows = [row for row in rows if _wanted(filters, worker=row[0], state=row[2])]
    rows.sort(key=lambda row: (row[0] is None, row[0] or "", row[1:3]))
    return Answer(table_of("partition", rows), len(rows))


def _cells(found: Result, source: str) -> dict[tuple[Any, int, str], int]:
    if source == "counters":
        return refined(found.accounts, found.counted)
    return {**found.accounts.by_worker}


def _wanted(filters: Filters, **values: str | None) -> bool:
    """Whether a row has one of the asked-for values in every filter."""
    return all(not filters.get(name) or value in filters[name] for name, value in values.items())


@remembered
def _strips(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    found = RESULTS.of(cursor, filters)
    strips = [
        strip
        for strip in (found.accounts.strips if found else ())
        if _wanted(filters, worker=strip.worker_id, state=strip.state)
    ]
    longest = nsmallest(STRIPS_CAP, strips, key=lambda s: s.start_ns - s.end_ns)
    ordered = sorted(longest, key=lambda s: (s.worker_id is None, s.worker_id or "", s.start_ns))
    return Answer(table_of("strips", ordered), len(strips))


def _windows(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    """Every rollout of the run in one account, cut into fixed intervals."""
    width_ns = round(positive(filters, "width_s", WIDTH_S) * 1e9)
    rows = INTERVALS.of(cursor, database(cursor), filters["run"][0], width_ns)
    return Answer(table_of("windows", rows), len(rows))


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
    filters=("run", "rollout", "worker", "state", "source"),
    needs=("rollout",),
    compute=_partition,
)
STRIPS = Query(
    name="strips",
    meaning=f"What each worker did when, merged pieces; at most the {STRIPS_CAP} longest.",
    filters=("run", "rollout", "worker", "state"),
    needs=("rollout",),
    compute=_strips,
)
WINDOWS = Query(
    name="windows",
    meaning="GPU time of a run by fixed intervals (width_s), where rollouts overlap.",
    filters=("run", "width_s"),
    needs=("run",),
    compute=_windows,
)
