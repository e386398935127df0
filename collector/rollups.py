"""How do lists and quantiles over millions of spans answer in milliseconds?

From tables of sums, one row a trajectory and a rollout. A commit notes which trajectories it
touched, in its own transaction; `refresh` merges its rows into their sums, once for all readers
that wait, or computes those anew where spans were replaced. Under load `freshen` lets them be up to
a second old. What nobody has asked for stays noted, through restarts too.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from heddle.collector.arrivals import MOST_ROWS, Arrivals
from heddle.collector.sealed import among

_NAMED_ROLLOUTS: Final = 200
"""With more than this many touched at once the whole table is scanned."""
SPEND: Final = 0.05
"""Of the time, what readers may spend on refreshing; what they do not is saved, up to SAVED_S.
With 5,000 spans/s arriving a refresh takes 0.2 s; at twice the share one query in twenty met one,
and the p95 of some was that of a refresh."""
SAVED_S: Final = 3.0
_ASKED_S: Final = 30.0
"""So long after a reader the sums are kept a second old; with none they are a tenth of the work."""
_UNASKED_S: Final = 10.0


def _parts() -> dict[str, str]:
    text = Path(__file__).with_suffix(".sql").read_text()
    found = [part.partition("\n") for part in text.split("-- :")[1:]]
    return {name.strip(): body.strip().rstrip(";") for name, _, body in found}


_SQL: Final = _parts()
_BY_TRAJECTORY: Final = ("run_id", "rollout_id", "trajectory_id")
_BY_ROLLOUT: Final = ("run_id", "rollout_id")
SUMS: Final = ("rolled_states", "rolled_trajectories", "rolled_rollouts")
"""Tables of sums that go when their spans do."""


def touching(incoming: str, number: int | None = None) -> str:
    """The statement that notes what the rows of *incoming* touch; part of their transaction.

    Without the number of their commit (arrivals.py) its sums are computed anew.
    """
    return _SQL["touch"].format(incoming=incoming, number="NULL" if number is None else number)


def prepare(connection: duckdb.DuckDBPyConnection, columns: Sequence[str]) -> None:
    """Make the tables; when what they hold was computed by another definition, compute it anew."""
    connection.execute(_SQL["tables"])
    # DuckDB's `hash` may be another one in the next version.
    parts = [*_SQL.values(), *columns, duckdb.__version__]
    definition = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    if connection.execute("SELECT definition FROM rolled_of").fetchall() == [(definition,)]:
        # Numbers are of one life of the collector.
        connection.execute("UPDATE touched SET number = NULL WHERE number IS NOT NULL")
        return
    for table in ("touched", *SUMS):
        connection.execute(f"DROP TABLE IF EXISTS {table} CASCADE")
    connection.execute(_SQL["tables"])
    connection.execute(_SQL["due"].format(floor=0))
    states = _states("everything", "due", "false")
    made = {
        "rolled_states": states,
        "rolled_trajectories": _shown(states),
        "rolled_rollouts": _rollouts("false"),
    }
    for table, statement in made.items():
        connection.execute(f"CREATE TABLE {table} AS {statement}")
    connection.execute("DELETE FROM rolled_of; DELETE FROM rolled_runs; DROP TABLE due")
    connection.execute("INSERT INTO rolled_of VALUES (?)", [definition])
    connection.execute(touching("everything"))


class Rollups:
    """Keeps the sums of one store; `changed` after a commit, `refresh` or `freshen` to read."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, arrivals: Arrivals) -> None:
        self._connection, self._arrivals = connection, arrivals
        self._lock = threading.Lock()
        self._commits, self._rolled = 1, 0
        self._saved_s, self._saved_at_s = SAVED_S, time.monotonic()
        self._asked_at_s = self._rolled_at_s = -math.inf

    def changed(self) -> None:
        """A commit has touched something."""
        self._commits += 1

    def keep(self) -> None:
        """Refresh if readers come, or much or for long has not been summed up."""
        now_s = time.monotonic()
        many = self._arrivals.rows > MOST_ROWS // 2
        if many or now_s - self._asked_at_s < _ASKED_S or now_s - self._rolled_at_s >= _UNASKED_S:
            self._refresh()

    def refresh(self) -> None:
        """Return when the sums hold every commit before this call."""
        self._asked_at_s = time.monotonic()
        self._refresh()

    def _refresh(self) -> None:
        wanted = self._commits
        if self._rolled >= wanted:
            return
        with self._lock:
            if self._rolled < wanted:
                seen = self._commits
                self._roll()
                self._rolled, self._rolled_at_s = seen, time.monotonic()

    def freshen(self) -> None:
        """Refresh unless readers did so too much lately; upkeep does every second in any case."""
        began_s = self._asked_at_s = time.monotonic()
        self._saved_s += SPEND * (began_s - self._saved_at_s)
        self._saved_s, self._saved_at_s = min(self._saved_s, SAVED_S), began_s
        if self._saved_s > 0:
            self._refresh()
            self._saved_s -= time.monotonic() - began_s

    @contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Nobody else writes to the tables of sums within the block, which may remove spans."""
        with self._lock:
            try:
                yield
            finally:
                self._arrivals.forget()

    def close(self) -> None:
        """Close the cursor."""
        with self._lock:
            self._connection.close()

    def _roll(self) -> None:
        con = self._connection
        con.begin()
        try:
            found = con.execute("SELECT count(*), coalesce(max(number), 0) FROM touched").fetchall()
            count, newest = found[0]
            if count:
                self._compute(*self._arrivals.take(newest))
            con.commit()
        except BaseException:
            # What was taken is lost: the next turn reads it from the store.
            self._arrivals.forget()
            con.rollback()
            raise

    def _compute(self, floor: int, arrived: list[Any]) -> None:
        con = self._connection
        con.execute(_SQL["due"].format(floor=floor))
        rollouts = con.execute(
            "SELECT rollout_id, bool_or(anew), bool_or(of_rollout) FROM due GROUP BY rollout_id"
        ).fetchall()
        if arrived:
            con.register("arrived", pa.concat_tables(arrived))
        try:
            self._sum_up(
                [r[0] for r in rollouts], [r[0] for r in rollouts if r[1]], arrived=bool(arrived)
            )
        finally:
            if arrived:
                con.unregister("arrived")
        self._roll_rollouts([r[0] for r in rollouts if r[2]])
        con.execute(_SQL["widened_runs"])
        con.execute("DROP TABLE due; DELETE FROM touched")

    def _sum_up(self, rollouts: list[str | None], anew: list[str | None], *, arrived: bool) -> None:
        parts = [_kept(_narrowed(rollouts, "s"))]
        if arrived:
            parts.append(_states("arrived", "(FROM due WHERE NOT anew)", "true"))
        if anew:
            parts.append(_states("stored", "(FROM due WHERE anew)", _narrowed(anew)))
        self._replace("rolled_states", rollouts, _merged(" UNION ALL BY NAME ".join(parts)))
        # What is open counts too, but may go again.
        opened = _states("markers", "due", _narrowed(rollouts))
        kept = _kept(_narrowed(rollouts, "s"), anew=True)
        self._replace("rolled_trajectories", rollouts, _shown(f"{kept} UNION ALL BY NAME {opened}"))

    def _roll_rollouts(self, rollouts: list[str | None]) -> None:
        if rollouts:
            self._replace("rolled_rollouts", rollouts, _rollouts(_narrowed(rollouts)), _BY_ROLLOUT)

    def _replace(
        self,
        table: str,
        rollouts: list[str | None],
        statement: str,
        key: Sequence[str] = _BY_TRAJECTORY,
    ) -> None:
        """Put the rows of a SELECT in the place of those that are due."""
        con = self._connection
        con.execute(f"CREATE OR REPLACE TEMP TABLE anew AS {statement}")
        due = "(SELECT DISTINCT run_id, rollout_id FROM due WHERE of_rollout)"
        con.execute(
            f"DELETE FROM {table} r USING {'due' if key == _BY_TRAJECTORY else due} t"
            f" WHERE {' AND '.join(f'r.{k} IS NOT DISTINCT FROM t.{k}' for k in key)}"
            f" AND {_narrowed(rollouts, 'r')}"
        )
        con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM anew; DROP TABLE anew")


def _states(rows: str, whose: str, narrow: str) -> str:
    text = _SQL["states"].replace("{rows}", rows)
    return text.replace("{whose}", whose).replace("{rollouts}", narrow)


def _kept(narrow: str, *, anew: bool = False) -> str:
    """The states of trajectories that are due, by default of those not computed anew."""
    which = "due" if anew else "(FROM due WHERE NOT anew)"
    return (
        f"SELECT s.* FROM rolled_states s SEMI JOIN {which} t ON s.run_id = t.run_id AND"
        " s.rollout_id IS NOT DISTINCT FROM t.rollout_id AND s.trajectory_id = t.trajectory_id"
        f" WHERE {narrow}"
    )


def _merged(states: str) -> str:
    return _SQL["merged"].replace("{states}", states)


def _shown(states: str) -> str:
    return _SQL["rolled_trajectories"].replace("{merged}", _merged(states))


def _rollouts(narrow: str) -> str:
    return _SQL["rolled_rollouts"].replace("{rollouts}", narrow)


def _narrowed(rollouts: list[str | None], table: str = "e") -> str:
    if len(rollouts) > _NAMED_ROLLOUTS:
        return "true"
    return among(f"{table}.rollout_id", rollouts)
