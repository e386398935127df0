"""How does old data go, by age, by size and by name, so that the disk is really free again?

What is sealed goes by deleting its file; what is still in the database goes row by row, and later
spans use its space again: the database file itself does not shrink. Sums go with the spans they
were computed from. Age is the time the collector received a span, by its own clock: a sped-up fleet
stamps times of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import duckdb

from heddle.collector.rollups import SUMS
from heddle.collector.sealed import publish, reading
from heddle.collector.sealing import write
from heddle.collector.store import Store

_OF: Final = "run_id = ? AND rollout_id IS NOT DISTINCT FROM ?"
_SILENT: Final = """
SELECT run_id, rollout_id FROM (SELECT run_id, rollout_id, received_ns FROM spans
    UNION ALL SELECT run_id, rollout_id, received_ns FROM markers)
GROUP BY ALL HAVING max(received_ns) < ?
"""
_FORGET_RUNS: Final = """
DELETE FROM rolled_runs WHERE run_id NOT IN (
    SELECT run_id FROM rolled_trajectories UNION SELECT run_id FROM rolled_rollouts
    UNION SELECT run_id FROM spans UNION SELECT run_id FROM markers
)
"""


@dataclass(frozen=True, slots=True)
class Gone:
    """What a pass removed."""

    files: int = 0
    file_bytes: int = 0
    spans: int = 0


def expire(store: Store, before_ns: int) -> Gone:
    """Remove what was received before that instant: whole files, and silent rollouts."""
    with _removing(store) as cursor:
        old = _files(cursor, "received_ns < ?", [before_ns])
        silent = cursor.execute(_SILENT, [before_ns]).fetchall()
        spans = sum(_drop_rows(cursor, run, rollout) for run, rollout in silent)
        _drop_files(cursor, old)
    return _unlink(store, old, spans)


def shrink(store: Store, most_bytes: int) -> Gone:
    """Remove the oldest sealed files until database and files together hold at most that much."""
    with _removing(store) as cursor:
        excess = disk_bytes(store, cursor) - most_bytes
        chosen: list[tuple[Any, ...]] = []
        for file in _files(cursor, "true", []):
            if excess <= 0:
                break
            chosen.append(file)
            excess -= file[3]
        _drop_files(cursor, chosen)
    return _unlink(store, chosen, 0)


def disk_bytes(store: Store, cursor: duckdb.DuckDBPyConnection) -> int:
    """The database with its log, and every sealed file listed."""
    log = store.path.with_name(store.path.name + ".wal")
    own = sum(path.stat().st_size for path in (store.path, log) if path.exists())
    listed = cursor.execute("SELECT coalesce(sum(bytes), 0)::BIGINT FROM sealed_files").fetchall()
    return own + int(listed[0][0])


def delete_trajectory(store: Store, run: str, trajectory: str) -> Gone:
    """Delete one trajectory from the database, the sums and every sealed file of its rollouts.

    Its spans are unknown afterwards: an import brings them back, and so does a sender's retry.
    """
    replaced: list[tuple[Any, ...]] = []
    gone: list[Any] = []
    with _removing(store, gone) as cursor:
        gone += _delete_hot(cursor, run, trajectory)
        for file in _files(cursor, "run_id = ?", [run]):
            left = _rewrite(cursor, store, file, trajectory)
            gone += left
            replaced += [file] if left else []
    spans = sum(ids.num_rows for ids in gone)
    _unlink(store, replaced, 0)
    # What was deleted shall not wait in the log or the file.
    store.tidy()
    return Gone(len(replaced), sum(file[3] for file in replaced), spans)


def _delete_hot(cursor: duckdb.DuckDBPyConnection, run: str, trajectory: str) -> list[Any]:
    """Ids of what went: also spans of its trace that name no trajectory, for they carry what it
    said."""
    whose = (
        "run_id = ? AND (trajectory_id = ? OR (trajectory_id IS NULL AND trace_id IN (SELECT"
        " trace_id FROM everything WHERE run_id = ? AND trajectory_id = ?)))"
    )
    values = [run, trajectory, run, trajectory]
    ids = [
        cursor.sql(
            f"DELETE FROM {table} WHERE {whose} RETURNING trace_id, span_id", params=values
        ).to_arrow_table()
        for table in ("markers", "spans")
    ]
    for table in ("rolled_states", "rolled_trajectories", "touched"):
        cursor.execute(
            f"DELETE FROM {table} WHERE run_id = ? AND trajectory_id = ?", [run, trajectory]
        )
    return ids


def _rewrite(
    cursor: duckdb.DuckDBPyConnection, store: Store, file: tuple[Any, ...], trajectory: str
) -> list[Any]:
    """Put a file without the trajectory in the place of one with it; ids of what went."""
    run, rollout, url, _, rows = file
    keeps = (
        "(trajectory_id IS DISTINCT FROM ? AND (trajectory_id IS NOT NULL"
        f" OR trace_id NOT IN (SELECT trace_id FROM {reading([url])} WHERE trajectory_id = ?)))"
    )
    kept, values = f"FROM {reading([url])} WHERE {keeps}", [trajectory, trajectory]
    gone = f"SELECT trace_id, span_id FROM {reading([url])} WHERE NOT {keeps}"
    ids = cursor.sql(gone, params=values).to_arrow_table()
    left = rows - ids.num_rows
    if left == rows:
        return []
    cursor.execute("DELETE FROM sealed_files WHERE url = ?", [url])
    if left:
        name = url.rpartition("/")[2].rpartition("-")[0] + f"-{uuid.uuid4().hex}.parquet"
        path = store.place.path(run, rollout, name)
        plain = "* EXCLUDE (run_id, rollout_id) REPLACE (CAST(attrs::JSON AS VARCHAR) AS attrs)"
        columns = write(store, path, cursor.sql(f"SELECT {plain} {kept}", params=values))
        _list(cursor, store, (run, rollout, path, columns))
    return [ids]


def _list(cursor: duckdb.DuckDBPyConnection, store: Store, what: tuple[str, str, str, str]) -> None:
    run, rollout, path, columns = what
    url = store.place.url(path)
    size = int(store.place.files.size(path) or 0)
    cursor.execute(
        "INSERT INTO sealed_files SELECT ?, ?, ?, ?, count(*), ?, '', min(start_ns),"
        " max(greatest(start_ns, end_ns)), max(received_ns), epoch_ns(now())"
        f" FROM {reading([url])}",
        [run, rollout, url, columns, size],
    )


def _files(
    cursor: duckdb.DuckDBPyConnection, where: str, values: list[Any]
) -> list[tuple[Any, ...]]:
    """Run, rollout, URL, bytes and rows of listed files, the oldest first."""
    return cursor.execute(
        f"SELECT run_id, rollout_id, url, bytes, rows FROM sealed_files WHERE {where}"
        " ORDER BY received_ns, url",
        values,
    ).fetchall()


def _drop_rows(cursor: duckdb.DuckDBPyConnection, run: str, rollout: str | None) -> int:
    values = [run, rollout]
    spans = cursor.execute(f"DELETE FROM spans WHERE {_OF}", values).fetchall()[0][0]
    for table in ("markers", "touched", *SUMS):
        cursor.execute(f"DELETE FROM {table} WHERE {_OF}", values)
    return spans


def _drop_files(cursor: duckdb.DuckDBPyConnection, files: list[tuple[Any, ...]]) -> None:
    for run, rollout, url, *_ in files:
        cursor.execute("DELETE FROM sealed_files WHERE url = ?", [url])
        for table in SUMS:
            # Sums of a rollout stay while any of its spans do.
            cursor.execute(
                f"DELETE FROM {table} WHERE {_OF} AND NOT EXISTS (SELECT 1 FROM sealed_files f"
                f" WHERE f.run_id = {table}.run_id AND f.rollout_id = {table}.rollout_id)",
                [run, rollout],
            )


@contextmanager
def _removing(
    store: Store, gone: list[Any] | None = None
) -> Generator[duckdb.DuckDBPyConnection, None, None]:
    """One transaction while nobody writes: what fails within it has removed nothing. Spans whose
    ids are put into *gone* are taken again."""
    with store.reading() as cursor, store.rollups.paused(), store.turn:
        cursor.begin()
        try:
            yield cursor
            publish(cursor)
            cursor.execute(_FORGET_RUNS)
            cursor.commit()
        except BaseException:
            cursor.rollback()
            raise
        for ids in gone or ():
            store.forget(ids)


def _unlink(store: Store, files: list[tuple[Any, ...]], spans: int) -> Gone:
    for file in files:
        store.place.remove(file[2])
    return Gone(len(files), sum(file[3] for file in files), spans)
