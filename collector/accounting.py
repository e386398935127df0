"""In which state was every GPU of a window, nanosecond by nanosecond?

Pure and exact: intervals in, integer GPU-nanoseconds out, and the states always sum to GPUs x wall.
It knows leases and what was observed on a worker; it knows nothing of spans, trajectories' homes or
queries (facts.py does). Intervals are half-open; what lies outside the window is cut off.

The first rule that holds decides the state of (worker, instant):
unknown       no `covered` activity says that telemetry covers the instant
down          the engine is dead
weight_sync   weights are loaded; engines are paused, so it beats a step that merely resides
busy_mixed, busy_prefill, busy_decode   a prefill and a decode, or one of them, is in the engine
reallocation  the layout changes (what still runs while it drains is busy)
unknown       `opaque`: a request is there and nobody said what happened to it
migration     a move somebody waits for
queued        a request waits, in the controller (held) or in the engine (queued)
tool_wait     a trajectory homed here is in a tool
orchestrator  a trajectory homed here is live and none of the above
ramp_up, tail_bubble   before the first, after the last live instant of this worker
starved_gap   between them without any live trajectory
A worker that never had a trajectory is measured against the fleet's first and last live instant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

State: TypeAlias = Literal[
    "unknown", "down", "weight_sync", "reallocation", "busy_mixed", "busy_prefill", "busy_decode",
    "migration", "queued", "tool_wait", "orchestrator", "ramp_up", "tail_bubble", "starved_gap",
    "unallocated",
]  # fmt: skip
Kind: TypeAlias = Literal[
    "held", "queued", "prefill", "decode", "tool", "move", "live", "opaque",
    "weight_sync", "reallocation", "down", "covered",
]  # fmt: skip

STATES: Final[tuple[State, ...]] = get_args(State)
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
BUSY: Final[tuple[State, ...]] = ("busy_mixed", "busy_prefill", "busy_decode")
IDLE: Final[tuple[State, ...]] = (
    "migration", "queued", "tool_wait", "orchestrator", "ramp_up", "tail_bubble", "starved_gap",
)  # fmt: skip
"""States in which a leased, working GPU waited: what blame.py splits."""
LIVE_KINDS: Final[tuple[Kind, ...]] = KINDS[:8]
"""Activities of a trajectory: while one lasts, the trajectory is live on that worker."""

_STATE: Final = {state: code for code, state in enumerate(STATES)}
_KIND: Final = {kind: code for code, kind in enumerate(KINDS)}
_Ints: TypeAlias = npt.NDArray[np.int64]
_Bools: TypeAlias = npt.NDArray[np.bool_]


class Window(NamedTuple):
    """A rollout, or a fixed interval where rollouts overlap."""

    start_ns: int
    end_ns: int


class Lease(NamedTuple):
    """One worker holds *degree* GPUs for a while; a change of degree is another lease."""

    worker_id: str
    degree: int
    start_ns: int
    end_ns: int


class Activity(NamedTuple):
    """Something observed on a worker. *name* is the tool's, where the kind is tool."""

    worker_id: str
    kind: Kind
    start_ns: int
    end_ns: int
    trajectory_id: str = ""
    name: str = ""


class Strip(NamedTuple):
    """One worker in one state; *gpus* counts (the degree, unless leases exceed the fleet)."""

    worker_id: str | None
    degree: int
    state: State
    start_ns: int
    end_ns: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Accounts:
    """The partition of one window: `sum(gpu_ns.values()) == gpus * wall_ns`, exactly."""

    window: Window
    gpus: int
    gpu_ns: dict[State, int]
    by_worker: dict[tuple[str | None, int, State], int]
    strips: tuple[Strip, ...]
    over_leased_ns: int = 0
    """GPU-ns that leases claimed beyond the fleet's GPUs, counted nowhere else."""
    reversed_intervals: int = 0
    """Leases and activities that end before they start, left out."""

    @property
    def wall_ns(self) -> int:
        return self.window.end_ns - self.window.start_ns

    @property
    def total_gpu_ns(self) -> int:
        return self.gpus * self.wall_ns

    @property
    def busy_ns(self) -> int:
        return sum(self.gpu_ns[state] for state in BUSY)

    @property
    def idle_ns(self) -> int:
        return sum(self.gpu_ns[state] for state in IDLE)


@dataclass(slots=True)
class _Granted:
    """What the leases come to once overlaps and excess are settled."""

    strips: dict[str, list[Strip]] = field(default_factory=dict[str, list[Strip]])
    unallocated: list[Strip] = field(default_factory=list[Strip])
    over_leased_ns: int = 0


class _Observed(NamedTuple):
    """Activities of one worker as columns, cut to the window."""

    kinds: _Ints
    starts: _Ints
    ends: _Ints


def account(
    window: Window, gpus: int, leases: Sequence[Lease], activities: Sequence[Activity]
) -> Accounts:
    """Partition *gpus* x the window into states.

    Of two leases of one worker the one that started last holds. Where leases exceed *gpus*, those
    that started first keep theirs (ties: by worker id), the rest gets what is left and the excess
    is reported. GPUs without a lease are `unallocated`.
    """
    _check(window, gpus, activities)
    granted = _grant(window, gpus, leases)
    observed, fleet = _columns(window, activities)
    strips: list[Strip] = []
    for worker_id in sorted(granted.strips):
        mine = observed.get(worker_id, _NOTHING)
        strips += _worker_strips(granted.strips[worker_id], mine, fleet)
    strips += granted.unallocated
    reversed_intervals = sum(x.end_ns < x.start_ns for x in (*leases, *activities))
    return _total(window, gpus, strips, granted.over_leased_ns, reversed_intervals)


def _check(window: Window, gpus: int, activities: Sequence[Activity]) -> None:
    if window.end_ns < window.start_ns:
        msg = f"the window ends at {window.end_ns}, before its start {window.start_ns}"
        raise ValueError(msg)
    if gpus < 0:
        msg = f"a fleet has 0 GPUs or more, not {gpus}"
        raise ValueError(msg)
    if strange := {activity.kind for activity in activities} - set(KINDS):
        msg = f"no activity kind called {min(strange)!r}; choose one of {', '.join(KINDS)}"
        raise ValueError(msg)


def _total(
    window: Window, gpus: int, strips: list[Strip], over_leased_ns: int, reversed_intervals: int
) -> Accounts:
    gpu_ns: dict[State, int] = dict.fromkeys(STATES, 0)
    by_worker: dict[tuple[str | None, int, State], int] = {}
    for worker_id, degree, state, start_ns, end_ns, width in strips:
        amount = width * (end_ns - start_ns)
        gpu_ns[state] += amount
        key = (worker_id, degree, state)
        by_worker[key] = by_worker.get(key, 0) + amount
    return Accounts(
        window, gpus, gpu_ns, by_worker, tuple(strips), over_leased_ns, reversed_intervals
    )


def _grant(window: Window, gpus: int, leases: Sequence[Lease]) -> _Granted:
    """Who holds how many GPUs when: the window cut at every lease's edge."""
    cut = [lease for lease in leases if lease.degree > 0 and _overlaps(window, lease)]
    cut.sort(key=lambda lease: (lease.start_ns, lease.end_ns, lease.degree))
    edges = {window.start_ns, window.end_ns}
    for lease in cut:
        edges |= {max(lease.start_ns, window.start_ns), min(lease.end_ns, window.end_ns)}
    granted = _Granted()
    for start_ns, end_ns in pairwise(sorted(edges)):
        holds = {x.worker_id: x for x in cut if x.start_ns <= start_ns and x.end_ns >= end_ns}
        _share(granted, gpus, list(holds.values()), start_ns, end_ns)
    return granted


def _overlaps(window: Window, lease: Lease) -> bool:
    start_ns = max(lease.start_ns, window.start_ns)
    return start_ns < min(lease.end_ns, window.end_ns)


def _share(granted: _Granted, gpus: int, holds: list[Lease], start_ns: int, end_ns: int) -> None:
    """Hand out *gpus* over one piece of time, first come first served."""
    left = gpus
    for worker_id, degree, _, _ in sorted(holds, key=lambda x: (x.start_ns, x.worker_id)):
        width = min(degree, left)
        left -= width
        granted.over_leased_ns += (degree - width) * (end_ns - start_ns)
        mine = granted.strips.setdefault(worker_id, [])
        if width:
            _extend(mine, Strip(worker_id, degree, "starved_gap", start_ns, end_ns, width))
    if left:
        strip = Strip(None, 0, "unallocated", start_ns, end_ns, left)
        _extend(granted.unallocated, strip)


def _extend(strips: list[Strip], strip: Strip) -> None:
    """Append, or lengthen the last strip where the new one merely continues it."""
    last = strips[-1] if strips else None
    same = last is not None and last.end_ns == strip.start_ns
    if last is not None and same and (*last[:3], last.gpus) == (*strip[:3], strip.gpus):
        strips[-1] = last._replace(end_ns=strip.end_ns)
    else:
        strips.append(strip)


def _ints(values: Any) -> _Ints:
    return np.array(values, dtype=np.int64)


_NOTHING: Final = _Observed(_ints([]), _ints([]), _ints([]))


def _columns(
    window: Window, activities: Sequence[Activity]
) -> tuple[dict[str, _Observed], tuple[int, int]]:
    """Activities by worker, and the first and last live instant of the fleet."""
    codes: dict[str, int] = {}
    workers = _ints([codes.setdefault(x.worker_id, len(codes)) for x in activities])
    kinds = _ints([_KIND[x.kind] for x in activities])
    starts = np.maximum(_ints([x.start_ns for x in activities]), window.start_ns)
    ends = np.minimum(_ints([x.end_ns for x in activities]), window.end_ns)
    inside = starts < ends
    live = inside & (kinds < len(LIVE_KINDS))
    first_ns = int(starts[live].min()) if live.any() else window.end_ns
    last_ns = int(ends[live].max()) if live.any() else window.end_ns
    order = np.argsort(workers[inside], kind="stable")
    columns = [column[inside][order] for column in (workers, kinds, starts, ends)]
    bounds = np.searchsorted(columns[0], np.arange(len(codes) + 1))
    observed = {
        worker_id: _Observed(*(column[bounds[code] : bounds[code + 1]] for column in columns[1:]))
        for worker_id, code in codes.items()
    }
    return observed, (first_ns, last_ns)


def _worker_strips(grants: list[Strip], mine: _Observed, fleet: tuple[int, int]) -> list[Strip]:
    """One worker's grants cut into states, adjacent equals merged."""
    if not grants:
        return []
    grant_edges = _ints([(grant.start_ns, grant.end_ns) for grant in grants]).ravel()
    edges: _Ints = np.unique(np.concatenate([mine.starts, mine.ends, grant_edges, _ints(fleet)]))
    states = _classify(edges, _flags(edges, mine), fleet)
    strips: list[Strip] = []
    for grant in grants:
        lo, hi = np.searchsorted(edges, (grant.start_ns, grant.end_ns))
        changes = np.flatnonzero(np.diff(states[lo:hi])) + lo + 1
        cuts = edges[np.concatenate([[lo], changes, [hi]])].tolist()
        codes = states[np.concatenate([[lo], changes])].tolist()
        for code, (start_ns, end_ns) in zip(codes, pairwise(cuts), strict=True):
            state = STATES[code]
            strips.append(grant._replace(state=state, start_ns=start_ns, end_ns=end_ns))
    return strips


def _flags(edges: _Ints, mine: _Observed) -> dict[Kind, _Bools]:
    """For every kind and every piece between two edges: does at least one activity last?"""
    width = len(edges)
    size = width * len(KINDS)
    row = mine.kinds * width
    opened = np.bincount(row + np.searchsorted(edges, mine.starts), minlength=size)
    closed = np.bincount(row + np.searchsorted(edges, mine.ends), minlength=size)
    running = (opened - closed).reshape(len(KINDS), width).cumsum(axis=1)[:, :-1] > 0
    return dict(zip(KINDS, running, strict=True))


def _classify(edges: _Ints, on: dict[Kind, _Bools], fleet: tuple[int, int]) -> _Ints:
    """The state's code of every piece; a later line beats an earlier one."""
    live = np.logical_or.reduce([on[kind] for kind in LIVE_KINDS])
    first_ns, last_ns = fleet
    if live.any():
        pieces = np.flatnonzero(live)
        first_ns, last_ns = int(edges[pieces[0]]), int(edges[pieces[-1] + 1])
    at = edges[:-1]
    states = np.full(len(at), _STATE["starved_gap"])
    rules: list[tuple[State, _Bools]] = [
        ("tail_bubble", at >= last_ns),
        ("ramp_up", at < first_ns),
        ("orchestrator", live),
        ("tool_wait", on["tool"]),
        ("queued", on["held"] | on["queued"]),
        ("migration", on["move"]),
        ("unknown", on["opaque"]),
        ("reallocation", on["reallocation"]),
        ("busy_decode", on["decode"]),
        ("busy_prefill", on["prefill"]),
        ("busy_mixed", on["prefill"] & on["decode"]),
        ("weight_sync", on["weight_sync"]),
        ("down", on["down"]),
        ("unknown", ~on["covered"]),
    ]
    for state, holds in rules:
        states[holds] = _STATE[state]
    return states
