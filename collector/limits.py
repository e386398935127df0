"""May this sender send more now, or does it take what the others need?

A bucket of bytes per peer address, filled at a steady rate. Senders are told when to come back, as
any overloaded receiver tells them; addresses not heard of for a while are forgotten.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

from heddle.collector.errors import Overloaded

_FORGET_S: Final = 600.0
_KEPT: Final = 10_000


class SenderLimited(Overloaded):
    """One sender is above its own rate."""

    def __init__(self, peer: str, bytes_per_s: float, retry_after_s: int) -> None:
        Exception.__init__(
            self,
            f"{peer} sends more than {bytes_per_s:g} bytes a second: "
            f"send again in {retry_after_s} s",
        )
        self.retry_after_s = retry_after_s


class SenderLimits:
    """Token buckets by peer; *burst_s* seconds of the rate may come at once."""

    def __init__(
        self,
        bytes_per_s: float | None,
        burst_s: float = 10.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = bytes_per_s
        self._burst_s = burst_s
        self._now_s = now_s
        # When the peer's bucket is full again: one number says how empty it is now.
        self._full_at_s: dict[str, float] = {}
        self._lock = threading.Lock()
        self.refused = 0

    def take(self, peer: str, size_bytes: int) -> None:
        """Count what came from *peer*; SenderLimited when its bucket is empty."""
        if self._rate is None:
            return
        now_s = self._now_s()
        with self._lock:
            full_at_s = max(self._full_at_s.get(peer, 0.0), now_s)
            over_s = full_at_s - now_s - self._burst_s
            if over_s >= 0:
                self.refused += 1
                raise SenderLimited(peer, self._rate, max(1, math.ceil(over_s)))
            self._full_at_s[peer] = full_at_s + size_bytes / self._rate
            if len(self._full_at_s) > _KEPT:
                self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        kept = {p: at for p, at in self._full_at_s.items() if at > now_s - _FORGET_S}
        # Nobody may fill memory with addresses: the emptiest buckets matter most.
        latest = sorted(kept, key=kept.__getitem__)[-_KEPT:]
        self._full_at_s = {p: kept[p] for p in latest}


def host_of(peer: str) -> str:
    """The address of a gRPC peer (`ipv4:10.0.0.7:5123`), whatever its port."""
    kind, _, rest = peer.partition(":")
    return rest.rpartition(":")[0] if kind in ("ipv4", "ipv6") else peer
