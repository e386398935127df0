"""What did the GPUs of a run do in fixed intervals, where its rollouts overlap?

Every interval is one account of all rollouts that touch it. What was computed is kept by interval
and by the versions of those rollouts, so that a running one changes the last intervals alone.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import duckdb

from heddle.collector.accounting import Accounts, account
from heddle.collector.activities import Columns, Tables, renamed, together
from heddle.collector.facts import Facts
from heddle.collector.grants import Window
from heddle.collector.queries.reading import read_many, versions
from heddle.collector.queries.results import gathered

CAP: Final = 500
"""Intervals of one answer, the latest."""
AT_ONCE: Final = 16
"""Rollouts read with the same statements: bounds what is in memory."""
RUNS_KEPT: Final = 4
Row: TypeAlias = tuple[int, int, str | None, int, str, int]
_SPANS: Final = (
    "SELECT rollout_id, start_ns, greatest(start_ns, coalesce(end_ns, seen_ns)) AS until_ns"
    " FROM rollouts WHERE run_id = ? AND start_ns IS NOT NULL ORDER BY start_ns, rollout_id"
)


@dataclass(slots=True)
class _Run:
    """What is known of one run."""

    gpus: int = 0
    """The most any of its rollouts has."""
    rows: dict[Any, list[Row]] = field(default_factory=dict[Any, list[Row]])
    """By interval, and by the rollouts that touch it and their versions."""


class Intervals:
    """The intervals of a few runs."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, int], _Run] = {}
        self._lock = threading.Lock()
        self.computed = 0

    def of(
        self, cursor: duckdb.DuckDBPyConnection, database: str, run: str, width_ns: int
    ) -> list[Row]:
        """Rows of the latest CAP intervals in order; leases of two rollouts count once."""
        with self._lock:
            key = (database, run, width_ns)
            kept = self._kept[key] = self._kept.pop(key, None) or _Run()
            while len(self._kept) > RUNS_KEPT:
                self._kept.pop(next(iter(self._kept)))
            return self._rows(cursor, kept, run, width_ns)

    def _rows(
        self, cursor: duckdb.DuckDBPyConnection, kept: _Run, run: str, width_ns: int
    ) -> list[Row]:
        touching = _touching(cursor.execute(_SPANS, [run]).fetchall(), width_ns)
        of = versions(cursor, run, sorted({name for names in touching.values() for name in names}))
        keys = {w: (w, tuple((n, of[n]) for n in names)) for w, names in touching.items()}
        stale = {w: touching[w] for w, key in keys.items() if key not in kept.rows}
        made = self._account(cursor, kept, run, stale)
        kept.rows = {key: made[w] if w in made else kept.rows[key] for w, key in keys.items()}
        return [row for key in keys.values() for row in kept.rows[key]]

    def _account(
        self,
        cursor: duckdb.DuckDBPyConnection,
        kept: _Run,
        run: str,
        stale: Mapping[Window, Sequence[str]],
    ) -> dict[Window, list[Row]]:
        names = sorted({name for names in stale.values() for name in names})
        facts: dict[str, Facts] = {}
        for at in range(0, len(names), AT_ONCE):
            for reading in read_many(cursor, run, names[at : at + AT_ONCE]):
                facts[reading.row["rollout_id"]] = gathered(reading)
        kept.gpus = max([kept.gpus, *(one.gpus for one in facts.values())])
        tables = Tables()
        activities = {name: renamed(one.activities, tables) for name, one in facts.items()}
        self.computed += len(stale)
        made: dict[Window, list[Row]] = {}
        for window, touching in stale.items():
            here = [name for name in touching if name in facts]
            leases = [lease for name in here for lease in facts[name].leases]
            seen = [activities[name].meeting(*window) for name in here]
            seen.append(Columns.of((), tables))
            made[window] = _told(account(window, kept.gpus, leases, together(seen)))
        return made


def _touching(spans: Sequence[tuple[str, int, int]], width_ns: int) -> dict[Window, list[str]]:
    """The latest intervals of a run, and which rollouts touch each."""
    if not spans:
        return {}
    start_ns, end_ns = spans[0][1], max(span[2] for span in spans)
    count = -(-(end_ns - start_ns) // width_ns)
    found: dict[Window, list[str]] = {}
    for at in range(max(count - CAP, 0), count):
        window = Window(start_ns + at * width_ns, min(start_ns + (at + 1) * width_ns, end_ns))
        found[window] = [n for n, a, b in spans if a < window.end_ns and b > window.start_ns]
    return found


def _told(accounts: Accounts) -> list[Row]:
    window = accounts.window
    return [
        (window.start_ns, window.end_ns, worker, degree, state, amount)
        for (worker, degree, state), amount in sorted(accounts.by_worker.items(), key=str)
        if amount
    ]


INTERVALS: Final = Intervals()
"""Of this process."""
