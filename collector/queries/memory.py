"""What was computed of a rollout, kept for as long as nothing of it came since.

Each value is kept beside a mark of what it was made from; another mark, and it is unknown.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Memory(Generic[Value]):
    """At most *most* values by key, the least lately used dropped; threads may share it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[Any, tuple[Any, Value]] = OrderedDict()

    def __contains__(self, key: Any) -> bool:
        """Whether there is a value of that key, whatever it was made from."""
        with self._lock:
            return key in self._kept

    def of(self, key: Any, mark: Any) -> Value | None:
        """The value of that key, if it was made from what the mark stands for."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept[0] != mark:
                return None
            self._kept.move_to_end(key)
            return kept[1]

    def keep(self, key: Any, mark: Any, value: Value) -> None:
        """That value was made from what the mark stands for."""
        with self._lock:
            self._kept[key] = (mark, value)
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
