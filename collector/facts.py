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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import polars as pl

from heddle.collector.accounting import Activity, Kind, Lease, Window

NOWHERE: Final = ""
"""Worker id of a trajectory that is live and homed on no worker yet."""
_PARTS: Final[tuple[Kind, ...]] = ("held", "queued", "prefill", "decode")


@dataclass(frozen=True, slots=True)
class Facts:
    """One rollout, ready to account for."""

    window: Window
    gpus: int
    leases: tuple[Lease, ...]
    activities: tuple[Activity, ...]
    groups: dict[str, str]
    """Group of each trajectory; "" where none is known."""
    provisional: bool
    """The rollout still runs: the window ends at the watermark."""


class Slice(NamedTuple):
    """One stage of a request by the engine's own span."""

    kind: Kind
    start_ns: int
    end_ns: int


class _Step(NamedTuple):
    trajectory_id: str
    step_index: int | None
    worker_id: str | None
    start_ns: int
    end_ns: int | None
    held_ns: int | None
    queue_ns: int | None
    prefill_ns: int | None
    decode_ns: int | None


class _Tool(NamedTuple):
    trajectory_id: str
    tool_name: str | None
    start_ns: int
    end_ns: int | None


class _Move(NamedTuple):
    trajectory_id: str
    move_target: str | None
    start_ns: int
    end_ns: int | None
    hidden_s: float | None
    exposed_s: float | None


class _Stint(NamedTuple):
    """A trajectory's stay on one worker."""

    worker_id: str
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class _Trail:
    """Everything known of one trajectory, each list in order of time."""

    trajectory_id: str
    start_ns: int | None = None
    end_ns: int | None = None
    steps: list[_Step] = field(default_factory=list[_Step])
    tools: list[_Tool] = field(default_factory=list[_Tool])
    moves: list[_Move] = field(default_factory=list[_Move])


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
    slices: Mapping[str, Sequence[Slice]] | None = None,
) -> Facts:
    """Facts of one row of `rollouts` from that rollout's rows of the other queries.

    *now_ns* is the watermark (the latest instant telemetry speaks of); *fleet* are activities that
    no trajectory has: down, weight_sync, reallocation. *slices* are an engine's own, by trajectory.
    """
    provisional = rollout.get("end_ns") is None
    frames = (steps, tool_calls, moves, workers, trajectories)
    window = _window(rollout, frames, now_ns)
    activities = [*fleet]
    for trail in _trails(steps, tool_calls, moves, trajectories):
        own = (slices or {}).get(trail.trajectory_id, ())
        activities += _follow(trail, window.end_ns, own, provisional=provisional)
    leases = _leases(workers, steps, window)
    activities += _coverage(workers, leases, activities, window, provisional=provisional)
    gpus = rollout.get("gpus")
    return Facts(
        window,
        _most_leased(leases) if gpus is None else int(gpus),
        tuple(leases),
        tuple(activities),
        {str(t): g or "" for t, g in trajectories.select("trajectory_id", "group_id").iter_rows()},
        provisional,
    )


def _window(rollout: Mapping[str, Any], frames: Sequence[pl.DataFrame], now_ns: int) -> Window:
    """The rollout's own; without a start the earliest row's, without an end the watermark."""
    start_ns = rollout.get("start_ns")
    if start_ns is None:
        begins = [frame["start_ns"].min() for frame in frames]
        start_ns = min((int(x) for x in begins if isinstance(x, int)), default=now_ns)
    end_ns = rollout.get("end_ns")
    return Window(start_ns, max(start_ns, now_ns if end_ns is None else end_ns))


def _trails(
    steps: pl.DataFrame, tool_calls: pl.DataFrame, moves: pl.DataFrame, trajectories: pl.DataFrame
) -> list[_Trail]:
    """One trail per trajectory, in order of id."""
    trails: dict[str, _Trail] = {}
    spans = trajectories.select("trajectory_id", "start_ns", "end_ns")
    for trajectory_id, start_ns, end_ns in spans.iter_rows():
        trails[trajectory_id] = _Trail(trajectory_id, start_ns, end_ns)

    def trail(trajectory_id: str) -> _Trail:
        if trajectory_id not in trails:
            trails[trajectory_id] = _Trail(trajectory_id)
        return trails[trajectory_id]

    for row in _ordered(steps, _Step._fields, "step_index"):
        trail(row[0]).steps.append(_Step(*row))
    for row in _ordered(tool_calls, _Tool._fields, "tool_name"):
        trail(row[0]).tools.append(_Tool(*row))
    for row in _ordered(moves, _Move._fields, "move_target"):
        trail(row[0]).moves.append(_Move(*row))
    return [trails[trajectory_id] for trajectory_id in sorted(trails)]


def _ordered(frame: pl.DataFrame, columns: Sequence[str], tie: str) -> Iterator[tuple[Any, ...]]:
    """Rows of a trajectory that have a start, by start; ties by *tie*."""
    known = frame.filter(pl.col("trajectory_id").is_not_null() & pl.col("start_ns").is_not_null())
    return known.sort("start_ns", tie).select(columns).iter_rows()


def _follow(
    trail: _Trail, until_ns: int, slices: Sequence[Slice], *, provisional: bool
) -> list[Activity]:
    """Every activity of one trajectory."""
    ends = _step_ends(trail, until_ns)
    homes = _homes(trail.steps)
    tool_ends = [_tool_end(tool, trail, until_ns) for tool in trail.tools]
    known = [*ends, *tool_ends, _or(trail.end_ns, 0)]
    if trail.end_ns is None and (provisional or max(known) == 0):
        known.append(until_ns)
    end_ns = max(known)
    stints = list(_stints(trail, homes, end_ns))
    found = [Activity(*stint[:1], "live", *stint[1:], trail.trajectory_id) for stint in stints]
    for step, home, step_end_ns in zip(trail.steps, homes, ends, strict=True):
        own = [x for x in slices if step.start_ns <= (x.start_ns + x.end_ns) // 2 < step_end_ns]
        found += _sliced(step, home, step_end_ns, own) if own else _step(step, home, step_end_ns)
    found += _holes(trail.steps, homes, ends)
    for tool, tool_end_ns in zip(trail.tools, tool_ends, strict=True):
        found += _tool(tool, tool_end_ns, stints)
    return [*found, *map(_move, trail.moves)]


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _step_ends(trail: _Trail, until_ns: int) -> list[int]:
    """Each step's end; one without an end lasts to the next step, else to the trajectory's end."""
    last_ns = max(_or(trail.end_ns, until_ns), trail.steps[-1].start_ns) if trail.steps else 0
    following = [*(step.start_ns for step in trail.steps[1:]), last_ns]
    return [_or(step.end_ns, end_ns) for step, end_ns in zip(trail.steps, following, strict=True)]


def _tool_end(tool: _Tool, trail: _Trail, until_ns: int) -> int:
    if tool.end_ns is not None:
        return tool.end_ns
    after = next((s.start_ns for s in trail.steps if s.start_ns > tool.start_ns), None)
    return _or(after, _or(trail.end_ns, until_ns))


def _homes(steps: Sequence[_Step]) -> list[str]:
    """The worker of each step: its own, else that of the step before, else the first one known."""
    home = next((step.worker_id for step in steps if step.worker_id), NOWHERE)
    homes: list[str] = []
    for step in steps:
        home = step.worker_id or home
        homes.append(home)
    return homes


def _stints(trail: _Trail, homes: Sequence[str], end_ns: int) -> Iterator[_Stint]:
    """The trajectory's life cut at the steps that start on another worker."""
    first_ns = trail.steps[0].start_ns if trail.steps else end_ns
    start_ns, home = min(first_ns, _or(trail.start_ns, first_ns)), NOWHERE
    for step, next_home in zip(trail.steps, homes, strict=True):
        if next_home != home:
            if start_ns < step.start_ns:
                yield _Stint(home, start_ns, step.start_ns)
            start_ns, home = step.start_ns, next_home
    if start_ns < end_ns:
        yield _Stint(home, start_ns, end_ns)


def _step(step: _Step, home: str, end_ns: int) -> Iterator[Activity]:
    """Held, queued, prefill, decode in order; without engine timings the rest is opaque."""
    at_ns = step.start_ns
    for kind, duration_ns in zip(_PARTS, step[-4:], strict=True):
        if duration_ns and at_ns < end_ns:
            until_ns = min(at_ns + max(duration_ns, 0), end_ns)
            yield Activity(home, kind, at_ns, until_ns, step.trajectory_id)
            at_ns = until_ns
    if step.prefill_ns is None and step.decode_ns is None and at_ns < end_ns:
        yield Activity(home, "opaque", at_ns, end_ns, step.trajectory_id)


def _sliced(step: _Step, home: str, end_ns: int, own: Sequence[Slice]) -> Iterator[Activity]:
    """The engine's own slices; a stage of which none came (it was lost) by the step's timings."""
    stages = {x.kind for x in own}
    yield from (x for x in _step(step, home, end_ns) if x.kind not in stages)
    for x in own:
        yield Activity(home, x.kind, x.start_ns, x.end_ns, step.trajectory_id)


def _holes(steps: Sequence[_Step], homes: Sequence[str], ends: Sequence[int]) -> Iterator[Activity]:
    """Where a step index is missing, its span was lost: nobody knows what happened there."""
    for (step, after), home, end_ns in zip(pairwise(steps), homes, ends, strict=False):
        if step.step_index is None or after.step_index is None:
            continue
        if after.step_index > step.step_index + 1 and end_ns < after.start_ns:
            yield Activity(home, "opaque", end_ns, after.start_ns, step.trajectory_id)


def _tool(tool: _Tool, end_ns: int, stints: Sequence[_Stint]) -> Iterator[Activity]:
    """A tool interval belongs to whichever worker the trajectory is homed on meanwhile."""
    for stint in stints:
        start_ns, until_ns = max(tool.start_ns, stint.start_ns), min(end_ns, stint.end_ns)
        if start_ns < until_ns:
            name = tool.tool_name or ""
            yield Activity(stint.worker_id, "tool", start_ns, until_ns, tool.trajectory_id, name)


def _move(move: _Move) -> Activity:
    """The exposed end of a move, on its target; what its span does not call hidden is exposed."""
    end_ns = _or(move.end_ns, move.start_ns)
    exposed_ns = end_ns - move.start_ns - round((move.hidden_s or 0.0) * 1e9)
    if move.exposed_s is not None:
        exposed_ns = round(move.exposed_s * 1e9)
    start_ns = min(end_ns, max(move.start_ns, end_ns - exposed_ns))
    return Activity(move.move_target or NOWHERE, "move", start_ns, end_ns, move.trajectory_id)


def _leases(workers: pl.DataFrame, steps: pl.DataFrame, window: Window) -> list[Lease]:
    """From `workers`; a worker seen only on steps holds its latest known degree all the while."""
    rows = workers.select("worker_id", "degree", "start_ns", "end_ns").iter_rows()
    leases = [
        Lease(worker_id, degree, _or(start_ns, window.start_ns), _or(end_ns, window.end_ns))
        for worker_id, degree, start_ns, end_ns in rows
        if worker_id is not None and degree is not None
    ]
    named = {lease.worker_id for lease in leases}
    seen = steps.filter(pl.col("degree").is_not_null() & pl.col("worker_id").is_not_null())
    degrees = dict(seen.sort("start_ns").select("worker_id", "degree").iter_rows())
    unnamed = sorted(degrees.keys() - named)
    return leases + [Lease(worker_id, degrees[worker_id], *window) for worker_id in unnamed]


def _coverage(
    workers: pl.DataFrame,
    leases: Sequence[Lease],
    activities: Sequence[Activity],
    window: Window,
    *,
    provisional: bool,
) -> Iterator[Activity]:
    """Every lease is covered, an unended one of a finished rollout until its last activity."""
    rows = workers.filter(pl.col("end_ns").is_null()).select("worker_id", "start_ns").iter_rows()
    unended = (
        set() if provisional else {(w, _or(start_ns, window.start_ns)) for w, start_ns in rows}
    )
    last: dict[str, int] = {}
    for activity in activities if unended else ():
        last[activity.worker_id] = max(last.get(activity.worker_id, 0), activity.end_ns)
    for worker_id, _, start_ns, end_ns in leases:
        if (worker_id, start_ns) in unended:
            end_ns = min(end_ns, max(start_ns, last.get(worker_id, start_ns)))
        yield Activity(worker_id, "covered", start_ns, end_ns)


def _most_leased(leases: Sequence[Lease]) -> int:
    """GPUs of a rollout that does not say: the most its leases ever hold at once."""
    edges = [(lease.start_ns, lease.degree) for lease in leases]
    edges += [(lease.end_ns, -lease.degree) for lease in leases]
    held = most = 0
    for _, change in sorted(edges):
        held += change
        most = max(most, held)
    return most
