"""Which leases and activities do the stored steps, tool calls, moves and workers of a rollout show?

From rows of the named queries to what accounting, blame, critical path and decomposition read. All
of it works from controller spans alone (timings of `meta_info`); what those do not say becomes
`opaque`, which accounting calls unknown, never busy and never idle:
- a step without engine timings (running, abandoned, or failed before an engine answered), after
  whatever held and queued time is known; a step without an end lasts until its trajectory's next
  step, else until the watermark;
- a hole in the step indices (a span was lost), from the step before it to the step after it.
A trajectory is homed on the worker of its latest step, from that step's start until a step starts
elsewhere; before its first step it is live on no worker (worker id ""). A step is held, queued,
prefill, decode in that order from its start, cut at its end; the rest is the orchestrator's. A tool
without an end lasts until its trajectory's next step, else until the watermark.
Slices an engine sends itself (SGLang's trace level 1) replace the timings of the step they fall
into: they are the engine's own clock and show a retraction as waiting, which timings cannot.
A worker whose lease never ended in a finished rollout is covered until its last activity only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

import polars as pl

from heddle.collector.activities import OPEN, Activity, Columns, Ints, Kind, Tables, together
from heddle.collector.attributes import INT64_MAX
from heddle.collector.grants import Lease, Window
from heddle.collector.lives import ends
from heddle.collector.past import Past
from heddle.collector.trails import Frames, trails

LONGEST_NS: Final = 30 * 86_400 * 10**9
"""No rollout lasts longer: one that seems to has a clock that is years off."""
MOST_DEGREE: Final = 1 << 20
NO_SLICES: Final = pl.DataFrame(
    schema={
        "span_id": pl.String,
        "trajectory_id": pl.String,
        "kind": pl.String,
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
    }
)


@dataclass(frozen=True)
class Facts:
    """One rollout, ready to account for."""

    window: Window
    gpus: int
    leases: tuple[Lease, ...]
    near: Columns
    """Activities, those of the past left out."""
    groups: dict[str, str]
    """Group of each trajectory; "" where none is known."""
    provisional: bool
    """The rollout still runs: the window ends at the watermark."""
    past: Past = field(default_factory=Past)

    @cached_property
    def activities(self) -> Columns:
        """Every one."""
        return self.past.all(self.near)

    @property
    def tables(self) -> Tables:
        """Of the codes in the activities."""
        return self.near.tables


class Slice(NamedTuple):
    """One stage of a request by the engine's own span."""

    kind: Kind
    start_ns: int
    end_ns: int


def slice_frame(slices: Mapping[str, Sequence[Slice]]) -> pl.DataFrame:
    """Slices by trajectory as rows."""
    rows = [("", trajectory, *one) for trajectory, mine in slices.items() for one in mine]
    return pl.DataFrame(rows, schema=NO_SLICES.schema, orient="row")


def gather(
    rollout: Mapping[str, Any],
    *,
    steps: pl.DataFrame,
    tool_calls: pl.DataFrame,
    moves: pl.DataFrame,
    workers: pl.DataFrame,
    trajectories: pl.DataFrame,
    now_ns: int,
    fleet: Sequence[Activity] = (),
    slices: pl.DataFrame = NO_SLICES,
) -> Facts:
    """Facts of one row of `rollouts` from that rollout's rows of the other queries.

    *now_ns* is the watermark (the latest instant telemetry speaks of); *fleet* are activities that
    no trajectory has: down, weight_sync, reallocation. *slices* are an engine's own.
    """
    frames = Frames(steps, tool_calls, moves, trajectories, slices)
    window = window_of(rollout, frames, workers, now_ns)
    provisional = rollout.get("end_ns") is None
    own = trails(frames, Tables(), until(window, provisional), provisional=provisional)
    return facts_of(rollout, frames, workers, window, own, fleet)[0]


def until(window: Window, provisional: bool) -> int:  # noqa: FBT001 (what the rollout is)
    """What still lasts ends with a finished rollout; in a running one it stays OPEN."""
    return OPEN if provisional else window.end_ns


def facts_of(
    rollout: Mapping[str, Any],
    frames: Frames,
    workers: pl.DataFrame,
    window: Window,
    own: Columns,
    fleet: Sequence[Activity],
    past: Past | None = None,
) -> tuple[Facts, Columns]:
    """Facts of what trajectories did (trails.py; *past* is the rest of it), and what else they
    hold: leases covered, and the *fleet*'s own activities."""
    provisional = rollout.get("end_ns") is None
    leases = _with_the_dead(_leases(workers, frames.steps, window), fleet)
    seen = [own, Columns.of([*fleet], own.tables)]
    covered = _coverage(workers, leases, seen, window, provisional=provisional)
    common = together([seen[1], Columns.of(covered, own.tables)])
    gpus = rollout.get("gpus")
    gpus = _most_leased(leases) if gpus is None else int(gpus)
    named = frames.trajectories.select("trajectory_id", pl.col("group_id").fill_null(""))
    facts = Facts(
        window,
        # GPUs x wall fits 64 bits, whatever a sender says: an hour of 2.5 million GPUs does.
        min(gpus, INT64_MAX // max(window.end_ns - window.start_ns, 1)),
        tuple(leases),
        together([own, common]).closed(window.end_ns),
        dict(zip(*named.get_columns(), strict=True)),
        provisional,
        past or Past(),
    )
    return facts, common


def window_of(
    rollout: Mapping[str, Any], frames: Frames, workers: pl.DataFrame, now_ns: int
) -> Window:
    """The rollout's own; without a start the earliest row's, without an end the watermark; of one
    longer than LONGEST_NS the end."""
    start_ns = rollout.get("start_ns")
    if start_ns is None:
        begins = [frame["start_ns"].min() for frame in (*frames[:4], workers)]
        start_ns = min((int(x) for x in begins if isinstance(x, int)), default=now_ns)
    end_ns = rollout.get("end_ns")
    end_ns = max(start_ns, now_ns if end_ns is None else end_ns)
    return Window(max(start_ns, end_ns - LONGEST_NS), end_ns)


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _leases(workers: pl.DataFrame, steps: pl.DataFrame, window: Window) -> list[Lease]:
    """From `workers`; a worker seen only on steps holds its latest known degree all the while."""
    rows = workers.select("worker_id", "degree", "start_ns", "end_ns").iter_rows()
    leases = [
        Lease(
            worker_id,
            min(degree, MOST_DEGREE),
            _or(start_ns, window.start_ns),
            _or(end_ns, window.end_ns),
        )
        for worker_id, degree, start_ns, end_ns in rows
        if worker_id is not None and degree is not None
    ]
    named = [lease.worker_id for lease in leases]
    seen = steps.filter(
        pl.col("degree").is_not_null()
        & pl.col("worker_id").is_not_null()
        & ~pl.col("worker_id").is_in(named)
    )
    degrees = dict(seen.sort("start_ns", "degree").select("worker_id", "degree").iter_rows())
    return leases + [
        Lease(worker_id, min(degrees[worker_id], MOST_DEGREE), *window)
        for worker_id in sorted(degrees)
    ]


def _with_the_dead(leases: list[Lease], fleet: Sequence[Activity]) -> list[Lease]:
    """An engine that died still holds its GPUs: nobody else has them while it is down."""
    more: list[Lease] = []
    for worker_id, _, start_ns, end_ns, *_ in (x for x in fleet if x.kind == "down"):
        before = [x for x in leases if x.worker_id == worker_id and x.start_ns <= start_ns]
        last = max(before, key=lambda lease: lease.end_ns, default=None)
        if last is not None and last.end_ns < end_ns:
            more.append(Lease(worker_id, last.degree, last.end_ns, end_ns))
    return leases + more


def _coverage(
    workers: pl.DataFrame,
    leases: Sequence[Lease],
    activities: Sequence[Columns],
    window: Window,
    *,
    provisional: bool,
) -> list[Activity]:
    """Every lease is covered, an unended one of a finished rollout until its last activity."""
    rows = workers.filter(pl.col("end_ns").is_null()).select("worker_id", "start_ns").iter_rows()
    unended = {(w, _or(start_ns, window.start_ns)) for w, start_ns in rows}
    last = _last_seen(together(activities)) if unended and not provisional else {}
    found: list[Activity] = []
    for worker_id, _, start_ns, end_ns in leases:
        if (worker_id, start_ns) in unended:
            seen_ns = max(start_ns, last.get(worker_id, start_ns))
            end_ns = OPEN if provisional else min(end_ns, seen_ns)
        found.append(Activity(worker_id, "covered", start_ns, end_ns))
    return found


def _last_seen(activities: Columns) -> dict[str, int]:
    workers = activities.tables.workers
    last: Ints = ends(activities.worker, activities.start, activities.end, len(workers))[1]
    return {name: int(at) for name, at in zip(workers.names, last, strict=True) if at >= 0}


def _most_leased(leases: Sequence[Lease]) -> int:
    """GPUs of a rollout that does not say: the most its leases ever hold at once."""
    edges = [(lease.start_ns, lease.degree) for lease in leases]
    edges += [(lease.end_ns, -lease.degree) for lease in leases]
    held = most = 0
    for _, change in sorted(edges):
        held += change
        most = max(most, held)
    return most
