"""How do pages read the accounting of a rollout without computing it again and again?

One `Result` per (store, run, rollout), kept until the rollout's rows change; each part of it is
computed when first asked for. A finished rollout's stays as it is until a late span changes its
version. A running rollout's rows change all the time: its result is computed again only when that
keeps the cost at SPEND of the time gone by since, so that its window may end a little earlier than
the latest span; every answer says where its window ends.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, TypeAlias

import duckdb
import polars as pl

from heddle.collector import fleet
from heddle.collector.accounting import Accounts, account
from heddle.collector.blame import Blame, blame, used
from heddle.collector.counters import Counted, counted
from heddle.collector.critical_path import CriticalPath, critical_path
from heddle.collector.decompose import Law, decompose
from heddle.collector.facts import Facts, gather
from heddle.collector.findings.case import Case, Finding
from heddle.collector.findings.rules import diagnose
from heddle.collector.findings.signals import Signals, signals
from heddle.collector.laws import parse_laws
from heddle.collector.queries.query import LIMIT, Answer, Filters
from heddle.collector.queries.reading import Reading, ended, read, version, whose
from heddle.collector.spare import Spare, spare

Compute: TypeAlias = Callable[[duckdb.DuckDBPyConnection, Filters], Answer]
KEPT: Final = 6
"""Results held at once; one of 60,000 steps is about 150 MB with everything asked for."""
SPEND: Final = 0.02
"""Of the time gone by, what recomputing a running rollout may cost on this thread; DuckDB's own
threads and what pages make of it double that."""
LOOK_S: Final = 0.5
"""A page asks ten queries at once: late rows of a finished rollout are looked for this often, and
more often (a tenth of its age) while it is fresh."""
ANSWERS_KEPT: Final = 64


@dataclass(slots=True)
class Cost:
    """What a result has cost so far, parts that pages asked for included."""

    spent_s: float = 0.0

    @contextmanager
    def counting(self) -> Generator[None, None, None]:
        """Count the block, and collect no garbage in it: half a million tuples are made and none
        is garbage (4.3 s became 2.7 s for 60,000 steps)."""
        was_on, began_s = gc.isenabled(), time.thread_time()
        gc.disable()
        try:
            yield
        finally:
            self.spent_s += time.thread_time() - began_s
            if was_on:
                gc.enable()


@dataclass(frozen=True)
class Result:
    """Everything known of where one rollout's GPU time went."""

    run_id: str
    rollout_id: str
    reading: Reading
    facts: Facts
    accounts: Accounts
    cost: Cost = field(default_factory=Cost)
    answers: dict[Any, Answer] = field(default_factory=dict[Any, Answer])
    """Tables that pages asked for, by query and filters."""

    @property
    def announced(self) -> bool:
        """Whether the rollout's own span, not its steps, gave the window."""
        return bool(self.reading.row["announced"])

    @cached_property
    def blame(self) -> Blame:
        """Who the idle GPUs waited for."""
        with self.cost.counting():
            return blame(self.accounts, self.facts.groups)

    @cached_property
    def used(self) -> dict[str, int]:
        """Busy GPU-ns by trajectory."""
        with self.cost.counting():
            return used(self.accounts)

    @cached_property
    def path(self) -> CriticalPath:
        """What the rollout's end waited for."""
        with self.cost.counting():
            return critical_path(self.facts.window, self.facts.activities)

    @cached_property
    def spare(self) -> Spare:
        """What a better placement could have used."""
        with self.cost.counting():
            return spare(self.accounts)

    @cached_property
    def counted(self) -> list[Counted]:
        """The engines by their own counters."""
        return counted(self.accounts, self.reading.counters)

    @cached_property
    def laws(self) -> dict[int, Law]:
        """What the rollout's span says of decode."""
        return parse_laws([self.reading.laws])

    @cached_property
    def parts(self) -> pl.DataFrame:
        """Each trajectory's time, decode split by the rollout's own laws."""
        return self.parts_by(self.laws)

    def parts_by(self, laws: Mapping[int, Law]) -> pl.DataFrame:
        """Each trajectory's time, decode split by those laws."""
        with self.cost.counting():
            return decompose(self.facts, self.reading.steps, laws)

    @cached_property
    def signals(self) -> Signals:
        """What the rules look at beside the accounts."""
        with self.cost.counting():
            return signals(
                self.facts,
                steps=self.reading.steps,
                tool_calls=self.reading.tool_calls,
                fleet=self.reading.fleet,
                counted=self.counted,
                dropped=self.reading.dropped,
            )

    @cached_property
    def findings(self) -> list[Finding]:
        """What is wrong, the costliest first."""
        case = Case(
            self.accounts, self.blame, self.parts, self.facts.provisional, self.signals, self.spare
        )
        return diagnose(case)


@dataclass(slots=True)
class _Kept:
    result: Result
    at_s: float
    looked_s: float


class Results:
    """The results at hand, the least lately used dropped."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._kept: OrderedDict[tuple[str, str, str], _Kept] = OrderedDict()
        self._lock = threading.Lock()
        self.computed = 0

    def of(self, cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Result | None:
        """The result of the rollout asked for; None when there is none."""
        given = [filters[name][0] for name in ("run", "rollout") if filters.get(name)]
        asked = tuple(given) if len(given) == 2 else whose(cursor, filters)
        if asked is None:
            return None
        key = (database(cursor), str(asked[0]), str(asked[1]))
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and self._fresh(cursor, kept):
                self._kept.move_to_end(key)
                return kept.result
            return self._compute(cursor, key)

    def _fresh(self, cursor: duckdb.DuckDBPyConnection, kept: _Kept) -> bool:
        result, now_s = kept.result, self._now_s()
        age_s, whose_it_is = now_s - kept.at_s, (result.run_id, result.rollout_id)
        if result.facts.provisional:
            # Its end is never overlooked: whoever waits for it reads the final numbers next.
            if age_s < result.cost.spent_s / SPEND and not ended(cursor, *whose_it_is):
                return True
        elif now_s - kept.looked_s < min(LOOK_S, age_s / 10):
            return True
        kept.looked_s = now_s
        return version(cursor, *whose_it_is) == result.reading.version

    def _compute(
        self, cursor: duckdb.DuckDBPyConnection, key: tuple[str, str, str]
    ) -> Result | None:
        cost = Cost()
        with cost.counting():
            reading = read(cursor, *key[1:])
            if reading is None:
                return None
            result = replace(explain(reading), cost=cost)
        now_s = self._now_s()
        self._kept[key] = _Kept(result, now_s, now_s)
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        self.computed += 1
        return result


RESULTS: Final = Results()
"""Of this process: the collector's pages share them."""


def remembered(compute: Compute) -> Compute:
    """A query's compute whose answers stay with the result they were made from."""

    def answer(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
        found = RESULTS.of(cursor, filters)
        asked = tuple(sorted((k, tuple(v)) for k, v in filters.items() if k != LIMIT))
        key = (compute, asked)
        if found is None or len(found.answers) >= ANSWERS_KEPT:
            return compute(cursor, filters)
        if key not in found.answers:
            found.answers[key] = compute(cursor, filters)
        return found.answers[key]

    return answer


def gathered(reading: Reading) -> Facts:
    """One rollout's rows as facts."""
    now_ns, row = reading.watermark_ns, reading.row
    until_ns = now_ns if row["end_ns"] is None else row["end_ns"]
    workers = {*reading.workers["worker_id"], *reading.steps["worker_id"]} - {None}
    return gather(
        row,
        steps=reading.steps,
        tool_calls=reading.tool_calls,
        moves=reading.moves,
        workers=reading.workers,
        trajectories=reading.trajectories,
        now_ns=now_ns,
        fleet=fleet.activities(reading.fleet, reading.counters, workers, until_ns),
        slices=reading.slices,
    )


def explain(reading: Reading) -> Result:
    """Account for one rollout's rows."""
    row, facts = reading.row, gathered(reading)
    accounts = account(facts.window, facts.gpus, facts.leases, facts.activities)
    return Result(row["run_id"], row["rollout_id"], reading, facts, accounts)


def database(cursor: duckdb.DuckDBPyConnection) -> str:
    """Which store it is: its file; one made anew under that name has other versions."""
    rows = cursor.execute(
        "SELECT coalesce(path, '') FROM duckdb_databases() WHERE database_name = current_database()"
    ).fetchall()
    return str(rows[0][0]) if rows else ""
