"""How is the collector's database file opened, and what if it is held, damaged or too new?

A damaged file is set aside under another name, never deleted, and a fresh one opened in its place.
"""

from __future__ import annotations

import logging
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from heddle.collector import conventions as c
from heddle.collector import rollups, sealed
from heddle.collector.columns import SCHEMA
from heddle.collector.errors import CollectorError, StoreHeld, StoreTooNew
from heddle.collector.floods import TABLE_SQL as FOLDS_SQL

SCHEMA_VERSION: Final = 2
SILENT_S: Final = 3_600
"""A trajectory with no end is abandoned when nothing of it came for that long: tools take minutes,
and a span that comes after all makes it running again."""
TABLES: Final = ("spans", "markers")
_SQL: Final = {
    pa.string(): "VARCHAR",
    pa.int64(): "BIGINT",
    pa.int8(): "TINYINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
}
# What DuckDB 2.0 says of a file that is cut short, overwritten, or no database at all.
_DAMAGED: Final = (
    "not a valid DuckDB database",
    "Corrupt database file",
    "Could not read enough bytes",
    "checksum",
    "replaying WAL",
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection to a file with the current schema; `notice` says what was set aside, if so."""

    connection: duckdb.DuckDBPyConnection
    notice: str = ""


def open_file(path: Path, *, memory_limit: str, threads: int, silent_s: float = SILENT_S) -> Opened:
    """Open or make the file; StoreHeld, StoreTooNew or CollectorError when that must not be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": memory_limit,
        "threads": threads,
        "preserve_insertion_order": False,
        # Merging row groups made every third checkpoint of 5 million spans take 0.7 to 3 s, with
        # all commits waiting; without it each takes 0.1 s. `Store.tidy` merges when nothing comes.
        "max_vacuum_tasks": 0,
        # DuckDB 2.0.1 packs sorted integers by statistics that are wrong where one side of a FULL
        # JOIN is empty: 768 steps of a rollout that nobody announced came back as 0, modulo 256.
        "disabled_optimizers": "compressed_materialization",
        "allowed_configs": ["max_vacuum_tasks"],
        # A reader's SQL must not find Python variables of whoever runs it.
        "python_enable_replacements": False,
    }
    try:
        return _ready(path, config, silent_s)
    except duckdb.Error as error:
        if not any(sign in str(error) for sign in _DAMAGED):
            raise _refusal(path, error) from error
        notice = _set_aside(path, error)
    return Opened(_ready(path, config, silent_s).connection, notice)


def _ready(
    path: Path, config: dict[str, str | bool | int | float | list[str]], silent_s: float
) -> Opened:
    connection = duckdb.connect(str(path), config=config)
    try:
        notice = _keep_a_copy(connection, path)
        # One transaction: a process killed here leaves the file as it was; one fsync, not twelve.
        connection.begin()
        _prepare(connection, path, silent_s)
        connection.commit()
    except BaseException:
        connection.close()
        raise
    return Opened(connection, notice)


def _version(connection: duckdb.DuckDBPyConnection) -> int | None:
    found = connection.execute(
        "SELECT 1 FROM duckdb_tables() WHERE table_name = 'heddle_schema'"
    ).fetchall()
    if not found:
        return None
    rows = connection.execute("SELECT max(version) FROM heddle_schema").fetchall()
    return rows[0][0]


def _keep_a_copy(connection: duckdb.DuckDBPyConnection, path: Path) -> str:
    """Of a file that an earlier Heddle wrote, before it is changed; says where the copy is."""
    version = _version(connection)
    if version is None or version >= SCHEMA_VERSION:
        return ""
    connection.execute("CHECKPOINT")
    kept = path.with_name(f"{path.name}.schema-{version}")
    shutil.copyfile(path, kept)
    notice = (
        f"{path} was brought from schema {version} to {SCHEMA_VERSION}; as it was it is kept as "
        f"{kept.name}"
    )
    _log.warning(notice)
    return notice


def _prepare(connection: duckdb.DuckDBPyConnection, path: Path, silent_s: float) -> None:
    connection.execute(
        "CREATE TABLE IF NOT EXISTS heddle_schema (version INTEGER, conventions VARCHAR);"
        "CREATE TABLE IF NOT EXISTS heartbeat (at_ns BIGINT);"
        f"{FOLDS_SQL}"
    )
    version = _version(connection)
    if version is not None and version > SCHEMA_VERSION:
        message = (
            f"{path} was written by a later Heddle (schema {version}, this one knows "
            f"{SCHEMA_VERSION}): upgrade Heddle or choose another data directory"
        )
        raise StoreTooNew(message)
    for table in TABLES:
        connection.execute(_create(table))
        _add_columns(connection, table)
    connection.execute(
        f"CREATE OR REPLACE MACRO silent_before() AS epoch_ns(now()) - {silent_s * 1e9:.0f}::BIGINT"
    )
    sealed.prepare(connection)
    rollups.prepare(connection, list(_columns()))
    sealed.publish(connection)
    of_spans = _sql_file("schema_spans.sql")
    connection.execute(of_spans.format(of="", stated="stated"))
    connection.execute(of_spans.format(of="ended_", stated="ended"))
    connection.execute(_sql_file("schema.sql"))
    if version is None or version < SCHEMA_VERSION:
        connection.execute("INSERT INTO heddle_schema VALUES (?, ?)", [SCHEMA_VERSION, c.VERSION])
    if version is None:
        connection.execute("INSERT INTO heartbeat VALUES (0)")


def _sql_file(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


def _create(table: str) -> str:
    columns = ", ".join(f'"{name}" {kind}' for name, kind in _columns().items())
    return f"CREATE TABLE IF NOT EXISTS {table} ({columns})"


def _columns() -> dict[str, str]:
    return {f.name: "VARIANT" if f.name == "attrs" else _SQL[f.type] for f in SCHEMA}


def _add_columns(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    """An attribute that got a column after the file was made."""
    rows = connection.execute(f"DESCRIBE {table}").fetchall()
    present = {str(row[0]) for row in rows}
    for name, kind in _columns().items():
        if name not in present:
            connection.execute(f'ALTER TABLE {table} ADD COLUMN "{name}" {kind}')


def _refusal(path: Path, error: duckdb.Error) -> CollectorError:
    text = str(error)
    if "Conflicting lock" in text or "Could not set lock" in text:
        holder = text.split("(PID ")[1].split(")")[0] if "(PID " in text else "unknown"
        message = (
            f"another process holds {path} (PID {holder}): stop it, or give this collector "
            "another data directory"
        )
        return StoreHeld(message)
    return CollectorError(f"{path} cannot be opened: {text.splitlines()[0]}")


def _set_aside(path: Path, error: duckdb.Error) -> str:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    kept = path.with_name(f"{path.name}.corrupt-{stamp}")
    number = 1
    while kept.exists():
        kept = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
        number += 1
    path.rename(kept)
    log = path.with_name(path.name + ".wal")
    if log.exists():
        log.rename(kept.with_name(kept.name + ".wal"))
    reason = str(error).splitlines()[0]
    notice = f"{path} was damaged ({reason}); it is kept as {kept.name} and a fresh file is in use"
    _log.error(notice)
    return notice
