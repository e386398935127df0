"""What must a restarted controller still know?

Registered workers, switches and their audit, the active predictor in one SQLite file, committed at
each call; where each live trajectory is and how far it came in a file of lines beside it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.controller.pins import Pin, Pins

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS workers (
    id TEXT PRIMARY KEY, url TEXT NOT NULL, degree INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS switches (
    run TEXT, choice TEXT, policy TEXT NOT NULL, PRIMARY KEY (run, choice));
CREATE TABLE IF NOT EXISTS audit (
    version INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, at_ns INTEGER NOT NULL,
    choice TEXT NOT NULL, before TEXT NOT NULL, after TEXT NOT NULL,
    who TEXT NOT NULL, why TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One switch that changed; `version` counts them all and is 0 until it is journaled."""

    run: str
    at_ns: int
    choice: str
    before: str
    after: str
    who: str
    why: str
    version: int = 0


class Journal:
    """The file at `path`, or memory when there is none."""

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        # The service may be built in one thread and served in another; only one uses it at a time.
        self._db = sqlite3.connect(
            path or ":memory:", isolation_level=None, check_same_thread=False
        )
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_SCHEMA)
        self.where = Pins(path.with_suffix(".pins") if path is not None else None)

    def close(self) -> None:
        """Close the files."""
        self._db.close()
        self.where.close()

    def add_worker(self, worker_id: str, url: str, degree: int) -> None:
        """Remember a registered worker."""
        row = (worker_id, url, degree)
        self._db.execute("INSERT OR REPLACE INTO workers VALUES (?, ?, ?)", row)

    def remove_worker(self, worker_id: str) -> None:
        """Forget it."""
        self._db.execute("DELETE FROM workers WHERE id = ?", (worker_id,))

    def workers(self) -> list[tuple[str, str, int]]:
        """(id, url, degree) of the registered ones, by id."""
        return self._db.execute("SELECT id, url, degree FROM workers ORDER BY id").fetchall()

    def switch(
        self, run: str, in_force: Mapping[str, str], changes: Iterable[Change]
    ) -> list[Change]:
        """Write what is in force and its audit as one; returns the changes with their versions."""
        written: list[Change] = []
        self._db.execute("BEGIN IMMEDIATE")
        rows = [(run, choice, policy) for choice, policy in in_force.items()]
        self._db.executemany("INSERT OR REPLACE INTO switches VALUES (?, ?, ?)", rows)
        for change in changes:
            cursor = self._db.execute(
                "INSERT INTO audit (run, at_ns, choice, before, after, who, why)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    change.run, change.at_ns, change.choice, change.before, change.after,
                    change.who, change.why,
                ),
            )  # fmt: skip
            written.append(_with_version(change, cursor.lastrowid or 0))
        self._db.execute("COMMIT")
        return written

    def switches(self) -> dict[str, dict[str, str]]:
        """Run ("" for every run without its own) -> choice -> policy."""
        found: dict[str, dict[str, str]] = {}
        for run, choice, policy in self._db.execute("SELECT run, choice, policy FROM switches"):
            found.setdefault(run, {})[choice] = policy
        return found

    def audit(self, limit: int = 200) -> list[Change]:
        """The newest changes first."""
        rows = self._db.execute(
            "SELECT run, at_ns, choice, before, after, who, why, version FROM audit"
            " ORDER BY version DESC LIMIT ?",
            (limit,),
        )
        names = ("run", "at_ns", "choice", "before", "after", "who", "why", "version")
        return [Change(**dict(zip(names, row, strict=True))) for row in rows]

    def pin(self, pin: Pin) -> None:
        """Remember where a live trajectory is."""
        self.where.put(pin)

    def unpin(self, run: str, trajectory: str) -> None:
        """It finished."""
        self.where.drop(run, trajectory)

    def pins(self) -> list[Pin]:
        """Of every live trajectory, as they were remembered."""
        return self.where.all()

    def set_fact(self, name: str, value: str) -> None:
        """Remember one named value, as the active predictor."""
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def fact(self, name: str) -> str | None:
        """That value, if it was ever set."""
        rows = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchall()
        return rows[0][0] if rows else None


def _with_version(change: Change, version: int) -> Change:
    return Change(
        run=change.run,
        at_ns=change.at_ns,
        choice=change.choice,
        before=change.before,
        after=change.after,
        who=change.who,
        why=change.why,
        version=version,
    )
