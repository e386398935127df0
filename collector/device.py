"""How busy were the devices by their own counters, in the time in which spans saw work there?

Pure. A sample (DCGM's SM-active) speaks of the time since the GPU's sample before; the first one,
and one after a longer silence than SILENCE_NS, of no time: what nobody measured is not compared.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl

from heddle.collector.accounting import Accounts
from heddle.collector.activities import Bools, Ints
from heddle.collector.ledger import NOBODY
from heddle.collector.states import BUSY

SILENCE_NS: Final = 60 * 10**9
"""Prometheus scrapes every 15 to 60 s; DCGM itself samples every 0.1 to 30 s."""


def beside(accounts: Accounts, samples: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Rows of the named query `device` from host, gpu, worker_id, at_ns, sm_active, by GPU."""
    known = samples.filter(pl.col("sm_active").is_finite() & pl.col("sm_active").is_between(0, 1))
    rows: list[tuple[Any, ...]] = []
    for (host, gpu), mine in known.sort("at_ns").group_by("host", "gpu", maintain_order=True):
        said: list[str] = mine["worker_id"].drop_nulls().to_list()
        worker = said[-1] if said else None
        at = mine["at_ns"].to_numpy().astype(np.int64)
        since, until, counts = _spoken_of(accounts, at)
        active, covered = mine["sm_active"].to_numpy()[1:][counts], until - since
        total = int(covered.sum())
        share = float((active * covered).sum() / total) if total else None
        busy = _busy(accounts, worker, since, until, total)
        apart = None if share is None or busy is None else busy - share
        rows.append((host, gpu, worker, len(at), total, share, busy, apart))
    return sorted(rows, key=lambda row: tuple(map(str, row[:2])))


def _spoken_of(accounts: Accounts, at: Ints) -> tuple[Ints, Ints, Bools]:
    """From when until when, within the window, the samples after the first speak."""
    since = np.maximum(at[:-1], accounts.window.start_ns)
    until = np.minimum(at[1:], accounts.window.end_ns)
    counts: Bools = (np.diff(at) <= SILENCE_NS) & (since < until)
    return since[counts], until[counts], counts


def _busy(
    accounts: Accounts, worker: str | None, since: Ints, until: Ints, total: int
) -> float | None:
    """Share of those disjoint times in which a worker, or the mean of all GPUs, was busy."""
    gpus = accounts.gpus if worker is None else 1
    if not total or not gpus:
        return None
    bounds = np.concatenate([[0], np.cumsum(until - since)])

    def so_far(instant: Ints) -> Ints:
        place = np.searchsorted(since, instant, side="right")
        last = np.maximum(place - 1, 0)
        inside = np.clip(instant, since[last], until[last]) - since[last]
        return np.where(place > 0, bounds[last] + inside, 0)

    strips = accounts.of(BUSY)
    weight = strips.gpus
    if worker is not None:
        code = accounts.workers.index(worker) if worker in accounts.workers else NOBODY
        weight = (strips.worker == code).astype(np.int64)
    return int((weight * (so_far(strips.end) - so_far(strips.start))).sum()) / (gpus * total)
