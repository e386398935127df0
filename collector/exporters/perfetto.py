"""How does a rollout look in Perfetto (ui.perfetto.dev) or chrome://tracing?

Chrome trace JSON: a process a worker, a thread a trajectory on it; steps with their phases, tool
calls and moves as slices, running and queued as counters. Written as it is read. Microseconds with
three decimals, counted from the earliest step, keep every nanosecond; `args` hold the integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, Final

import numpy as np
import orjson
import polars as pl
from numpy.typing import NDArray

from heddle.collector.client import CollectorClient
from heddle.collector.errors import CollectorError
from heddle.collector.phases import REST, phases

TOOLS: Final = "tools"
_PAGE: Final = 20_000
_TOLD: Final = (
    "step_index", "input_tokens", "output_tokens", "cached_tokens", "retractions", "order_rank",
    "priority", "predicted_p50", "because", "finish_reason", "error_type", "trace_id", "span_id",
    "start_ns", "end_ns",
)  # fmt: skip
Event = dict[str, Any]
Deltas = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


class Lanes:
    """Numbers for workers and trajectories, with the events that name them."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._tids: dict[tuple[int, str], int] = {}

    def of(self, worker: str, trajectory: str) -> tuple[int, int, list[Event]]:
        """Process, thread, and what introduces those that are new."""
        new: list[Event] = []
        pid = self._pids.get(worker)
        if pid is None:
            pid = self._pids[worker] = len(self._pids) + 1
            new.append(_named("process_name", pid, 0, worker))
        tid = self._tids.get((pid, trajectory))
        if tid is None:
            tid = self._tids[pid, trajectory] = len(self._tids) + 1
            new.append(_named("thread_name", pid, tid, trajectory))
        return pid, tid, new


def write_trace(
    client: CollectorClient,
    sink: BinaryIO,
    asked: Mapping[str, Any],
    seen: Callable[[int], None] = lambda _: None,
) -> int:
    """Write the trace of the filter's steps, tool calls and moves; how many of them."""
    first = client.query("steps", **{**asked, "limit": 1})
    if first.is_empty():
        message = "nothing to trace: no step matches that filter"
        raise CollectorError(message)
    origin_ns = int(first["start_ns"][0])
    lanes, rows, deltas, joint = Lanes(), 0, dict[str, list[Deltas]](), b"\n"
    sink.write(b'{"displayTimeUnit":"ms","otherData":{"origin_ns":"%d"},' % origin_ns)
    sink.write(b'"traceEvents":[')
    for name, events_of in (("steps", _step), ("tool_calls", _tool), ("moves", _move)):
        for page in client.pages(name, limit=_PAGE, **_known(name, asked)):
            for row in page.iter_rows(named=True):
                for event in events_of(row, lanes, origin_ns):
                    sink.write(joint + event)
                    joint = b",\n"
            if name == "steps":
                _count(page, deltas)
            rows += page.height
            seen(rows)
    for event in _counters(deltas, lanes, origin_ns):
        sink.write(joint + event)
    sink.write(b"\n]}\n")
    return rows


def _known(name: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Moves know neither group, task nor worker: those of another are then left in."""
    unknown = {"group", "task", "worker"} if name == "moves" else {"worker"}
    return {k: v for k, v in asked.items() if name == "steps" or k not in unknown}


def _named(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _us(ns: int) -> orjson.Fragment:
    """Exact, as text: a float of microseconds would lose the nanoseconds of a long trace."""
    sign, whole = ("-", -ns) if ns < 0 else ("", ns)
    return orjson.Fragment(f"{sign}{whole // 1000}.{whole % 1000:03d}")


def _slice(
    name: str, where: tuple[int, int], at_ns: int, length_ns: int, args: Mapping[str, Any]
) -> bytes:
    event = {"ph": "X", "name": name, "pid": where[0], "tid": where[1], "ts": _us(at_ns)}
    return orjson.dumps({**event, "dur": _us(max(length_ns, 0)), "args": args})


def _begun(
    worker: Any, row: Mapping[str, Any], lanes: Lanes
) -> tuple[tuple[int, int], list[bytes]]:
    pid, tid, new = lanes.of(str(worker or "no worker"), str(row["trajectory_id"]))
    return (pid, tid), [orjson.dumps(event) for event in new]


def _step(row: Mapping[str, Any], lanes: Lanes, origin_ns: int) -> Iterator[bytes]:
    where, new = _begun(row["worker_id"], row, lanes)
    yield from new
    at_ns = row["start_ns"] - origin_ns
    args = {key: row[key] for key in _TOLD if row[key] is not None}
    if row["end_ns"] is None:
        event = {"ph": "i", "s": "t", "name": f"step {row['step_index']} runs", "pid": where[0]}
        yield orjson.dumps({**event, "tid": where[1], "ts": _us(at_ns), "args": args})
        return
    yield _slice(f"step {row['step_index']}", where, at_ns, row["end_ns"] - row["start_ns"], args)
    for phase, start_ns, end_ns in phases(row):
        if phase != REST:
            length_ns = end_ns - start_ns
            args = {f"{phase}_ns": length_ns}
            yield _slice(phase, where, start_ns - origin_ns, length_ns, args)


def _tool(row: Mapping[str, Any], lanes: Lanes, origin_ns: int) -> Iterator[bytes]:
    where, new = _begun(TOOLS, row, lanes)
    yield from new
    args = {k: row[k] for k in ("step_index", "start_ns", "end_ns", "inferred", "error_type")}
    length_ns = (row["end_ns"] or row["start_ns"]) - row["start_ns"]
    name = str(row["tool_name"] or "tool")
    yield _slice(name, where, row["start_ns"] - origin_ns, length_ns, args)


def _move(row: Mapping[str, Any], lanes: Lanes, origin_ns: int) -> Iterator[bytes]:
    where, new = _begun(row["move_target"], row, lanes)
    yield from new
    args = {k: row[k] for k in row if k not in ("run_id", "rollout_id", "trajectory_id")}
    length_ns = (row["end_ns"] or row["start_ns"]) - row["start_ns"]
    name = f"move from {row['move_source']}"
    yield _slice(name, where, row["start_ns"] - origin_ns, length_ns, args)


def _count(page: pl.DataFrame, deltas: dict[str, list[Deltas]]) -> None:
    """When steps join and leave the queue and the batch of their worker."""
    known = page.filter(pl.col("end_ns").is_not_null() & pl.col("worker_id").is_not_null())
    for (worker,), rows in known.group_by("worker_id", maintain_order=True):
        at, queue = (rows["start_ns"] + rows["held_ns"].fill_null(0)), rows["queue_ns"].fill_null(0)
        arrive, begin, end = (s.to_numpy() for s in (at, at + queue, rows["end_ns"]))
        one = np.ones(rows.height, np.int64)
        zero = np.zeros(rows.height, np.int64)
        deltas.setdefault(str(worker), []).append(
            (
                np.concatenate([arrive, begin, end]),
                np.concatenate([zero, one, -one]),
                np.concatenate([one, -one, zero]),
            )
        )


def _counters(deltas: dict[str, list[Deltas]], lanes: Lanes, origin_ns: int) -> Iterator[bytes]:
    for worker, parts in deltas.items():
        pid = lanes.of(worker, "load")[0]
        at, run, wait = (np.concatenate([part[i] for part in parts]) for i in range(3))
        order = np.argsort(at, kind="stable")
        instants, last = at[order], np.append(np.diff(at[order]) != 0, [True])
        running, queued = np.cumsum(run[order]), np.cumsum(wait[order])
        for place in np.flatnonzero(last):
            load = {"running": int(running[place]), "queued": int(queued[place])}
            event = {"ph": "C", "name": "load", "pid": pid}
            yield orjson.dumps({**event, "ts": _us(int(instants[place]) - origin_ns), "args": load})
