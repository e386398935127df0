"""Whose fault is each idle GPU-nanosecond?

Every idle state is split equally, at every instant, over those it waits for:
tool_wait                 the trajectories in a tool on that worker, under their tool's name
queued                    the trajectories that wait (held or queued) for that worker
migration, orchestrator   the trajectories on the move to, or live on, that worker
tail_bubble, starved_gap  the trajectories still live anywhere in the fleet
ramp_up, and instants nobody answers for, stay unexplained. Exact: blame + unexplained = idle.

Of parallel tools of one trajectory the one that ends last is blamed (ties: the later name), since
the trajectory waits for it. A piece that does not divide evenly leaves fewer nanoseconds than
there are trajectories; over a whole state these go by largest remainder, ties by trajectory id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from heddle.collector.accounting import (
    BUSY,
    IDLE,
    LIVE_KINDS,
    Accounts,
    Activity,
    Kind,
    State,
    Strip,
)

BLAMED_KINDS: Final[dict[State, tuple[Kind, ...]]] = {
    "migration": ("move",),
    "queued": ("held", "queued"),
    "tool_wait": ("tool",),
    "orchestrator": ("live",),
}
"""States answered for by trajectories on the same worker, and what these must be doing."""
FLEET_STATES: Final[tuple[State, ...]] = ("tail_bubble", "starved_gap")
"""States answered for by whoever is still live anywhere."""
_FRACTION_BITS: Final = 30
"""Of the fixed-point remainders: 10^6 pieces of them still fit 64 bits."""

_Ints: TypeAlias = npt.NDArray[np.int64]
Owner: TypeAlias = tuple[str, str]
"""Trajectory id and tool name ("" outside tool_wait)."""


class Cell(NamedTuple):
    """One share of the blame."""

    state: State
    trajectory_id: str
    tool_name: str
    gpu_ns: int


class _Span(NamedTuple):
    owner: Owner
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Blame:
    """Idle GPU-ns of one window and who it waited for: `sum(cells) + unexplained_ns == idle_ns`."""

    idle_ns: int
    cells: tuple[Cell, ...]
    by_worker: dict[str, int]
    """Explained idle by the worker that idled; sums to what `cells` sum to."""
    groups: Mapping[str, str]

    @property
    def explained_ns(self) -> int:
        return sum(cell.gpu_ns for cell in self.cells)

    @property
    def unexplained_ns(self) -> int:
        return self.idle_ns - self.explained_ns

    @property
    def by_trajectory(self) -> dict[str, int]:
        return _most_first((cell.trajectory_id, cell.gpu_ns) for cell in self.cells)

    @property
    def by_group(self) -> dict[str, int]:
        pairs = ((self.groups.get(x.trajectory_id, ""), x.gpu_ns) for x in self.cells)
        return _most_first(pairs)

    @property
    def by_tool(self) -> dict[str, int]:
        """Tool waits only; "" is a tool without a name."""
        waits = (cell for cell in self.cells if cell.state == "tool_wait")
        return _most_first((cell.tool_name, cell.gpu_ns) for cell in waits)

    @property
    def by_state(self) -> dict[str, int]:
        return _most_first((cell.state, cell.gpu_ns) for cell in self.cells)


def blame(
    accounts: Accounts, activities: Sequence[Activity], groups: Mapping[str, str] | None = None
) -> Blame:
    """Split the idle time of *accounts* over the trajectories of the same *activities*."""
    totals: dict[tuple[State, Owner], int] = defaultdict(int)
    by_worker: dict[str, int] = defaultdict(int)
    idle = _idle_strips(accounts.strips)
    spans = _worker_spans(activities, {key for key in idle if key[0] in BLAMED_KINDS})
    for (state, worker_id), owned in sorted(spans.items()):
        for owner, amount in _split(idle[state, worker_id], owned).items():
            totals[state, owner] += amount
            by_worker[worker_id] += amount
    live = _one_at_a_time((x for x in activities if x.kind in LIVE_KINDS), named=False)
    for state in FLEET_STATES:
        strips = [x for key, kept in sorted(idle.items()) if key[0] == state for x in kept]
        for owner, amount in _split(strips, live).items():
            totals[state, owner] += amount
        _explained_by_worker(strips, live, by_worker)
    cells = [Cell(state, *owner, amount) for (state, owner), amount in totals.items() if amount]
    cells.sort(key=lambda cell: (-cell.gpu_ns, cell[:3]))
    return Blame(accounts.idle_ns, tuple(cells), _most_first(by_worker.items()), groups or {})


def used(accounts: Accounts, activities: Sequence[Activity]) -> dict[str, int]:
    """Busy GPU-ns by trajectory, split equally at every instant over those in the engine.

    Sums to `accounts.busy_ns` exactly.
    """
    busy: dict[str, list[Strip]] = defaultdict(list)
    for strip in accounts.strips:
        if strip.state in BUSY and strip.worker_id is not None:
            busy[strip.worker_id].append(strip)
    running: dict[str, list[Activity]] = defaultdict(list)
    for activity in activities:
        if activity.kind in ("prefill", "decode") and activity.worker_id in busy:
            running[activity.worker_id].append(activity)
    pairs: list[tuple[str, int]] = []
    for worker_id in sorted(busy):
        shares = _split(busy[worker_id], _one_at_a_time(running[worker_id], named=False))
        pairs += [(owner[0], amount) for owner, amount in shares.items()]
    return _most_first(pairs)


def _most_first(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Totals by key, largest first, ties by key."""
    totals: dict[str, int] = defaultdict(int)
    for key, amount in pairs:
        totals[key] += amount
    return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


def _idle_strips(strips: Sequence[Strip]) -> dict[tuple[State, str], list[Strip]]:
    kept: dict[tuple[State, str], list[Strip]] = defaultdict(list)
    for strip in strips:
        if strip.state in IDLE and strip.worker_id is not None:
            kept[strip.state, strip.worker_id].append(strip)
    return kept


def _worker_spans(
    activities: Sequence[Activity], wanted: set[tuple[State, str]]
) -> dict[tuple[State, str], list[_Span]]:
    """For every idle state of a worker, the disjoint intervals of those it is blamed on."""
    state_of: dict[Kind, State] = {
        kind: state for state, kinds in BLAMED_KINDS.items() for kind in kinds
    }
    found: dict[tuple[State, str], list[Activity]] = {key: [] for key in wanted}
    for activity in activities:
        if state := state_of.get(activity.kind):
            found.get((state, activity.worker_id), []).append(activity)
    return {key: _one_at_a_time(mine, named=key[0] == "tool_wait") for key, mine in found.items()}


def _one_at_a_time(activities: Iterable[Activity], *, named: bool) -> list[_Span]:
    """Each trajectory's intervals made disjoint; where they overlap the last to end keeps all."""
    mine: dict[str, list[Activity]] = defaultdict(list)
    for activity in activities:
        if activity.trajectory_id and activity.start_ns < activity.end_ns:
            mine[activity.trajectory_id].append(activity)
    spans: list[_Span] = []
    for trajectory_id in sorted(mine):
        # From the last end backwards: each interval only gets what lies before those kept so far.
        free_ns = max(activity.end_ns for activity in mine[trajectory_id])
        for x in sorted(mine[trajectory_id], key=lambda x: (x.end_ns, x.name), reverse=True):
            end_ns = min(x.end_ns, free_ns)
            if x.start_ns < end_ns:
                owner = (trajectory_id, x.name if named else "")
                spans.append(_Span(owner, x.start_ns, end_ns))
                free_ns = x.start_ns
    return spans


class _Pieces(NamedTuple):
    """Time cut at every edge: per piece its length, the idle GPUs in it and those to blame."""

    edges: _Ints
    length_ns: _Ints
    gpus: _Ints
    blamed: _Ints


def _pieces(strips: Sequence[Strip], spans: Sequence[_Span]) -> _Pieces:
    strip = np.array([x[3:] for x in strips], dtype=np.int64).reshape(-1, 3)
    span = np.array([x[1:] for x in spans], dtype=np.int64).reshape(-1, 2)
    edges: _Ints = np.unique(np.concatenate([strip[:, :2].ravel(), span.ravel()]))
    gpus, blamed = np.zeros(len(edges), np.int64), np.zeros(len(edges), np.int64)
    np.add.at(gpus, np.searchsorted(edges, strip[:, 0]), strip[:, 2])
    np.add.at(gpus, np.searchsorted(edges, strip[:, 1]), -strip[:, 2])
    np.add.at(blamed, np.searchsorted(edges, span[:, 0]), 1)
    np.add.at(blamed, np.searchsorted(edges, span[:, 1]), -1)
    return _Pieces(edges, np.diff(edges), gpus.cumsum()[:-1], blamed.cumsum()[:-1])


def _split(strips: Sequence[Strip], spans: Sequence[_Span]) -> dict[Owner, int]:
    """Idle GPU-ns of *strips* shared equally, piece by piece, among the spans that cover them."""
    if not strips or not spans:
        return {}
    edges, length_ns, gpus, blamed = _pieces(strips, spans)
    among = np.maximum(blamed, 1)
    amount = np.where(blamed > 0, gpus * length_ns, 0)
    share, rest = np.divmod(amount, among)
    whole = _before(share)
    part = _before((rest << _FRACTION_BITS) // among)
    wholes: dict[Owner, int] = defaultdict(int)
    parts: dict[Owner, int] = defaultdict(int)
    first = np.searchsorted(edges, [span.start_ns for span in spans])
    last = np.searchsorted(edges, [span.end_ns for span in spans])
    gains = zip(
        (whole[last] - whole[first]).tolist(), (part[last] - part[first]).tolist(), strict=True
    )
    for span, (whole_ns, part_ns) in zip(spans, gains, strict=True):
        wholes[span.owner] += whole_ns
        parts[span.owner] += part_ns
    return _settle(wholes, parts, int(rest.sum()))


def _before(values: _Ints) -> _Ints:
    """Sum of the values before each edge."""
    return np.concatenate([[0], np.cumsum(values)])


def _settle(wholes: dict[Owner, int], parts: dict[Owner, int], rest_ns: int) -> dict[Owner, int]:
    """Add the nanoseconds that did not divide: whole parts first, the others by remainder."""
    for owner, part in parts.items():
        wholes[owner] += part >> _FRACTION_BITS
        rest_ns -= part >> _FRACTION_BITS
    mask = (1 << _FRACTION_BITS) - 1
    ranked = sorted((o for o in parts if parts[o]), key=lambda o: (-(parts[o] & mask), o))
    for place in range(rest_ns):
        wholes[ranked[place % len(ranked)]] += 1
    return wholes


def _explained_by_worker(
    strips: Sequence[Strip], live: Sequence[_Span], by_worker: dict[str, int]
) -> None:
    """Add each worker's time of *strips* during which anybody was live."""
    if not strips or not live:
        return
    edges, length_ns, _, blamed = _pieces(strips, live)
    covered = _before(np.where(blamed > 0, length_ns, 0))
    for strip in strips:
        lo, hi = np.searchsorted(edges, (strip.start_ns, strip.end_ns))
        if covered[hi] > covered[lo]:
            by_worker[strip.worker_id or ""] += strip.gpus * int(covered[hi] - covered[lo])
