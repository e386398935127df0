"""Which fleets does the accounting bench measure: small random ones, and one of 60,000 steps?

Seeded and synthetic. The big one is made as the store's own columns, so that what is timed is the
accounting and not the making of spans.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from heddle.collector import conventions as c
from heddle.collector import ids
from heddle.collector.activities import KINDS, Activity
from heddle.collector.columns import SCHEMA
from heddle.collector.grants import Lease, Window
from heddle.collector.store import FILE_NAME, Store

RUN: Final = "bench"
ROLLOUT: Final = "0"
ORIGIN_NS: Final = 1_790_000_000 * 10**9
_S: Final = 10**9
_CASE_NS: Final = 200


@dataclass(slots=True)
class Fleet:
    """Rows by when they end; `table` gives those of a part of the rollout."""

    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    start_ns: int = ORIGIN_NS
    end_ns: int = ORIGIN_NS
    trajectories: int = 0
    steps: int = 0

    def table(self, since: float, until: float) -> Any:
        """Spans that end within that part of the rollout; from 0 on also the markers."""
        lo, hi = (self._at(share) for share in (since, until))
        rows = [row for row in self.rows if lo <= _seen_ns(row, self.start_ns) < hi]
        columns = [
            pa.array([row.get(name) for row in rows], type=kind)
            for name, kind in zip(SCHEMA.names, SCHEMA.types, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=SCHEMA)

    def send(self, store: Store, since: float, until: float) -> None:
        """Store that part, durably."""
        table = self.table(since, until)
        if table.num_rows:
            store.append(table, 1).result()

    def _at(self, share: float) -> int:
        # At the end everything, the rollout's own span too.
        return (
            self.end_ns + 1
            if share >= 1
            else self.start_ns + round(share * (self.end_ns - self.start_ns))
        )


def _seen_ns(row: dict[str, Any], start_ns: int) -> int:
    return max(row["end_ns"], start_ns)


@contextmanager
def stored(data: Path, fleet: Fleet, until: float) -> Generator[Store, None, None]:
    """A store that holds the rollout up to a share of its wall."""
    data.mkdir(parents=True)
    store = Store(data / FILE_NAME)
    try:
        fleet.send(store, 0.0, until)
        yield store
    finally:
        store.close()


def random_case(seed: int) -> tuple[Window, int, list[Lease], list[Activity]]:
    """Workers that change degree, and activities of every kind, in and out of the window."""
    rng = random.Random(seed)
    workers = [f"w{k}" for k in range(rng.randint(1, 4))]
    leases = [
        Lease(rng.choice(workers), rng.randint(1, 8), at := rng.randint(-20, _CASE_NS),
              at + rng.randint(0, _CASE_NS))
        for _ in range(rng.randint(0, 8))
    ]  # fmt: skip
    seen = [
        Activity(rng.choice(workers), rng.choice(KINDS), at := rng.randint(-20, _CASE_NS),
                 at + rng.randint(0, 60), f"t{rng.randrange(6)}", rng.choice("ab"))
        for _ in range(rng.randint(0, 40))
    ]  # fmt: skip
    start_ns = rng.randint(0, 40)
    return Window(start_ns, start_ns + rng.randint(0, _CASE_NS)), rng.randint(0, 16), leases, seen


def big_fleet(trajectories: int, workers: int, steps: int, seed: int = 0) -> Fleet:
    """Long-tailed trajectories of steps and tools, some of which change worker."""
    rng = random.Random(seed)
    drawn = [rng.lognormvariate(2.0, 0.6) for _ in range(trajectories)]
    share = steps / sum(drawn)
    fleet = Fleet(trajectories=trajectories)
    for index, count in enumerate(drawn):
        _trajectory(fleet, rng, index, workers, max(round(count * share), 1))
    fleet.end_ns = max(row["end_ns"] for row in fleet.rows) + _S
    fleet.rows += _announced(fleet, workers)
    return fleet


def _announced(fleet: Fleet, workers: int) -> Sequence[dict[str, Any]]:
    """The rollout: its marker at the start, its span at the end; the workers' leases the same."""
    trace = ids.trace_id(RUN, f"rollout/{ROLLOUT}")
    whole = (fleet.start_ns, fleet.end_ns)
    spans = [_row(c.ROLLOUT, trace, ids.span_id(RUN, "rollout", ROLLOUT), *whole, gpus=workers)]
    spans += [
        _row(c.WORKER, trace, ids.span_id(RUN, "worker", f"w{w}"), *whole,
             worker_id=f"w{w}", degree=1)
        for w in range(workers)
    ]  # fmt: skip
    return spans + [
        row
        | {
            "span_id": ids.marker_id(row["span_id"]),
            "name": c.START,
            "op": c.START,
            "end_ns": row["start_ns"],
            "received_ns": row["start_ns"],
            "starts_span_id": row["span_id"],
            "starts_op": row["op"],
        }
        for row in spans
    ]


def _row(op: str, trace: str, span: str, start_ns: int, end_ns: int, **hot: Any) -> dict[str, Any]:
    return {
        "trace_id": trace,
        "span_id": span,
        "name": op,
        "kind": 1,
        "op": op,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "received_ns": end_ns,
        "status": "unset",
        "attrs": "{}",
        "dropped": 0,
        "run_id": RUN,
        "rollout_id": ROLLOUT,
        **hot,
    }


def _trajectory(fleet: Fleet, rng: random.Random, index: int, workers: int, steps: int) -> None:
    name, worker = f"t{index:05d}", rng.randrange(workers)
    trace = ids.trace_id(RUN, name)
    whose = {"trajectory_id": name, "group_id": f"g{index // 16}", "task": "coding"}
    begin_ns = at_ns = fleet.start_ns + rng.randrange(5 * _S)
    for step in range(steps):
        if rng.random() < 0.02:
            worker = rng.randrange(workers)
        parts = [rng.randrange(top) for top in (_S // 5, _S // 5, _S // 10, 10 * _S)]
        end_ns = at_ns + sum(parts) + rng.randrange(_S // 100)
        fleet.rows.append(
            _row(c.CHAT, trace, ids.step_span_id(RUN, name, step), at_ns, end_ns, **whose,
                 step_index=step, worker_id=f"w{worker}", degree=1, held_ns=parts[0],
                 queue_ns=parts[1], prefill_ns=parts[2], decode_ns=parts[3],
                 input_tokens=1_000 + 500 * step, output_tokens=300,
                 cached_tokens=900 + 400 * step, retractions=0)
        )  # fmt: skip
        at_ns = end_ns
        if step < steps - 1:
            tool_ns = rng.randrange(3 * _S)
            fleet.rows.append(
                _row(c.EXECUTE_TOOL, trace, ids.tool_span_id(RUN, name, step), at_ns,
                     at_ns + tool_ns, **whose, step_index=step, tool_name=rng.choice("abc"))
            )  # fmt: skip
            at_ns += tool_ns + _S // 50
    span = ids.trajectory_span_id(RUN, name)
    fleet.rows.append(_row(c.INVOKE_AGENT, trace, span, begin_ns, at_ns, **whose))
    fleet.steps += steps
