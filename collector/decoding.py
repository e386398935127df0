"""How are requests decoded without taking the interpreter from the event loop and the writer?

Small ones where they are, large ones in a thread, those between in a process of its own: decoding
is 35 of the 85 us of CPU that a span costs, all of it under the interpreter's lock. The process
begins with the first request that is worth it, and ends with the collector even when that is
killed. While it is not there, threads decode.
"""

from __future__ import annotations

import asyncio
import io
import logging
import multiprocessing
import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, Final

import pyarrow as pa

from heddle.collector import otlp
from heddle.collector.columns import SCHEMA, Columns, Rows
from heddle.collector.content import Capture, Content

# Decoding takes about 20 us a span; below this a hop costs more than it frees.
_INLINE_BYTES: Final = 16_384
# Above it one request would hold up all others for longer than a commit takes.
_PROCESS_BYTES: Final = 4 << 20
# The interpreter runs one at a time anyway; the second keeps a small body from a huge one's queue.
_THREADS: Final = 2
_log = logging.getLogger(__name__)


class Decoding:
    """Decodes for one event loop; counts what the process decoded, and processes that died."""

    def __init__(self, capture: Capture = "drop", *, processes: int = 0) -> None:
        self.content = Content(capture)
        self.elsewhere = self.deaths = 0
        self._processes = processes if (os.cpu_count() or 1) > 1 else 0
        self._threads = ThreadPoolExecutor(_THREADS, "heddle-decode")
        self._pool: ProcessPoolExecutor | None = None
        self._begun: Future[None] | None = None

    async def decode(self, body: bytes, media: str) -> otlp.Decoded:
        """The spans of one request; otlp.BadRequest when it cannot be read."""
        if len(body) <= _INLINE_BYTES:
            return otlp.decode(body, media, None, self.content)
        if len(body) <= _PROCESS_BYTES and (pool := self._ready()) is not None:
            try:
                return await self._elsewhere(pool, body, media)
            except BrokenProcessPool:
                self._bury(pool)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, otlp.decode, body, media, None, self.content
        )

    async def inflate(self, what: Any, *given: Any) -> bytes:
        """Run what takes long in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, what, *given)

    def close(self) -> None:
        """End the threads and the process."""
        self._threads.shutdown()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    async def _elsewhere(self, pool: ProcessPoolExecutor, body: bytes, media: str) -> otlp.Decoded:
        capture: Capture = self.content.capture
        done = pool.submit(_decoded, body, media, capture)
        packed, columns, left_out = await asyncio.wrap_future(done)
        self.content.left_out += left_out
        self.elsewhere += 1
        columns.spans = _widened(pa.ipc.open_stream(packed).read_all())
        return otlp.Decoded(columns)

    def _ready(self) -> ProcessPoolExecutor | None:
        """The process, once it runs."""
        if self._pool is None and self._processes:
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._processes, spawn, _begin)
            self._begun = self._pool.submit(_nothing)
        return self._pool if self._begun is not None and self._begun.done() else None

    def _bury(self, pool: ProcessPoolExecutor) -> None:
        """Once for each that died, however many requests it took along."""
        if pool is self._pool:
            self.deaths += 1
            self._pool = self._begun = None
            _log.error("a decoding process died (the %d.); another one begins", self.deaths)
            pool.shutdown(wait=False)


def _nothing() -> None:
    """Says that the process runs."""


def _begin() -> None:
    # Ctrl-C goes to the whole family; the collector says when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        # A killed collector cannot say anything, and its pipes stay open on this side.
        watch = threading.Thread(target=_die_with, args=(parent.sentinel,), daemon=True)
        watch.start()


def _die_with(parent: Any) -> None:
    wait([parent])
    os._exit(1)


_contents: Final[dict[Capture, Content]] = {}


def _decoded(body: bytes, media: str, capture: Capture) -> tuple[bytes, Columns, int]:
    """In the process: the table as Arrow IPC of what it holds, the rest, and content left out."""
    content = _contents.setdefault(capture, Content(capture))
    before = content.left_out
    rows = otlp.decode(body, media, None, content).rows
    assert isinstance(rows, Rows)
    columns = rows.columns()
    table = columns.spans
    held = [n for n, c in zip(table.column_names, table.columns, strict=True) if _holds(c)]
    columns.spans = None
    sink = io.BytesIO()
    narrow = table.select(held)
    with pa.ipc.new_stream(sink, narrow.schema) as writer:
        writer.write_table(narrow)
    return sink.getvalue(), columns, content.left_out - before


def _holds(column: Any) -> bool:
    return column.null_count < len(column)


def _widened(table: Any) -> Any:
    """With every column of SCHEMA."""
    held = dict(zip(table.column_names, table.columns, strict=True))
    rows = table.num_rows
    arrays = [held[f.name] if f.name in held else pa.nulls(rows, f.type) for f in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)
