"""How many trajectories may a worker hold at once?

Only first steps are held back: a started trajectory always goes on. The count comes from means,
so it needs no prediction of any single trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from heddle.controller.core.cost import peak_tokens
from heddle.controller.core.types import Snapshot, Worker

Admission = Callable[[Snapshot], Mapping[str, float]]

# The best count lay at 0.8-1.2 times what fits on a genuine engine (planning.md B.1).
KV_ROOM: Final = 1.0


def unlimited(snapshot: Snapshot) -> Mapping[str, float]:
    """Every step goes at once."""
    return {w.id: math.inf for w in snapshot.workers}


def hold_count(snapshot: Snapshot) -> Mapping[str, float]:
    """As many as fit the KV room at their mean expected peak, and the running cap; at least 1."""
    live = snapshot.trajectories
    mean = sum(peak_tokens(t, snapshot.rates) for t in live) / max(len(live), 1)
    return {w.id: _room(w, mean) for w in snapshot.workers}


def _room(worker: Worker, mean_peak_tokens: float) -> int:
    fits = KV_ROOM * worker.latency.kv_tokens / max(mean_peak_tokens, 1.0)
    return max(1, min(int(fits), worker.latency.max_running))


ADMISSIONS: Final[dict[str, Admission]] = {"none": unlimited, "hold-count": hold_count}
