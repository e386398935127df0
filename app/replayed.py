"""How does a paired replay get into the store, so that a page finds it later?

One span a cell and policy, `heddle.replay`, of the run that was replayed; the query `replays` reads
them back. The same replay sent twice is one span: its id is made of what was replayed and how.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from heddle.app.errors import fail
from heddle.app.replay import is_whole
from heddle.collector import conventions as c
from heddle.collector import ids
from heddle.collector.emitter import Emitter

GENERATED: Final = "replay"
"""The run of replays of generated workloads."""


def save(rows: Sequence[Mapping[str, Any]], of: str, otlp_url: str, token: str | None) -> None:
    """Send the rows of `heddle.app.replay.play`; *of* is RUN/ROLLOUT, a file or a workload."""
    run = of.partition("/")[0] if "/" in of else GENERATED
    emitter = Emitter(otlp_url, service="heddle-replay", token=token)
    for row in rows:
        _emit(emitter, run, of, row)
    emitter.close(timeout_s=30.0)
    if emitter.dropped:
        fail(
            f"{emitter.dropped} of {len(rows)} replays were not saved: no collector takes spans at "
            f"{otlp_url}; start heddle collect, or name one with --otlp"
        )


def _emit(emitter: Emitter, run: str, of: str, row: Mapping[str, Any]) -> None:
    cell = f"{row['cell']}, {row['what_if']}" if row["what_if"] else row["cell"]
    named = (of, cell, row["policy"], row["gpus"], row["workload_hash"], row["truth_hash"])
    now_ns = time.time_ns()
    own = {
        "gen_ai.operation.name": c.REPLAY,
        "heddle.run.id": run,
        "heddle.gpus": row["gpus"],
        "heddle.layout": row["layout"].replace("+", ","),
        "heddle.predicted.makespan_s": row["predicted_s"],
        "heddle.replay.of": of,
        "heddle.replay.cell": cell,
        "heddle.replay.policy": row["policy"],
        "heddle.replay.makespan_s": row["makespan_s"],
        "heddle.replay.bound_s": row["bound_s"] if is_whole(row) else None,
        "heddle.replay.idle_gpu_s": row["idle_gpu_s"],
        "heddle.replay.held_s": row["held_s"],
        "heddle.replay.moves": row["moves"],
        "heddle.replay.engines": row["truth_hash"],
    }
    emitter.emit(
        c.REPLAY,
        trace_id=ids.trace_id(run, f"replay/{of}"),
        span_id=ids.span_id(run, "replay", *named),
        start_ns=now_ns,
        end_ns=now_ns,
        attributes={name: value for name, value in own.items() if value is not None},
    )
