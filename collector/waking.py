"""How does an event loop hear of a thread's futures without being woken once for each?

A commit of sixty requests of one span wrote sixty times to the loop's pipe; each of those takes
the interpreter from the writer. What is done since the loop last looked is handed over in one call.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class Woken:
    """`wait` in one event loop for futures that any thread completes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done: list[asyncio.Event] = []

    async def wait(self, future: Future[T]) -> T:
        """Its result, or what it raises."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def tell(_: Future[T]) -> None:
            with self._lock:
                self._done.append(event)
                first = len(self._done) == 1
            if first:
                loop.call_soon_threadsafe(self._wake)

        future.add_done_callback(tell)
        await event.wait()
        return future.result()

    def _wake(self) -> None:
        with self._lock:
            done, self._done = self._done, []
        for event in done:
            event.set()
