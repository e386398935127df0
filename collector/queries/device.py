"""What do the devices' own counters say beside the busy share of the spans?"""

from __future__ import annotations

from typing import Final

import duckdb

from heddle.collector import conventions as c
from heddle.collector.device import SILENCE_NS, beside
from heddle.collector.queries.query import Answer, Filters, Query, table_of
from heddle.collector.queries.reading import rows_of
from heddle.collector.queries.results import RESULTS

_SAMPLES: Final = (
    "SELECT CAST(attrs['heddle.device.host'] AS VARCHAR) AS host,"
    " CAST(attrs['heddle.device.gpu'] AS VARCHAR) AS gpu, worker_id, start_ns AS at_ns,"
    " CAST(attrs['heddle.device.sm_active'] AS DOUBLE) AS sm_active"
    f" FROM everything WHERE run_id = ? AND op = '{c.DEVICE}' AND start_ns BETWEEN ? AND ?"
)


def _device(cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
    found = RESULTS.of(cursor, filters)
    if found is None:
        return Answer(table_of("device", []), 0)
    window = found.accounts.window
    # The first sample after the end speaks of the end, the last one before the start of it.
    about = found.run_id, window.start_ns - SILENCE_NS, window.end_ns + SILENCE_NS
    rows = beside(found.accounts, rows_of(cursor, _SAMPLES, about))
    if wanted := filters.get("worker"):
        rows = [row for row in rows if row[2] in wanted]
    return Answer(table_of("device", rows), len(rows))


DEVICE = Query(
    name="device",
    meaning="Each GPU by DCGM's SM-active beside the spans' busy share of the same time.",
    filters=("run", "rollout", "worker"),
    needs=("rollout",),
    compute=_device,
)
