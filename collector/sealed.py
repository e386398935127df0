"""Which Parquet files hold the spans of sealed rollouts, and how do queries see them?

`sealed_files` lists them; the view `sealed` reads exactly those, the partition columns from their
paths, so that a filter on run or rollout opens the files of that rollout alone; `stored` is
the spans of the database and those, `everything` has the markers too, `stated` says of each whether
it is running, finished or abandoned, `ended` the same without the markers. Files that another
collector put into the same data set are not listed here: it answers for them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import quote

import duckdb
import fsspec

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS sealed_files (
    run_id VARCHAR, rollout_id VARCHAR, url VARCHAR, columns VARCHAR, rows BIGINT, bytes BIGINT,
    checksum VARCHAR, first_ns BIGINT, last_ns BIGINT, received_ns BIGINT, sealed_ns BIGINT
);
CREATE TABLE IF NOT EXISTS sealed_by (id VARCHAR);
"""
# Every level of `*` costs 2 ms of planning in each query that reads the view, so these are flat,
# and a table that holds nothing is left out.
_STATED: Final = (
    "SELECT *, CASE WHEN end_ns IS NOT NULL THEN 'finished'"
    " WHEN received_ns < silent_before() THEN 'abandoned' ELSE 'running' END AS state FROM {}"
)
"""A span as sent; one without an end (some senders send it twice) is abandoned in silence alone."""
_OPEN: Final = """
SELECT e.*,
    CASE WHEN r.end_ns IS NOT NULL OR s.run_id IS NOT NULL THEN 'abandoned' ELSE 'running' END
        AS state
FROM markers e
LEFT JOIN rolled_rollouts r ON e.run_id = r.run_id AND e.rollout_id = r.rollout_id
LEFT JOIN rolled_trajectories s ON e.run_id = s.run_id AND e.trajectory_id = s.trajectory_id
    AND e.rollout_id IS NOT DISTINCT FROM s.rollout_id AND s.heard_ns < silent_before()
"""
"""A start marker is running, or abandoned once its rollout ended or its trajectory is silent."""
_EMPTY: Final = "SELECT * FROM spans WHERE false"


def prepare(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the tables and the views; `stated` waits for the tables of sums."""
    connection.execute(_TABLES)
    if not connection.execute("SELECT id FROM sealed_by").fetchall():
        connection.execute("INSERT INTO sealed_by VALUES (?)", [uuid.uuid4().hex[:12]])
    publish(connection, ("stored", "everything"))


def publish(
    connection: duckdb.DuckDBPyConnection,
    wanted: Sequence[str] = ("stored", "everything", "stated", "ended"),
) -> None:
    """Make the views read what the table lists; part of the caller's transaction."""
    # Files of equal columns are read together: the first one's footer speaks for all of them.
    groups = connection.execute(
        "SELECT columns, list(url ORDER BY url) FROM sealed_files GROUP BY columns ORDER BY columns"
    ).fetchall()
    parts = [_EMPTY, *(f"SELECT * FROM {reading(urls)}" for _, urls in groups)]
    connection.execute(f"CREATE OR REPLACE VIEW sealed AS {' UNION ALL BY NAME '.join(parts)}")
    stored = ["spans", *(["sealed"] if groups else [])]
    ended = [_STATED.format(table) for table in stored]
    views = {
        "stored": [f"SELECT * FROM {table}" for table in stored],
        "everything": [f"SELECT * FROM {table}" for table in ("markers", *stored)],
        "stated": [_OPEN, *ended],
        "ended": ended,
    }
    for view in wanted:
        union = " UNION ALL BY NAME ".join(views[view])
        connection.execute(f"CREATE OR REPLACE VIEW {view} AS {union}")


def reading(urls: list[str]) -> str:
    """A FROM clause for these files: the columns of `spans`."""
    listed = ", ".join(literal(url) for url in urls)
    return (
        "(SELECT * REPLACE (attrs::JSON::VARIANT AS attrs) FROM"
        f" read_parquet([{listed}], hive_partitioning = true, hive_types_autocast = false))"
    )


def literal(text: str) -> str:
    """A SQL string."""
    return "'" + text.replace("'", "''") + "'"


def among(column: str, values: Iterable[str | None]) -> str:
    """The condition that a column holds one of these; literals reach the zone maps of a scan, a
    join alone does not."""
    values = list(values)
    named = sorted({literal(value) for value in values if value is not None})
    tests = [f"{column} IN ({', '.join(named)})"] if named else []
    tests += [f"{column} IS NULL"] if None in values else []
    return f"({' OR '.join(tests)})"


class Place:
    """The root of the data set: a folder, or any fsspec URL."""

    def __init__(self, url: str) -> None:
        found = fsspec.core.url_to_fs(url)
        self.files: Any = found[0]
        self.root = str(found[1]).rstrip("/")
        self.is_local = self.files.protocol in ("file", ("file", "local"))
        protocol = self.files.protocol
        first = protocol if isinstance(protocol, str) else protocol[0]
        self._prefix = "" if self.is_local else f"{first}://"

    def path(self, run: str, rollout: str, name: str) -> str:
        """Where a file of that rollout goes, as the file system names it."""
        parts = f"run_id={quote(run, safe='')}/rollout_id={quote(rollout, safe='')}"
        return f"{self.root}/spans/{parts}/{name}"

    def url(self, path: str) -> str:
        """As DuckDB names it."""
        return self._prefix + path

    def path_of(self, url: str) -> str:
        """Back from DuckDB's name."""
        return url.removeprefix(self._prefix)

    def remove(self, url: str) -> None:
        """Delete a file, and its folders once they are empty."""
        path = self.path_of(url)
        if self.files.exists(path):
            self.files.rm_file(path)
        folder = path.rpartition("/")[0]
        while folder.startswith(f"{self.root}/spans/") and not self.files.ls(folder):
            self.files.rmdir(folder)
            folder = folder.rpartition("/")[0]

    def lock_down(self, connection: duckdb.DuckDBPyConnection) -> None:
        """From here on no statement reaches a file outside this place, nor a setting."""
        if not self.is_local:
            connection.register_filesystem(self.files)
        allowed = literal(self.url(self.root) + "/")
        connection.execute(
            f"SET allowed_directories = [{allowed}]; SET enable_external_access = false;"
            "SET lock_configuration = true"
        )
