"""Where is each live trajectory and how far did it come, as a restarted controller must know it?

A file that is only appended to: every step's end is one line, 3 us, where a row of SQLite took 60.
A killed process loses none of it; what a power cut takes is the last seconds, as with SQLite's WAL
unsynced. A line that makes no sense is skipped and counted. Written anew when most lines are
outdated, and after a disk that was full: steps go on meanwhile, and what is missing is said.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

LINES: Final = 50_000
"""Outdated ones before the file is written anew: about 4 MB."""
AGAIN_S: Final = 1.0
"""Seconds between two tries to write on a disk that took nothing."""


class Pin(NamedTuple):
    """Where a live trajectory's prefix is, and what it did last."""

    run: str
    trajectory: str
    worker: str
    step: int = -1
    """Index of its newest finished step."""
    ended_ns: int = 0
    """When that ended; 0: none has."""


class Pins:
    """The newest of each live trajectory; in memory alone where there is no path."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file = -1
        self._lines = 0
        self._known: dict[tuple[str, str], Pin] = {}
        self._again_s = 0.0
        self.skipped = 0
        """Lines of the file that made no sense."""
        self.failures = 0
        """Writes that did not work."""
        self.failure = ""
        """Why the file is behind what is known; empty: it is not."""
        if path is not None:
            self._read(path)
            self._write_anew(path)

    def put(self, pin: Pin) -> None:
        """Remember it."""
        self._known[pin.run, pin.trajectory] = pin
        self._append([*pin])

    def drop(self, run: str, trajectory: str) -> None:
        """It finished."""
        if self._known.pop((run, trajectory), None) is not None:
            self._append([run, trajectory])

    def all(self) -> list[Pin]:
        """Of every live trajectory."""
        return list(self._known.values())

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, row: list[Any]) -> None:
        if self._path is None:
            return
        if self.failure:
            if time.monotonic() >= self._again_s:
                self._write_anew(self._path)
            return
        line = orjson.dumps(row) + b"\n"
        try:
            whole = os.write(self._file, line) == len(line)
        except OSError as error:
            self._failed(str(error))
            return
        if not whole:
            self._failed("the disk took half a line")
            return
        self._lines += 1
        if self._lines > LINES + 2 * len(self._known):
            self._write_anew(self._path)

    def _failed(self, why: str) -> None:
        """A full disk must not fail a step: it is said, and what is known is written later."""
        self.failures += 1
        self.failure = f"where trajectories are is not written: {why}"
        self._again_s = time.monotonic() + AGAIN_S

    def _read(self, path: Path) -> None:
        lines = path.read_bytes().splitlines() if path.exists() else []
        for line in lines:
            row = _row(line)
            if row is None:
                self.skipped += 1
            elif len(row) == 2:
                self._known.pop((row[0], row[1]), None)
            else:
                self._known[row[0], row[1]] = Pin(*row)

    def _write_anew(self, path: Path) -> None:
        """What is known now and no more, in place of the file."""
        part = path.with_suffix(".part")
        try:
            part.write_bytes(b"".join(orjson.dumps([*pin]) + b"\n" for pin in self._known.values()))
            file = os.open(part, os.O_WRONLY | os.O_APPEND)
            part.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            self._failed(str(error))
            return
        self.close()
        self._file, self._lines, self.failure = file, len(self._known), ""


def _row(line: bytes) -> list[Any] | None:
    """A pin's fields, or the two names of one that finished; None for anything else."""
    try:
        row: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    kinds = [type(value) for value in row] if isinstance(row, list) else []
    return row if kinds in ([str, str], [str, str, str, int, int]) else None
