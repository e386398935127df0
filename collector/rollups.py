"""How do lists and quantiles over millions of spans answer in milliseconds?

From tables of sums, one row a trajectory and a rollout. A commit notes which trajectories it
touched, in its own transaction; `refresh` computes those anew from their spans, once for all
readers that wait. What nobody has asked for stays noted, through restarts too.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb

_NAMED_ROLLOUTS: Final = 200
"""With more than this many touched at once the whole table is scanned."""


def _parts() -> dict[str, str]:
    text = Path(__file__).with_suffix(".sql").read_text()
    found = [part.partition("\n") for part in text.split("-- :")[1:]]
    return {name.strip(): body.strip().rstrip(";") for name, _, body in found}


_SQL: Final = _parts()
_ROLLED: Final = {
    "rolled_trajectories": ("run_id", "rollout_id", "trajectory_id"),
    "rolled_rollouts": ("run_id", "rollout_id"),
    "rolled_runs": ("run_id",),
}
"""Each table and what identifies a row of it."""
_TOUCH_ALL: Final = _SQL["touch"].format(incoming="everything")


def touching(incoming: str) -> str:
    """The statement that notes what the rows of *incoming* touch; part of their transaction."""
    return _SQL["touch"].format(incoming=incoming)


def delete_touching(connection: duckdb.DuckDBPyConnection, statement: str) -> None:
    """Run a DELETE and note what its rows touched: what replaces them may say it is another's."""
    gone = connection.sql(
        f"{statement} RETURNING run_id, rollout_id, trajectory_id, start_ns, end_ns"
    ).to_arrow_table()
    if gone.num_rows:
        connection.register("gone", gone)
        try:
            connection.execute(touching("gone"))
        finally:
            connection.unregister("gone")


def prepare(connection: duckdb.DuckDBPyConnection, columns: Sequence[str]) -> None:
    """Make the tables; when what they hold was computed by another definition, compute it anew."""
    connection.execute(_SQL["tables"])
    definition = hashlib.sha256("\n".join([*_SQL.values(), *columns]).encode()).hexdigest()
    if connection.execute("SELECT definition FROM rolled_of").fetchall() == [(definition,)]:
        return
    for table in ("rolled_trajectories", "rolled_rollouts"):
        connection.execute(f"DROP TABLE IF EXISTS {table} CASCADE")
        connection.execute(f"CREATE TABLE {table} AS {_SQL[table].format(rollouts='false')}")
    connection.execute("DELETE FROM rolled_of; DELETE FROM rolled_runs; DELETE FROM touched;")
    connection.execute("INSERT INTO rolled_of VALUES (?)", [definition])
    connection.execute(_TOUCH_ALL)


class Rollups:
    """Keeps the sums of one store; `changed` after each commit, `refresh` before each reading."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._commits, self._rolled = 1, 0

    def changed(self) -> None:
        """A commit has touched something."""
        self._commits += 1

    def refresh(self) -> None:
        """Return when the sums hold every commit before this call."""
        wanted = self._commits
        if self._rolled >= wanted:
            return
        with self._lock:
            if self._rolled < wanted:
                seen = self._commits
                self._roll()
                self._rolled = seen

    @contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Nobody else writes to the tables of sums within the block."""
        with self._lock:
            yield

    def close(self) -> None:
        """Close the cursor."""
        with self._lock:
            self._connection.close()

    def _roll(self) -> None:
        con = self._connection
        con.begin()
        try:
            touched = con.execute("SELECT DISTINCT rollout_id FROM touched").fetchall()
            if touched:
                self._compute([row[0] for row in touched])
            con.commit()
        except BaseException:
            con.rollback()
            raise

    def _compute(self, rollouts: list[str | None]) -> None:
        narrow = _narrowed(rollouts)
        for table, key in _ROLLED.items():
            self._connection.execute(
                f"CREATE OR REPLACE TEMP TABLE anew AS {_filled(table, narrow)}"
            )
            self._connection.execute(
                f"DELETE FROM {table} r USING (SELECT DISTINCT {', '.join(key)} FROM touched) t"
                f" WHERE {' AND '.join(f'r.{k} IS NOT DISTINCT FROM t.{k}' for k in key)}"
            )
            self._connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM anew")
        self._connection.execute("DROP TABLE anew; DELETE FROM touched;")


def _filled(table: str, narrow: str) -> str:
    return _SQL[table].replace("{rollouts}", narrow)


def _narrowed(rollouts: list[str | None]) -> str:
    """Literals reach the zone maps of the scan, a join alone does not."""
    if len(rollouts) > _NAMED_ROLLOUTS:
        return "true"
    named = ["'" + r.replace("'", "''") + "'" for r in rollouts if r is not None]
    tests = [f"e.rollout_id IN ({', '.join(named)})"] if named else []
    tests += ["e.rollout_id IS NULL"] if None in rollouts else []
    return f"({' OR '.join(tests)})"
