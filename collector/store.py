"""How do spans reach the disk, and how does anyone read them?

One DuckDB file, one writer thread with group commit, a cursor per reader. `append` returns a future
that is done once the spans are durable. What waits for the disk is bounded by bytes.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from heddle.collector.columns import SCHEMA, Columns, Flood, Rows
from heddle.collector.commit import Committer
from heddle.collector.errors import CollectorError, Overloaded, StoreUnwritable, Unstorable
from heddle.collector.rollups import Rollups
from heddle.collector.sealed import Place
from heddle.collector.store_file import SILENT_S, open_file
from heddle.collector.timings import Timings

FILE_NAME: Final = "heddle.duckdb"
# Commits begin no closer than this: a lone one does not wait, one that follows waits for company.
WINDOW_S: Final = 0.05
MAX_ROWS: Final = 20_000
BOUND_BYTES: Final = 64 << 20
_TROUBLED_S: Final = 60.0
_DATA_ERRORS: Final = (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.DataError)
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Item:
    """One request waiting for the disk; no spans ask only whether writing works."""

    spans: Any
    size_bytes: int
    done: Future[int] = field(default_factory=Future[int])


class Store:
    """Owns the file; `close` commits what it holds."""

    def __init__(
        self,
        path: Path,
        *,
        memory_limit: str = "1GB",
        threads: int = 2,
        bound_bytes: int = BOUND_BYTES,
        window_s: float = WINDOW_S,
        sealed_url: str | None = None,
        silent_s: float = SILENT_S,
    ) -> None:
        self._memory_limit, self._threads, self.silent_s = memory_limit, threads, silent_s
        self.path, self.notice = path, ""
        self.bound_bytes = bound_bytes
        self.waiting_bytes = 0
        self.stored = self.duplicates = self.failures = self.reopened = self.tidied = 0
        self.newest_ns = 0
        self.commits = Timings()
        self._window_s = window_s
        self.place = Place(sealed_url or str(path.parent.absolute() / "sealed"))
        self.turn = threading.Lock()
        self._queue: queue.Queue[_Item | None] = queue.Queue()
        self._lock = threading.Lock()
        self._open()
        self._closed = self._broken = False
        self._trouble, self._troubled_s = "", 0.0
        self._began_s = self._fed_s = -math.inf
        self._thread = threading.Thread(target=self._run, name="heddle-writer", daemon=True)
        self._thread.start()

    @property
    def folded(self) -> int:
        """Slices of floods counted so far."""
        return self._committer.folds.counted

    def forget(self, ids: Any) -> None:
        """Take spans with those ids (a table of trace_id, span_id) again; within `turn`."""
        self._committer.forget(ids)

    def append(self, spans: Any, size_bytes: int) -> Future[int]:
        """Queue Rows, Columns or a table of columns.SCHEMA; the future is done once durable.

        Overloaded when the bytes would pass the bound; a request alone is always taken.
        """
        with self._lock:
            if self._closed:
                message = "the collector is shutting down"
                raise StoreUnwritable(message)
            waiting = self.waiting_bytes
            if waiting and waiting + size_bytes > self.bound_bytes:
                raise Overloaded(waiting, self.bound_bytes)
            self.waiting_bytes = waiting + size_bytes
            item = _Item(spans, size_bytes)
            # A sender that hangs up must not cancel what the writer is about to answer.
            item.done.set_running_or_notify_cancel()
            self._queue.put(item)
        return item.done

    def probe(self) -> Future[int]:
        """Write a heartbeat the way spans are written."""
        return self.append(None, 0)

    @contextmanager
    def reading(self, *, fresh: bool = True) -> Generator[duckdb.DuckDBPyConnection, None, None]:
        """A cursor for one reader in one thread; the sums it reads hold every commit so far.

        Not fresh, they may be a second old while spans arrive fast.
        """
        if fresh:
            self.rollups.refresh()
        else:
            self.rollups.freshen()
        with self._lock:
            cursor = self._connection.cursor()
        try:
            yield cursor
        finally:
            cursor.close()

    @property
    def trouble(self) -> str:
        """Why spans could not be written a moment ago, none having been written since.

        A heartbeat of one row still finds room on a disk that no batch of spans fits on.
        """
        return self._trouble if time.monotonic() - self._troubled_s < _TROUBLED_S else ""

    @property
    def quiet_s(self) -> float:
        """Since when no spans have come."""
        return time.monotonic() - self._fed_s

    def tidy(self) -> None:
        """Write what was deleted out of the file and merge what many commits made.

        With millions of spans it takes seconds in which commits wait, so not while spans come.
        """
        with self.reading() as cursor, self.turn:
            cursor.execute("SET max_vacuum_tasks = 100")
            try:
                # A checkpoint with nothing to write would leave everything as it is.
                cursor.execute("UPDATE heartbeat SET at_ns = ?", [time.time_ns()])
                cursor.execute("CHECKPOINT")
            finally:
                cursor.execute("SET max_vacuum_tasks = 0")
        self.tidied = self.stored

    def close(self) -> None:
        """Commit what waits, then close the file."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join()
        self._committer.close()
        self.rollups.close()
        self._connection.close()

    def _open(self) -> None:
        opened = open_file(
            self.path,
            memory_limit=self._memory_limit,
            threads=self._threads,
            silent_s=self.silent_s,
        )
        self._connection = opened.connection
        self.notice = opened.notice or self.notice
        self.place.lock_down(opened.connection)
        self._committer = Committer(opened.connection.cursor())
        self.rollups = Rollups(opened.connection.cursor(), self._committer.arrivals)
        # Also imports what pyarrow imports at first use (pandas: 1.8 s): now, not in a request.
        self._committer.commit(SCHEMA.empty_table())

    def _reopen(self) -> None:
        """After an error that leaves DuckDB refusing everything; readers get their next cursor."""
        self.reopened += 1
        with self._lock:
            for part in (self._committer, self.rollups, self._connection):
                try:
                    part.close()
                except duckdb.Error:
                    _log.warning("closing %s after a fatal error failed", self.path)
            self._open()

    def _run(self) -> None:
        going = True
        while going:
            items, going = self._gather()
            if items:
                self._began_s = time.monotonic()
                self._commit(items)

    def _gather(self) -> tuple[list[_Item], bool]:
        """Wait for one request, then for company until the window or the rows are full."""
        first = self._queue.get()
        if first is None:
            return [], False
        items, rows = [first], _rows(first)
        while rows < MAX_ROWS:
            wait_s = self._began_s + self._window_s - time.monotonic()
            try:
                item = self._queue.get(timeout=wait_s) if wait_s > 0 else self._queue.get_nowait()
            except queue.Empty:
                break
            if item is None:
                return items, False
            items.append(item)
            rows += _rows(item)
        return items, True

    def _commit(self, items: list[_Item]) -> None:
        try:
            if self._broken:
                self._reopen()
                self._broken = False
            self._store(items)
        except Exception as error:  # noqa: BLE001 (the writer must live; senders are told, counted)
            if len(items) > 1:
                # One request must not take its neighbours with it.
                for item in items:
                    self._commit([item])
                return
            self._fail(items[0], error)

    def _store(self, items: list[_Item]) -> None:
        asked = [item.spans for item in items if item.spans is not None]
        table, floods = _together(asked)
        # Sealing, retention and deletion take turns with the writer where rows go.
        began = time.monotonic()
        with self.turn:
            stored = self._committer.commit(table, floods, heartbeat=len(asked) < len(items))
        self.commits.add(time.monotonic() - began)
        self.newest_ns = max(self.newest_ns, _newest(table))
        self.rollups.changed()
        if asked:
            self._fed_s, self._trouble = time.monotonic(), ""
        self.stored += stored
        self.duplicates += table.num_rows + len(floods) - stored
        for item in items:
            self._release(item)
            item.done.set_result(_rows(item))

    def _fail(self, item: _Item, error: Exception) -> None:
        self.failures += 1
        self._broken = self._broken or _is_fatal(error)
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        _log.error("a commit to %s failed: %s", self.path, first)
        told: CollectorError = StoreUnwritable(f"{self.path} cannot be written: {first}")
        if isinstance(error, _DATA_ERRORS):
            told = Unstorable(f"these spans cannot be stored: {first}")
        elif item.spans is not None:
            self._trouble, self._troubled_s = str(told), time.monotonic()
        self._release(item)
        item.done.set_exception(told)

    def _release(self, item: _Item) -> None:
        with self._lock:
            self.waiting_bytes -= item.size_bytes


def _together(asked: list[Any]) -> tuple[Any, list[Flood]]:
    rows, tables = Rows(0), []
    for spans in asked:
        if isinstance(spans, Rows):
            rows.take(spans)
        elif isinstance(spans, Columns):
            rows.floods += spans.floods
            tables.append(spans.spans)
        else:
            tables.append(spans)
    return pa.concat_tables([rows.table(), *tables]), rows.floods


def _newest(table: Any) -> int:
    return int(table.column("start_ns").to_numpy().max()) if table.num_rows else 0


def _is_fatal(error: Exception) -> bool:
    # DuckDB says so in the class, or in every statement after the first.
    return isinstance(error, duckdb.FatalException) or "invalidated" in str(error)


def _rows(item: _Item) -> int:
    return 0 if item.spans is None else len(item.spans)
