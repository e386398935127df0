"""Whose fault is each idle GPU-nanosecond?

Every idle state is split equally, at every instant, over those it waits for:
tool_wait                 the trajectories in a tool on that worker, under their tool's name
queued                    the trajectories that wait (held or queued) for that worker
migration, orchestrator   the trajectories on the move to, or live on, that worker
tail_bubble, starved_gap  the trajectories still live anywhere in the fleet
ramp_up, and instants nobody answers for, stay unexplained. Exact: blame + unexplained = idle.

Of parallel tools of one trajectory the one that ends last is blamed (ties: the later name), since
the trajectory waits for it. What does not divide evenly goes by largest remainder over a whole
state, ties by trajectory id (shares.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from heddle.collector.accounting import Accounts
from heddle.collector.activities import Columns, Ints, ints
from heddle.collector.cells import CELL_BITS, Edges
from heddle.collector.ledger import Strips
from heddle.collector.lives import live_spans
from heddle.collector.shares import NAME_BITS, Spans, settle, share, summed
from heddle.collector.states import BLAMED_KINDS, FLEET_STATES, IDLE, STATE, STATES, State
from heddle.collector.sweep import USED, shares


class Cell(NamedTuple):
    """One share of the blame."""

    state: State
    trajectory_id: str
    tool_name: str
    gpu_ns: int


class Shares(NamedTuple):
    """The same as columns of codes."""

    state: Ints
    trajectory: Ints
    tool: Ints
    gpu_ns: Ints


@dataclass(frozen=True)
class Blame:
    """Idle GPU-ns of one window and who it waited for: `sum(cells) + unexplained_ns == idle_ns`."""

    idle_ns: int
    shares: Shares
    columns: Columns
    """Whose tables name the codes."""
    by_worker: dict[str, int]
    """Explained idle by the worker that idled; sums to what `cells` sum to."""
    groups: Mapping[str, str]

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The largest first; ties by state, trajectory and tool."""
        trajectories, tools = self._names
        rows = zip(*(column.tolist() for column in self.shares), strict=True)
        cells = [Cell(STATES[s], trajectories[t], tools[tool], ns) for s, t, tool, ns in rows]
        return tuple(sorted(cells, key=lambda cell: (-cell.gpu_ns, cell[:3])))

    @property
    def _names(self) -> tuple[list[str], list[str]]:
        return self.columns.tables.trajectories.names, self.columns.tables.tools.names

    @property
    def explained_ns(self) -> int:
        return int(self.shares.gpu_ns.sum())

    @property
    def unexplained_ns(self) -> int:
        return self.idle_ns - self.explained_ns

    @cached_property
    def by_trajectory(self) -> dict[str, int]:
        return self.of(IDLE)

    @cached_property
    def by_group(self) -> dict[str, int]:
        pairs = ((self.groups.get(t, ""), ns) for t, ns in self.by_trajectory.items())
        return most_first(pairs)

    @cached_property
    def by_tool(self) -> dict[str, int]:
        """Tool waits only; "" is a tool without a name."""
        waits = self.shares.state == STATE["tool_wait"]
        return _totals(self.shares.tool[waits], self.shares.gpu_ns[waits], self._names[1])

    @cached_property
    def by_state(self) -> dict[str, int]:
        return _totals(self.shares.state, self.shares.gpu_ns, STATES)

    def of(self, states: Sequence[State]) -> dict[str, int]:
        """By trajectory, in these states only."""
        chosen = np.isin(self.shares.state, [STATE[state] for state in states])
        whose, amount = self.shares.trajectory[chosen], self.shares.gpu_ns[chosen]
        return _totals(whose, amount, self._names[0])


def blame(accounts: Accounts, groups: Mapping[str, str] | None = None) -> Blame:
    """Split the idle time of *accounts* over the trajectories of their activities."""
    ledger, columns = accounts.ledger, accounts.ledger.columns
    ranks = columns.tables.trajectories.ranks, columns.tables.tools.ranks
    found: list[Shares] = []
    explained = np.zeros(len(columns.tables.workers), np.int64)
    for state in BLAMED_KINDS:
        rows = shares(ledger.tables, state)
        found.append(_columns(state, *settle(rows, *ranks)))
        np.add.at(explained, rows.rest_cell >> CELL_BITS, rows.explained)
    live = live_spans(ledger.past.living(columns))
    for state in FLEET_STATES:
        strips = accounts.of((state,))
        owned, by_strip = _fleet(strips, live, ranks)
        found.append(_columns(state, *owned))
        np.add.at(explained, strips.worker, by_strip)
    whole = Shares(*(np.concatenate(column) for column in zip(*found, strict=True)))
    by_worker = _totals(np.arange(len(explained)), explained, columns.tables.workers.names)
    return Blame(accounts.idle_ns, whole, columns, by_worker, groups or {})


def used(accounts: Accounts) -> dict[str, int]:
    """Busy GPU-ns by trajectory, split equally at every instant over those in the engine.

    Sums to `accounts.busy_ns` exactly.
    """
    tables = accounts.ledger.columns.tables
    rows = shares(accounts.ledger.tables, USED)
    owners, amounts = settle(rows, tables.trajectories.ranks, tables.tools.ranks)
    return _totals(owners >> NAME_BITS, amounts, tables.trajectories.names)


def _columns(state: State, owner: Ints, amount: Ints) -> Shares:
    tool = owner & (1 << NAME_BITS) - 1
    return Shares(np.full(len(owner), STATE[state]), owner >> NAME_BITS, tool, amount)


def _fleet(strips: Strips, live: Spans, ranks: tuple[Ints, Ints]) -> tuple[tuple[Ints, Ints], Ints]:
    """What each live trajectory answers for of these strips, and what is explained of each."""
    nothing = ints([])
    if not len(strips.start) or not len(live.lo):
        return (nothing, nothing), np.zeros(len(strips.start), np.int64)
    count = len(strips.start)
    times = np.concatenate([strips.start, strips.end, live.lo, live.hi])
    at, place = np.unique(times, return_inverse=True)
    lo, hi, live_lo = place[:count], place[count : 2 * count], place[2 * count : -len(live.hi)]
    edges = Edges(np.zeros_like(at), at, np.diff(at), [lo], [hi])
    spans = live._replace(lo=live_lo, hi=place[-len(live.hi) :])
    owned = share(edges, edges.level(0, strips.gpus) * edges.length, spans)
    covered = np.zeros(len(at), np.int64)
    np.add.at(covered, spans.lo, 1)
    np.subtract.at(covered, spans.hi, 1)
    until = np.concatenate([[0], np.cumsum(edges.length * (np.cumsum(covered)[:-1] > 0))])
    return settle(owned, *ranks), strips.gpus * (until[hi] - until[lo])


def _totals(code: Ints, amount: Ints, names: Sequence[Any]) -> dict[str, int]:
    """Totals by name, largest first, ties by name."""
    codes, place = np.unique(code, return_inverse=True)
    sums = summed(place, amount, len(codes)).tolist()
    return most_first((names[at], ns) for at, ns in zip(codes.tolist(), sums, strict=True) if ns)


def most_first(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Totals by key, largest first, ties by key."""
    totals: dict[str, int] = {}
    for key, amount in pairs:
        totals[key] = totals.get(key, 0) + amount
    return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))
