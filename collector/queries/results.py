"""How do pages read the accounting of a rollout without computing it again and again?

One `Result` per (store, run, rollout), kept until the rollout's rows change; each part of it is
computed when first asked for. A finished rollout's stays as it is until a late span changes its
version. A running rollout is followed: of what came since the last look only the trajectories that
changed are read and only the cells they touch are swept (following.py). Its answers are as old as
keeps the cost at SPEND of the time gone by, never older than STALE_S when asked for, and say where
their window ends.
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
from heddle.collector.accounting import Accounts
from heddle.collector.activities import Activity
from heddle.collector.blame import Blame, blame, used
from heddle.collector.counters import Counted, counted
from heddle.collector.critical_path import CriticalPath, critical_path
from heddle.collector.decompose import decompose, parts
from heddle.collector.doings import Doings
from heddle.collector.facts import Facts, gather
from heddle.collector.findings.case import Case, Finding
from heddle.collector.findings.rules import diagnose
from heddle.collector.findings.signals import Signals, signals
from heddle.collector.following import Following, Rows
from heddle.collector.laws import parse_laws
from heddle.collector.queries.memory import Memory
from heddle.collector.queries.more import More, read_more
from heddle.collector.queries.query import LIMIT, Answer, Filters
from heddle.collector.queries.reading import Reading, ended, read, version, whose
from heddle.collector.spare import Spare, spare
from heddle.collector.sums import Law

Compute: TypeAlias = Callable[[duckdb.DuckDBPyConnection, Filters], Answer]
Question: TypeAlias = tuple[Compute, tuple[tuple[str, tuple[Any, ...]], ...]]
"""A query and what it was asked with."""
KEPT: Final = 6
"""Results held at once; one of 60,000 steps is about 150 MB with everything asked for."""
SPEND: Final = 0.05
"""Of the time gone by, what following a running rollout may cost on this thread."""
STALE_S: Final = 4.0
"""A running rollout's answers are never older, whatever they cost."""
LOOK_S: Final = 0.5
"""A page asks ten queries at once: late rows of a finished rollout are looked for this often, and
more often (a tenth of its age) while it is fresh."""
ANSWERS_KEPT: Final = 64
SETTLED_KEPT: Final = 1_024
SMALL: Final = 256
"""Rows. The overview asks the partition of twelve rollouts (40 rows each) whose results, KEPT of
them, would be computed anew each time (0.4 s of CPU for one of 20,000 spans)."""


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
    doings: Doings
    sums: pl.DataFrame
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
            return critical_path(self.facts.window, self.facts.near, self.facts.past)

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
        with self.cost.counting():
            return parts(self.facts, self.sums, self.doings)

    def parts_by(self, laws: Mapping[int, Law]) -> pl.DataFrame:
        """Each trajectory's time, decode split by those laws."""
        with self.cost.counting():
            return decompose(self.facts, self.reading.steps, laws, self.doings)

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
                of_steps=self.sums,
                trajectories=self.reading.trajectories,
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
    following: Following
    at_s: float
    looked_s: float


class Results:
    """The results at hand, the least lately used dropped."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._kept: OrderedDict[tuple[str, str, str], _Kept] = OrderedDict()
        self._lock = threading.Lock()
        self._settled: Memory[Answer] = Memory(SETTLED_KEPT)
        self.computed = 0
        self.followed = 0
        """Of those computed: by what came since."""

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

    def settled(self, cursor: duckdb.DuckDBPyConnection, question: Question) -> Answer | None:
        """A small answer about a rollout that has ended, whose result may have been dropped."""
        of, key = dict(question[1]), (database(cursor), question)
        if key not in self._settled:
            return None
        return self._settled.of(key, version(cursor, of["run"][0], of["rollout"][0]))

    def settle(
        self, cursor: duckdb.DuckDBPyConnection, result: Result, question: Question, answer: Answer
    ) -> None:
        """Keep it where it is small, was asked with the run's name, and its rollout has ended."""
        names = dict(question[1])
        if (
            not result.facts.provisional
            and answer.total <= SMALL
            and {"run", "rollout"} <= {*names}
        ):
            key = database(cursor), question
            self._settled.keep(key, result.reading.version, answer)

    def _fresh(self, cursor: duckdb.DuckDBPyConnection, kept: _Kept) -> bool:
        result, now_s = kept.result, self._now_s()
        age_s, whose_it_is = now_s - kept.at_s, (result.run_id, result.rollout_id)
        if result.facts.provisional:
            # Its end is never overlooked: whoever waits for it reads the final numbers next.
            pace_s = min(result.cost.spent_s / SPEND, STALE_S)
            return age_s < pace_s and not ended(cursor, *whose_it_is)
        if now_s - kept.looked_s < min(LOOK_S, age_s / 10):
            return True
        kept.looked_s = now_s
        return version(cursor, *whose_it_is) == result.reading.version

    def _compute(
        self, cursor: duckdb.DuckDBPyConnection, key: tuple[str, str, str]
    ) -> Result | None:
        cost, kept = Cost(), self._kept.get(key)
        with cost.counting():
            found = None if kept is None else follow(cursor, kept.result, kept.following)
            if kept is not None and found is not None and found[0] is kept.result:
                kept.at_s = self._now_s()
                return kept.result
            self.followed += found is not None
            if found is None:
                reading = read(cursor, *key[1:])
                if reading is None:
                    return None
                following = Following()
                found = explained(reading, following), following
            result = replace(found[0], cost=cost)
        now_s = self._now_s()
        self._kept[key] = _Kept(result, found[1], now_s, now_s)
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
        asked = tuple(sorted((k, tuple(v)) for k, v in filters.items() if k != LIMIT))
        question = compute, asked
        kept = RESULTS.settled(cursor, question)
        if kept is not None:
            return kept
        found = RESULTS.of(cursor, filters)
        if found is None or len(found.answers) >= ANSWERS_KEPT:
            return compute(cursor, filters)
        if question not in found.answers:
            found.answers[question] = made = compute(cursor, filters)
            RESULTS.settle(cursor, found, question, made)
        return found.answers[question]

    return answer


def gathered(reading: Reading) -> Facts:
    """One rollout's rows as facts."""
    return gather(
        reading.row,
        **reading.frames._asdict(),
        workers=reading.workers,
        now_ns=reading.watermark_ns,
        fleet=_fleet(reading),
    )


def _fleet(reading: Reading) -> list[Activity]:
    """What the whole fleet did: weights, layouts, death."""
    end_ns = reading.row["end_ns"]
    until_ns = reading.watermark_ns if end_ns is None else end_ns
    seen = [reading.workers["worker_id"], reading.steps["worker_id"].unique()]
    return fleet.activities(
        reading.fleet, reading.counters, {*seen[0], *seen[1]} - {None}, until_ns
    )


def explain(reading: Reading) -> Result:
    """Account for one rollout's rows."""
    return explained(reading, Following())


def explained(reading: Reading, following: Following, more: More | None = None) -> Result:
    """The same, going on from what was followed so far where *more* came."""
    rows = Rows(
        reading.row,
        reading.frames,
        reading.workers,
        reading.watermark_ns,
        parse_laws([reading.laws]),
        _fleet(reading),
    )
    facts, accounts = (
        following.look(rows) if more is None else following.look(rows, more.changed, more.part)
    )
    assert following.sums is not None
    names = reading.row["run_id"], reading.row["rollout_id"]
    return Result(*names, reading, facts, accounts, following.doings, following.sums)


def follow(
    cursor: duckdb.DuckDBPyConnection, before: Result, following: Following
) -> tuple[Result, Following] | None:
    """A running rollout's result with what came since, the same if nothing did; None: it is to be
    read anew."""
    if not before.facts.provisional:
        return None
    more = read_more(cursor, before.reading)
    if more is not None and more.reading.version == before.reading.version:
        return before, following
    return None if more is None else (explained(more.reading, following, more), following)


def database(cursor: duckdb.DuckDBPyConnection) -> str:
    """Which store it is: its file; one made anew under that name has other versions."""
    rows = cursor.execute(
        "SELECT coalesce(path, '') FROM duckdb_databases() WHERE database_name = current_database()"
    ).fetchall()
    return str(rows[0][0]) if rows else ""
