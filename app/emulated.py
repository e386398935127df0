"""What would the store hold of a rollout in virtual time, and what did its engines really do?

Turns the records of `controller.emulator.rollout` into the rows the collector accounts for: what a
controller sends (steps, moves, leases), what a client sends (tools, trajectories), what polls of
the engines say. Telemetry may be made worse on the way: a share of steps lost, clocks that differ.
The engines' own log of passes is the judge of the accounting (`truth`).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from heddle.collector import conventions as c
from heddle.collector import records
from heddle.collector.activities import Kind
from heddle.collector.facts import NO_SLICES, Slice, slice_frame
from heddle.collector.queries.reading import Reading, Version
from heddle.controller.emulator.records import PassRecord, RolloutResult

RUN: Final = "emulated"
ROLLOUT: Final = "r0"
ORIGIN_NS: Final = 1_700_000_000 * 10**9
POLL_S: Final = 5.0
_WHOSE: Final = {"run_id": RUN, "rollout_id": ROLLOUT}
_COUNTERS: Final = ("forward_s", "idle_s", "retracted", "running", "queue", "kv_usage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Worse:
    """What happens to telemetry and fleet on the way to the store."""

    lost_steps: float = 0.0
    """Share of step spans that never arrive."""
    skew_s: float = 0.0
    """Clocks of the engines' hosts differ from the controller's by up to this, either way."""
    seed: int = 0
    idle_workers: int = 0
    """Workers of degree 1 that lease GPUs and get nothing."""
    sync_s: tuple[float, float] | None = None
    """A weight sync the trainer asked for, from and until, seconds of the rollout."""
    polls: bool = True
    """Whether the engines are polled."""
    engine_spans: bool = False
    """Engines send slices of level 1 on their own clocks; loss and skew then strike these too."""


def reading(result: RolloutResult, worse: Worse | None = None) -> Reading:
    """The rows of one rollout, as `collector.queries.reading` reads them."""
    worse = worse or Worse()
    return Reading(
        row=_rollout(result, worse),
        version=Version(0, 0, 0),
        steps=_frame("steps", _steps(result, worse)),
        tool_calls=_frame("tool_calls", _tools(result)),
        moves=_frame("moves", _moves(result)),
        workers=_frame("workers", _workers(result, worse)),
        trajectories=_frame("trajectories", _trajectories(result)),
        fleet=_fleet(result, worse),
        counters=_counters(result, worse),
        laws="",
        dropped=0,
        slices=slice_frame(_slices(result, worse)) if worse.engine_spans else NO_SLICES,
    )


def _skews(result: RolloutResult, worse: Worse) -> dict[str, float]:
    """How far each engine's clock is off, in seconds."""
    rng = random.Random(worse.seed)
    names = sorted(worker.worker_id for worker in result.workers)
    return {worker_id: rng.uniform(-worse.skew_s, worse.skew_s) for worker_id in names}


def _slices(result: RolloutResult, worse: Worse) -> dict[str, list[Slice]]:
    """Queue, prefill and decode of every step as its engine would send them."""
    rng, skews = random.Random(worse.seed + 1), _skews(result, worse)
    found: dict[str, list[Slice]] = defaultdict(list)
    for step in result.steps:
        at_s = step.arrived_s + step.held_s + skews.get(step.worker_id, 0.0)
        parts: tuple[tuple[Kind, float], ...] = (
            ("queued", step.queue_s),
            ("prefill", step.prefill_s),
            ("decode", step.decode_s),
        )
        for kind, seconds in parts:
            if seconds > 0 and rng.random() >= worse.lost_steps:
                found[step.trajectory_id].append(Slice(kind, _ns(at_s), _ns(at_s + seconds)))
            at_s += seconds
    return dict(found)


def _ns(seconds: float) -> int:
    return ORIGIN_NS + round(seconds * 1e9)


def _frame(query: str, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    schema = records.schema(query)
    columns = {name: [row.get(name) for row in rows] for name in schema}
    return pl.DataFrame(columns, schema=schema)


def _rollout(result: RolloutResult, worse: Worse) -> dict[str, Any]:
    end_ns = _ns(result.makespan_s)
    return {
        **_WHOSE,
        "start_ns": ORIGIN_NS,
        "end_ns": end_ns,
        "seen_ns": end_ns,
        "announced": True,
        "gpus": result.gpus + worse.idle_workers,
        "state": "finished",
    }


def _groups(result: RolloutResult) -> dict[str, str]:
    return {t.trajectory_id: t.group_id for t in result.trajectories}


def _steps(result: RolloutResult, worse: Worse) -> list[dict[str, Any]]:
    rng, groups = random.Random(worse.seed), _groups(result)
    degrees = {worker.worker_id: worker.degree for worker in result.workers}
    # With spans of its own the engine's clock shows there; the controller's is the controller's.
    skews = {} if worse.engine_spans else _skews(result, worse)
    rows: list[dict[str, Any]] = []
    for step in result.steps:
        if rng.random() < worse.lost_steps:
            continue
        skew_s = skews.get(step.worker_id, 0.0)
        rows.append(
            {
                **_WHOSE,
                "trajectory_id": step.trajectory_id,
                "group_id": groups[step.trajectory_id],
                "step_index": step.step_index,
                "worker_id": step.worker_id or None,
                "degree": degrees.get(step.worker_id),
                "state": "finished",
                "start_ns": _ns(step.arrived_s + skew_s),
                "end_ns": _ns(step.end_s + skew_s),
                **{f"{part}_ns": round(getattr(step, f"{part}_s") * 1e9)
                   for part in ("held", "queue", "prefill", "decode")},
                "input_tokens": step.input_tokens,
                "output_tokens": step.output_tokens,
                "cached_tokens": step.cached_tokens,
                "retractions": step.retractions,
                "error_type": step.error,
            }
        )  # fmt: skip
    return rows


def _tools(result: RolloutResult) -> list[dict[str, Any]]:
    groups = _groups(result)
    return [
        {
            **_WHOSE,
            "trajectory_id": tool.trajectory_id,
            "group_id": groups[tool.trajectory_id],
            "step_index": tool.step_index,
            "tool_name": tool.tool_name,
            "state": "finished",
            "start_ns": _ns(tool.start_s),
            "end_ns": _ns(tool.end_s),
            "duration_s": tool.end_s - tool.start_s,
        }
        for tool in result.tools
    ]


def _moves(result: RolloutResult) -> list[dict[str, Any]]:
    return [
        {
            **_WHOSE,
            "trajectory_id": move.trajectory_id,
            "move_source": move.source,
            "move_target": move.target,
            "start_ns": _ns(move.start_s),
            "end_ns": _ns(move.end_s),
            "hidden_s": move.hidden_s,
            "exposed_s": move.exposed_s,
        }
        for move in result.moves
    ]


def _workers(result: RolloutResult, worse: Worse) -> list[dict[str, Any]]:
    known = [(worker.worker_id, worker.degree) for worker in result.workers]
    known += [(f"idle{k}", 1) for k in range(worse.idle_workers)]
    window = {"start_ns": ORIGIN_NS, "end_ns": _ns(result.makespan_s), "state": "finished"}
    return [{**_WHOSE, "worker_id": w, "degree": degree, **window} for w, degree in known]


def _trajectories(result: RolloutResult) -> list[dict[str, Any]]:
    return [
        {
            **_WHOSE,
            "trajectory_id": t.trajectory_id,
            "group_id": t.group_id,
            "task": t.task,
            "state": "abandoned" if t.end_s is None else "finished",
            "start_ns": _ns(t.start_s),
            "end_ns": None if t.end_s is None else _ns(t.end_s),
            "duration_s": (result.makespan_s if t.end_s is None else t.end_s) - t.start_s,
            "steps": t.steps,
            "output_tokens": t.output_tokens,
            "tool_s": t.tool_s,
            "held_s": t.held_s,
            "queue_s": t.queue_s,
            "prefill_s": t.prefill_s,
            "decode_s": t.decode_s,
            "worker_id": t.worker_id,
        }
        for t in result.trajectories
    ]


def _fleet(result: RolloutResult, worse: Worse) -> pl.DataFrame:
    rows = [(sync.worker_id, sync.at_s, sync.end_s) for sync in result.syncs]
    rows += [(None, *worse.sync_s)] if worse.sync_s else []
    return pl.DataFrame(
        [(c.WEIGHT_SYNC, w, _ns(a), _ns(b), "finished", None) for w, a, b in rows],
        schema={
            "op": pl.String,
            "worker_id": pl.String,
            "start_ns": pl.Int64,
            "end_ns": pl.Int64,
            "state": pl.String,
            "waited_for": pl.String,
        },
        orient="row",
    )


def _counters(result: RolloutResult, worse: Worse) -> pl.DataFrame:
    """What a poll every POLL_S would find."""
    schema = {"worker_id": pl.String, "at_ns": pl.Int64, "ok": pl.Boolean}
    rows: list[tuple[Any, ...]] = []
    passes = by_worker(result.passes)
    for worker in result.workers if worse.polls else ():
        mine = passes[worker.worker_id]
        for poll in range(int(result.makespan_s / POLL_S) + 1):
            at_s = poll * POLL_S
            down = any(p.state == "down" and p.start_s <= at_s < p.end_s for p in mine)
            forward_s = sum(
                min(p.end_s, at_s) - p.start_s
                for p in mine
                if p.state in ("prefill", "decode") and p.start_s < at_s
            )
            said = (None if down else forward_s, *(None,) * 5)
            rows.append((worker.worker_id, _ns(at_s), not down, *said))
    kinds = {**schema, **dict.fromkeys(_COUNTERS, pl.Float64())}
    return pl.DataFrame(rows, schema=kinds, orient="row")


def by_worker(passes: Sequence[PassRecord]) -> dict[str, list[PassRecord]]:
    """The engines' own log, worker by worker."""
    found: dict[str, list[PassRecord]] = defaultdict(list)
    for one in passes:
        found[one.worker_id].append(one)
    return found


def truth(result: RolloutResult) -> dict[str, float]:
    """GPU-seconds that engines really spent: busy, weight_sync, down, and idle (the rest)."""
    degrees = {worker.worker_id: worker.degree for worker in result.workers}
    spent: dict[str, float] = dict.fromkeys(("busy", "weight_sync", "down"), 0.0)
    for one in result.passes:
        state = "busy" if one.state in ("prefill", "decode") else one.state
        spent[state] += degrees[one.worker_id] * (one.end_s - one.start_s)
    return {**spent, "idle": result.gpu_s - sum(spent.values())}
