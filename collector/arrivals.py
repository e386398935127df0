"""How do sums get to see the rows of a commit without reading them back from the disk?

The writer leaves the columns that sums need here, under a number that the commit also writes into
`touched`; the next refresh takes them. Bounded: above the bound, after a failure and after a
restart the rows are forgotten, and what those commits touched is summed anew from the store.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final

MOST_ROWS: Final = 200_000
"""Held at most; 25 columns of numbers and short texts: about 40 MB."""
COLUMNS: Final = (
    "run_id", "rollout_id", "trajectory_id", "group_id", "sample_index", "task", "start_ns",
    "end_ns", "received_ns", "op", "inferred", "step_index", "input_tokens", "output_tokens",
    "cached_tokens", "held_ns", "queue_ns", "prefill_ns", "decode_ns", "worker_id", "retractions",
    "predicted_p50", "reward", "truncated", "outcome", "status",
)  # fmt: skip
"""What rollups.sql reads of a span to sum up its trajectory."""


class Arrivals:
    """Rows by commit; one writer adds, one refresh at a time takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: deque[tuple[int, Any]] = deque()
        self._rows = self._number = self._forgotten = 0

    @property
    def rows(self) -> int:
        """Held."""
        return self._rows

    def add(self, spans: Any) -> int:
        """Rows of a commit about to be made; its number."""
        with self._lock:
            self._number += 1
            if spans.num_rows:
                self._held.append((self._number, spans.select(COLUMNS)))
                self._rows += spans.num_rows
            if self._rows > MOST_ROWS:
                self._forget()
            return self._number

    def drop(self, number: int) -> None:
        """That commit failed."""
        with self._lock:
            self._keep([held for held in self._held if held[0] != number])

    def take(self, newest: int) -> tuple[int, list[Any]]:
        """Rows of the commits up to *newest*, and the number up to which rows were forgotten."""
        with self._lock:
            taken = [table for number, table in self._held if number <= newest]
            self._keep([held for held in self._held if held[0] > newest])
            return self._forgotten, taken

    def forget(self) -> None:
        """Sums of everything committed so far come from the store."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._forgotten = self._number
        self._keep([])

    def _keep(self, held: list[tuple[int, Any]]) -> None:
        self._held = deque(held)
        self._rows = sum(table.num_rows for _, table in held)
