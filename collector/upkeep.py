"""What does a collector do by itself: sums kept fresh, finished rollouts sealed, old data removed?

One thread. What fails is logged, counted and tried again at the next turn; ingest never waits for
it longer than one transaction, and sealing rests so long after each rollout that senders are
answered in time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from heddle.collector import retention, sealing
from heddle.collector.store import Store

_SUMS_S: Final = 1.0
_KEEP_S: Final = 30.0
_QUIET_S: Final = 60.0
_REST: Final = 4.0
"""Times what sealing a rollout took: at most a fifth of the time goes there while spans come. Ten
rollouts of 500,000 spans sealed one after the other took acknowledgements to 0.3 s."""
_UNTIDY: Final = 100_000
"""So many spans make eight row groups that merging makes one."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Keeping:
    """What is kept where and for how long; None never."""

    seal_after_s: float | None = 3_600.0
    """A finished rollout is sealed when none of its spans came for that long."""
    keep_s: float | None = None
    """Spans received longer ago than this are removed."""
    keep_bytes: int | None = None
    """Above this much disk the oldest sealed rollouts are removed."""


class Upkeep:
    """The thread; `start` and `stop`."""

    def __init__(self, store: Store, keeping: Keeping) -> None:
        self._store, self._keeping = store, keeping
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heddle-upkeep", daemon=True)
        self._sealing: list[tuple[str, str]] = []
        self.failures = 0
        self.sealed_rollouts = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the turn under way, and end."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        due_s = time.monotonic() + _KEEP_S
        self._try(lambda: sealing.sweep(self._store))
        while not self._ending.wait(_SUMS_S):
            self._try(self._store.rollups.keep)
            if time.monotonic() < due_s:
                continue
            began_s = time.monotonic()
            self._try(self._seal_one)
            took_s = time.monotonic() - began_s
            if not self._sealing:
                self._try(self._keep)
            due_s = time.monotonic() + (_REST * took_s if self._sealing else _KEEP_S)

    def _seal_one(self) -> None:
        """Seal the oldest rollout that is ready, and remember whether there are more."""
        k, left = self._keeping, self._sealing
        self._sealing = []
        if k.seal_after_s is not None and not left:
            left = sealing.ready(self._store, k.seal_after_s)
        if left:
            # Before, so that one that cannot be sealed does not keep the others from it.
            self._sealing = left[1:]
            self.sealed_rollouts += sealing.seal(self._store, *left[0]) is not None

    def _keep(self) -> None:
        """Remove what is too old or too much."""
        k = self._keeping
        if k.keep_s is not None:
            retention.expire(self._store, time.time_ns() - int(k.keep_s * 1e9))
        if k.keep_bytes is not None:
            retention.shrink(self._store, k.keep_bytes)
        store = self._store
        if store.quiet_s > _QUIET_S and store.stored - store.tidied >= _UNTIDY:
            store.tidy()

    def _try(self, what: Callable[[], object]) -> None:
        try:
            what()
        except Exception:  # noqa: BLE001 (the thread must live; counted and logged)
            self.failures += 1
            _log.exception("upkeep of %s failed; it will be tried again", self._store.path)
