"""How does the collector know that a trajectory without news is still alive?

One thread a process says so for every open trajectory, twelve times before the collector would call
it abandoned. Opentelemetry and the standard library only, Python 3.10.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 300.0
"""A collector takes a trajectory for abandoned after 3,600 s of silence."""


class Beats:
    """Calls everything that is open, every `every_s`; ends when nothing is."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        # Reentrant: the garbage collector may end a suspended agent in here, and its scopes.
        self._lock = threading.RLock()
        self._open: dict[int, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def forked(self) -> None:
        """A child has no thread, and a lock that one may hold; the parent beats for its own."""
        self.__init__(self._every_s)

    def begin(self, key: int, beat: Callable[[], None]) -> None:
        """From now on."""
        with self._lock:
            self._open[key] = beat
            if self._thread is None:
                self._wake.clear()
                self._thread = threading.Thread(
                    target=self._run, name="heddle-heartbeats", daemon=True
                )
                self._thread.start()

    def end(self, key: int) -> None:
        """No more."""
        with self._lock:
            self._open.pop(key, None)

    def _run(self) -> None:
        while not self._wake.wait(self._every_s):
            with self._lock:
                due = list(self._open.values())
                if not due:
                    self._thread = None
                    return
            for beat in due:
                beat()


BEATS: Final = Beats()
"""The process's own."""
os.register_at_fork(after_in_child=BEATS.forked)
