"""Which worker takes longer for a token than the others of its degree, its batch taken out?"""

from __future__ import annotations

from statistics import median
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from heddle.collector.activities import KIND, Ints
from heddle.collector.facts import Facts

_TOKENS_TO_JUDGE: Final = 16
"""A step shorter than this says little of the time a token takes."""
_DOUBLING_BATCH: Final = 32
"""Batch at which a token takes about twice a lone one's time (ledger.SATURATED)."""


class Slowest(NamedTuple):
    """The slowest worker: time per token for its batch, and the others' median."""

    worker_id: str
    ns_per_token: float
    others_ns_per_token: float


def slowest(facts: Facts, steps: pl.DataFrame) -> Slowest | None:
    """Worker by the median time of its tokens, divided by what its batch explains."""
    known = steps.filter(
        (pl.col("output_tokens") >= _TOKENS_TO_JUDGE)
        & (pl.col("decode_ns") > 0)
        & pl.col("worker_id").is_not_null()
        & pl.col("end_ns").is_not_null()
    )
    if known.is_empty():
        return None
    codes = facts.activities.tables.workers.codes
    worker = known["worker_id"].replace_strict(codes, default=0, return_dtype=pl.Int64).to_numpy()
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


def mean_batches(facts: Facts, worker: Ints, start: Ints, end: Ints) -> npt.NDArray[np.float64]:
    """How many decodes lasted on average on that worker between each start and end; 1 if none."""
    seen = facts.activities.where(facts.activities.kind == KIND["decode"])
    times, place = np.unique(
        np.concatenate([seen.start, seen.end, start, end]), return_inverse=True
    )
    size = len(times)
    owners = np.concatenate([seen.worker, seen.worker, worker, worker])
    edges, at = np.unique(owners * size + place, return_inverse=True)
    lo, hi, first, last = np.split(at, np.cumsum([len(seen.start), len(seen.start), len(start)]))
    change = np.bincount(lo, minlength=len(edges)) - np.bincount(hi, minlength=len(edges))
    # Between the last edge of one worker and the first of the next nothing lasts.
    length = np.diff(times[edges % size])
    area = np.concatenate([[0.0], np.cumsum(np.cumsum(change)[:-1] * length)])
    whole = (area[last] - area[first]) / np.maximum(end - start, 1)
    return np.where(np.isin(worker, seen.worker), whole, 1.0)
