"""How do the spans of finished rollouts leave the database for Parquet files, and is it safe?

One file per rollout (zstd, partitioned by run and rollout in its path), written aside, read back
and compared by count and checksum with the rows it was made from, and only then, in one
transaction, listed while the rows are dropped. Spans that come later make a second, `delta` file.
A crash leaves the rows, the file, or both, and what is not listed is swept away at the next start.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import asdict, dataclass
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from heddle.collector.errors import CollectorError
from heddle.collector.sealed import publish, reading
from heddle.collector.store import Store

_ROW_GROUP: Final = 64_000
_OF: Final = "WHERE run_id = ? AND rollout_id = ?"
_PLAIN: Final = "* EXCLUDE (run_id, rollout_id) REPLACE (CAST(attrs::JSON AS VARCHAR) AS attrs)"
_SUMMARY: Final = (
    "SELECT count(*), coalesce(CAST(sum(hash(s)) AS VARCHAR), ''), min(start_ns),"
    f" max(greatest(start_ns, end_ns)), max(received_ns) FROM (SELECT {_PLAIN} FROM {{rows}}) s"
)
LONGEST_NAME: Final = 200
"""Bytes of a run or rollout id, percent-encoded, that can be sealed: a file system takes 255."""
_HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_READY: Final = """
SELECT s.run_id, s.rollout_id
FROM (SELECT run_id, rollout_id, max(received_ns) AS at_ns FROM spans
      WHERE rollout_id IS NOT NULL GROUP BY ALL) s
LEFT JOIN rollout_ends r ON s.run_id = r.run_id AND s.rollout_id = r.rollout_id
WHERE s.at_ns <= CASE WHEN r.end_ns IS NULL THEN least(?, ?) ELSE ? END
    -- A name is a folder's: longer ones and what Hive calls none stay in the database.
    AND strlen(url_encode(s.run_id)) BETWEEN 1 AND {longest}
    AND strlen(url_encode(s.rollout_id)) BETWEEN 1 AND {longest}
    AND '{hive_null}' NOT IN (s.run_id, s.rollout_id)
    AND s.run_id = coalesce(?, s.run_id) AND s.rollout_id = coalesce(?, s.rollout_id)
ORDER BY s.at_ns, s.run_id, s.rollout_id
"""


@dataclass(frozen=True, slots=True)
class SealedFile:
    """One file that was written, verified and listed."""

    run_id: str
    rollout_id: str
    url: str
    columns: str
    rows: int
    bytes: int
    checksum: str
    first_ns: int
    last_ns: int
    received_ns: int
    sealed_ns: int


class NotSealed(CollectorError):
    """The file read back is not what was written; the rows stay where they are."""


def ready(
    store: Store, quiet_s: float, run: str | None = None, rollout: str | None = None
) -> list[tuple[str, str]]:
    """Rollouts with spans in the database and none received for *quiet_s*: finished ones, and those
    so long silent that they are taken as abandoned (a killed trainer, senders that tell no end)."""
    now_ns = time.time_ns()
    until_ns, silent_ns = (now_ns - int(s * 1e9) for s in (quiet_s, store.silent_s))
    with store.reading() as cursor:
        values = [until_ns, silent_ns, until_ns, run, rollout]
        statement = _READY.format(longest=LONGEST_NAME, hive_null=_HIVE_NULL)
        return cursor.execute(statement, values).fetchall()


def holds(store: Store, run: str | None = None, rollout: str | None = None) -> bool:
    """Whether any span of them is there, sealed or not; of all when neither is named."""
    named = [(f"{name}_id", value) for name, value in (("run", run), ("rollout", rollout)) if value]
    of, values = " AND ".join(f"{column} = ?" for column, _ in named), [value for _, value in named]
    ask = "SELECT count(*) FROM (FROM {} SELECT 1 WHERE " + of + " LIMIT 1)"
    with store.reading() as cursor:
        return not named or any(
            cursor.execute(ask.format(table), values).fetchall()[0][0]
            for table in ("spans", "sealed_files")
        )


def seal(store: Store, run: str, rollout: str) -> SealedFile | None:
    """Seal what the database holds of that rollout; None when it holds nothing."""
    with store.reading() as cursor:
        cursor.begin()
        try:
            made = _written(cursor, store, run, rollout)
            if made is not None:
                _flip(cursor, store, made)
        except BaseException:
            _undo(cursor)
            raise
        if made is None:
            cursor.rollback()
        return made


def sweep(store: Store) -> int:
    """Remove files of this collector that no table lists: what a crash left."""
    place = store.place
    with store.reading() as cursor:
        listed = {row[0] for row in cursor.execute("SELECT url FROM sealed_files").fetchall()}
        mine = _mine(cursor)
    found = place.files.glob(f"{place.root}/spans/*/*/*-{mine}-*")
    left = [place.url(path) for path in found if place.url(path) not in listed]
    for url in left:
        place.remove(url)
    return len(left)


def _written(
    cursor: duckdb.DuckDBPyConnection, store: Store, run: str, rollout: str
) -> SealedFile | None:
    rows = f"(SELECT * FROM spans {_OF})"
    summary = cursor.execute(_SUMMARY.format(rows=rows), [run, rollout]).fetchall()[0]
    if not summary[0]:
        return None
    known = cursor.execute(f"SELECT count(*) FROM sealed_files {_OF}", [run, rollout]).fetchall()
    kind = "delta" if known[0][0] else "part"
    name = f"{kind}-{_mine(cursor)}-{uuid.uuid4().hex}.parquet"
    path = store.place.path(run, rollout, name)
    wanted = cursor.sql(
        f"SELECT {_PLAIN} FROM spans {_OF} ORDER BY trajectory_id, start_ns, span_id",
        params=[run, rollout],
    )
    try:
        columns = write(store, path, wanted)
        return _verified(cursor, store, (run, rollout, path, columns), summary)
    except BaseException:
        store.place.remove(store.place.url(path))
        raise


def write(store: Store, path: str, rows: Any) -> str:
    """Write a relation as one Parquet file, aside first; the names of its columns."""
    files = store.place.files
    files.makedirs(path.rpartition("/")[0], exist_ok=True)
    aside = f"{path}.part"
    with rows.to_arrow_reader(_ROW_GROUP) as reader, files.open(aside, "wb") as sink:
        with pq.ParquetWriter(sink, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_table(pa.Table.from_batches([batch], schema=reader.schema))
        columns = ",".join(reader.schema.names)
    files.mv(aside, path)
    return columns


def _verified(
    cursor: duckdb.DuckDBPyConnection,
    store: Store,
    what: tuple[str, str, str, str],
    summary: tuple[Any, ...],
) -> SealedFile:
    run, rollout, path, columns = what
    url = store.place.url(path)
    back = cursor.execute(_SUMMARY.format(rows=reading([url]))).fetchall()[0]
    if back != summary:
        message = (
            f"{url} reads back {back[0]} spans with checksum {back[1]}, expected {summary[0]} with "
            f"{summary[1]}; nothing was dropped"
        )
        raise NotSealed(message)
    size = int(store.place.files.size(path) or 0)
    count, checksum, first_ns, last_ns, received_ns = summary
    return SealedFile(
        run, rollout, url, columns, count, size, checksum, first_ns, last_ns, received_ns,
        time.time_ns(),
    )  # fmt: skip


def _flip(cursor: duckdb.DuckDBPyConnection, store: Store, made: SealedFile) -> None:
    """Drop the rows and list the file: both or neither."""
    try:
        # The writer may not touch these rows in between, or one of the two would fail.
        with store.turn:
            cursor.execute(f"DELETE FROM spans {_OF}", [made.run_id, made.rollout_id])
            values = list(asdict(made).values())
            marks = ", ".join("?" * len(values))
            cursor.execute(f"INSERT INTO sealed_files VALUES ({marks})", values)
            publish(cursor)
            cursor.commit()
    except BaseException:
        store.place.remove(made.url)
        raise


def _mine(cursor: duckdb.DuckDBPyConnection) -> str:
    return str(cursor.execute("SELECT id FROM sealed_by").fetchall()[0][0])


def _undo(cursor: duckdb.DuckDBPyConnection) -> None:
    try:
        cursor.rollback()
    except duckdb.Error:
        # A commit that failed has ended the transaction already.
        return
