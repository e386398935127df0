"""Where is each live trajectory and how far did it come, as a restarted controller must know it?

A file that is only appended to: every step's end is one line, 3 us, where a row of SQLite took 60.
A killed process loses none of it; what a power cut takes is the last seconds, as with SQLite's WAL
unsynced. A line that was cut short is skipped. Written anew when most lines are outdated.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

LINES: Final = 50_000
"""Outdated ones before the file is written anew: about 4 MB."""


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
        if self._file < 0:
            return
        os.write(self._file, orjson.dumps(row) + b"\n")
        self._lines += 1
        if self._lines > LINES + 2 * len(self._known) and self._path is not None:
            self._write_anew(self._path)

    def _read(self, path: Path) -> None:
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        for line in lines:
            try:
                row: Any = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if len(row) == len(Pin._fields):
                self._known[row[0], row[1]] = Pin(*row)
            else:
                self._known.pop((row[0], row[1]), None)

    def _write_anew(self, path: Path) -> None:
        """What is known now and no more, in place of the file."""
        self.close()
        part = path.with_suffix(".part")
        part.write_bytes(b"".join(orjson.dumps([*pin]) + b"\n" for pin in self._known.values()))
        part.replace(path)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._lines = len(self._known)
