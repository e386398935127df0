"""How does a reader's own SELECT run without harming the collector?

In a read-only transaction on a cursor of its own, interrupted at the time limit, cut at a number of
rows and of bytes; the answer says when it was cut. Types that other programs do not know come as
text, VARIANT and MAP as JSON; a HUGEINT (any sum of integers) as a 64-bit integer where it is one.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import pyarrow as pa

from heddle.collector.errors import QueryRefused
from heddle.collector.sql_guard import checked

DIGITS: Final = 38
"""Of a DECIMAL; frames round what has one more."""
# DuckDB's own: a batch of attributes of 5 MB each is gigabytes before its size can be looked at.
BATCH_ROWS: Final = 2_048
_JSON: Final = re.compile(r"\b(VARIANT|MAP)\b")
_STRANGE: Final = re.compile(
    r"\b(INTERVAL|BLOB|BIT|BIGNUM|UNION|GEOMETRY|UHUGEINT|TIME WITH TIME ZONE)\b"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one SELECT may take."""

    seconds: float = 10.0
    rows: int = 1_000_000
    size_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class Selected:
    """The rows, and the sentence that says so when there are more."""

    table: Any
    truncated: str = ""


def select(cursor: duckdb.DuckDBPyConnection, text: str, limits: Limits) -> Selected:
    """Run one SELECT; QueryRefused when it may not, cannot, or takes too long."""
    statement = checked(cursor, text)
    try:
        with _bounded(cursor, limits.seconds):
            return _read(cursor, statement, limits)
    except duckdb.InterruptException as error:
        message = f"the query took longer than {limits.seconds:g} s and was interrupted"
        raise QueryRefused(message) from error
    except duckdb.Error as error:
        message = f"the query failed: {str(error).splitlines()[0]}"
        raise QueryRefused(message) from error


@contextmanager
def _bounded(cursor: duckdb.DuckDBPyConnection, seconds: float) -> Generator[None, None, None]:
    timer = threading.Timer(seconds, cursor.interrupt)
    timer.daemon = True
    cursor.execute("BEGIN TRANSACTION READ ONLY")
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        cursor.rollback()


def _read(cursor: duckdb.DuckDBPyConnection, statement: str, limits: Limits) -> Selected:
    rows = cursor.sql(_readable(cursor, statement))
    with rows.to_arrow_reader(BATCH_ROWS) as reader:
        return _gathered(reader, limits)


def _readable(cursor: duckdb.DuckDBPyConnection, statement: str) -> str:
    described = cursor.execute(f"DESCRIBE {statement}").fetchall()
    casts = ", ".join(filter(None, (_cast(str(row[0]), str(row[1])) for row in described)))
    if not casts:
        return statement
    # On a line of its own, for a statement that ends in a comment.
    return f"SELECT * REPLACE ({casts}) FROM ({statement}\n)"


def _cast(name: str, kind: str) -> str:
    """A column as text, where its type or one inside it is none that others know; else empty."""
    quoted = name.replace('"', '""')
    if _JSON.search(kind):
        return f'CAST(CAST("{quoted}" AS JSON) AS VARCHAR) AS "{quoted}"'
    return f'CAST("{quoted}" AS VARCHAR) AS "{quoted}"' if _STRANGE.search(kind) else ""


def _narrowed(table: Any) -> Any:
    """DuckDB hands a HUGEINT over as DECIMAL(38, 0), which most programs read as text."""
    for place, field in enumerate(table.schema):
        if field.type == pa.decimal128(38, 0):
            try:
                whole = table.column(place).cast(pa.int64())
            except pa.ArrowInvalid:
                # Beyond 64 bits: every digit is kept, of 39 as text.
                whole = table.column(place).cast(pa.string())
                if all(len(said.lstrip("-")) <= DIGITS for said in whole.to_pylist() if said):
                    continue
            table = table.set_column(place, field.name, whole)
    return table


def _gathered(reader: Any, limits: Limits) -> Selected:
    batches: list[Any] = []
    rows = size_bytes = 0
    for batch in reader:
        if rows + batch.num_rows > limits.rows:
            batches.append(batch.slice(0, limits.rows - rows))
            return _cut(batches, reader.schema, f"{limits.rows:,} rows")
        batches.append(batch)
        rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
        if size_bytes > limits.size_bytes:
            return _cut(batches, reader.schema, f"{limits.size_bytes:,} bytes")
    return Selected(_narrowed(pa.Table.from_batches(batches, schema=reader.schema)))


def _cut(batches: list[Any], schema: Any, bound: str) -> Selected:
    table = _narrowed(pa.Table.from_batches(batches, schema=schema))
    said = f"only the first {table.num_rows:,} rows are here: the limit is {bound}"
    return Selected(table, said)
