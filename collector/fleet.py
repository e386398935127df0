"""When did engines stand still for reasons no trajectory has: weights, layout, death?

From spans (`heddle.weight_sync`, `heddle.regroup`, `heddle.down`) and from polls that failed. A
span without a worker id concerns every worker, but for `heddle.reallocate`, whose phases say who
stood still. One without an end lasts to the end of a running
window and is ignored in a finished one. A worker is down from the first of two failed polls in a
row (one may be a slow answer) to the next good one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import polars as pl

from heddle.collector import conventions as c
from heddle.collector.activities import Activity, Kind

KINDS: Final[dict[str, Kind]] = {
    c.WEIGHT_SYNC: "weight_sync",
    c.REALLOCATE: "reallocation",
    c.REGROUP: "reallocation",
    c.DOWN: "down",
}
FAILED_POLLS: Final = 2


def activities(
    rows: pl.DataFrame, counters: pl.DataFrame, workers: Iterable[str], until_ns: int
) -> list[Activity]:
    """Of the fleet rows and counter samples of one rollout; *until_ns* ends what still lasts."""
    everyone = sorted(set(workers))
    found: list[Activity] = []
    for op, worker_id, start_ns, end_ns, state in rows.select(
        "op", "worker_id", "start_ns", "end_ns", "state"
    ).iter_rows():
        if end_ns is None and state != "running":
            continue
        if op == c.REALLOCATE and not worker_id:
            continue
        last_ns = until_ns if end_ns is None else end_ns
        who = [worker_id] if worker_id else everyone
        found += [Activity(one, KINDS[op], start_ns, last_ns) for one in who]
    return [*found, *_unanswered(counters, until_ns)]


def _unanswered(counters: pl.DataFrame, until_ns: int) -> Iterator[Activity]:
    """The runs of failed polls of each worker."""
    for (worker_id,), polls in counters.group_by("worker_id", maintain_order=True):
        since_ns, failed = 0, 0
        for at_ns, ok in polls.select("at_ns", "ok").iter_rows():
            if not ok:
                since_ns = since_ns if failed else at_ns
                failed += 1
                continue
            if failed >= FAILED_POLLS:
                yield Activity(str(worker_id), "down", since_ns, at_ns)
            failed = 0
        if failed >= FAILED_POLLS and since_ns < until_ns:
            yield Activity(str(worker_id), "down", since_ns, until_ns)
