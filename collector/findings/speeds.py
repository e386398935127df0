"""Which worker takes longer for a token than the others of its degree, its batch taken out?"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from heddle.collector.activities import Ints, ints
from heddle.collector.cells import FITS
from heddle.collector.facts import Facts

_TOKENS_TO_JUDGE: Final = 16
"""A step shorter than this says little of the time a token takes."""
_DOUBLING_BATCH: Final = 32
"""Batch at which a token takes about twice a lone one's time (ledger.SATURATED)."""
_ENOUGH: Final = 8_192
"""Steps judged at most: medians of a hundred a worker tell 1.5 times from 1."""
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


class Slowest(NamedTuple):
    """The slowest worker: time per token for its batch, and the others' median."""

    worker_id: str
    ns_per_token: float
    others_ns_per_token: float


def slowest(facts: Facts, steps: pl.DataFrame) -> Slowest | None:
    """Worker by the median time of its tokens, divided by what its batch explains."""
    known = _judged(steps)
    if known.is_empty():
        return None
    codes = facts.tables.workers.codes
    worker = ints([codes.get(name, 0) for name in known["worker_id"].to_list()])
    tokens, decode_ns, ends = (
        known[name].to_numpy().astype(np.int64) for name in ("output_tokens", "decode_ns", "end_ns")
    )
    batch = mean_batches(facts, worker, ends - decode_ns, ends)
    rates = known.select("worker_id", pl.col("degree").fill_null(0)).with_columns(
        rate=pl.Series(decode_ns / tokens / (1 + batch / _DOUBLING_BATCH))
    )
    by_worker = rates.group_by("degree", "worker_id").agg(pl.col("rate").median())
    middle = sorted((int(d), str(w), float(r)) for d, w, r in by_worker.iter_rows())
    found: list[Slowest] = []
    for degree, worker_id, rate in middle:
        others = [r for d, w, r in middle if d == degree and w != worker_id]
        if others:
            found.append(Slowest(worker_id, rate, median(others)))
    return max(found, key=lambda one: one.ns_per_token / one.others_ns_per_token, default=None)


def _judged(steps: pl.DataFrame) -> pl.DataFrame:
    """Steps that say what a token took; of many a share drawn by what they are, whatever order
    they come in."""
    known = steps.filter(
        (pl.col("output_tokens") >= _TOKENS_TO_JUDGE)
        & (pl.col("decode_ns") > 0)
        & pl.col("worker_id").is_not_null()
        & pl.col("end_ns").is_not_null()
    )
    bits = (max(known.height - 1, 0) // _ENOUGH).bit_length()
    if not bits:
        return known
    end, decode = (known[name].to_numpy().astype(np.uint64) for name in ("end_ns", "decode_ns"))
    drawn = ((end ^ decode << np.uint64(20)) * _GOLDEN) >> np.uint64(64 - bits)
    return known.filter(pl.Series(drawn == 0))


def mean_batches(facts: Facts, worker: Ints, start: Ints, end: Ints) -> npt.NDArray[np.float64]:
    """How many decodes lasted on average on that worker between each start and end; 1 if none."""
    seen = facts.past.decoding(facts.near)
    if not len(seen) or not len(start):
        return np.ones(len(start))
    base = min(int(seen.start.min()), int(start.min()))
    span = max(int(seen.end.max()), int(end.max())) - base + 1
    if span * (int(max(seen.worker.max(), worker.max())) + 1) >= FITS:
        # Clocks that are years apart say nothing of who ran beside whom.
        return np.ones(len(start))
    until = [_so_far(seen.worker * span + edge - base, span) for edge in (seen.start, seen.end)]
    area = [until[0](worker, at - base) - until[1](worker, at - base) for at in (start, end)]
    whole = (area[1] - area[0]) / np.maximum(end - start, 1)
    there = np.zeros(int(max(seen.worker.max(), worker.max())) + 1, np.bool_)
    there[seen.worker] = True
    return np.where(there[worker], whole, 1.0)


def _so_far(keys: Ints, span: int) -> Callable[[Ints, Ints], Ints]:
    """Sum over a worker's edges before an instant of the time gone by since them."""
    keys = np.sort(keys)
    before = np.concatenate([[0], np.cumsum(keys % span)])

    def gone_by(worker: Ints, at: Ints) -> Ints:
        first = np.searchsorted(keys, worker * span)
        last = np.searchsorted(keys, worker * span + at)
        return (last - first) * at - (before[last] - before[first])

    return gone_by
