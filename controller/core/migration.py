"""Which trajectories should change worker while their tools run?

`rank` is the paper's rule: sort the live by what remains, cut the list into the workers' groups
(sizes scaled to who is still alive), move whoever sits in the wrong group. A margin and the price
of the re-prefill guard it: on stock engines a move is paid for, and similar lengths packed together
thrash a finite cache. `rebalance` ignores ranks: it takes from the worker that would end last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from heddle.controller.core.book import Book, group_edges
from heddle.controller.core.cost import Load, remaining_work
from heddle.controller.core.crowd import Crowd, ends_s
from heddle.controller.core.draws import Floats
from heddle.controller.core.priority import longest_first
from heddle.controller.core.types import Latency, Move, Rates, Snapshot, Trajectory, Worker

Migration = Callable[[Snapshot, Book], list[Move]]

# Share of the live by which a rank must lie outside its worker's group: below it, ranks that a
# fresh prediction swaps would bounce trajectories between two workers.
MARGIN: Final = 0.05
# A move must bring the later of its two workers' ends this share nearer (planning.md B.2).
GAIN: Final = 0.005
# A worker this share above the mean expected end is not worth relieving (planning.md B.2).
LATE: Final = 0.05
MOST_MOVES: Final = 8
"""In one decision; the next one comes within a second."""


def stay(snapshot: Snapshot, book: Book) -> list[Move]:
    """Nobody moves."""
    _ = snapshot, book
    return []


def rank(snapshot: Snapshot, book: Book) -> list[Move]:
    """Longest first, one transfer per source and per target, only inside a tool interval."""
    _ = book
    workers = sorted(snapshot.workers, key=lambda w: -w.degree)
    at_home = {w.id for w in workers}
    live = [t for t in snapshot.trajectories if t.worker in at_home]
    ranked = longest_first(live, snapshot.rates)
    edges = group_edges(workers, len(ranked))
    homes = _homes(live, workers)
    loads = {w.id: _load(w.latency, homes[w.id], snapshot.rates) for w in workers}
    busy: set[str] = {t.worker or "" for t in live if t.moving}
    moves: list[Move] = []
    for place, trajectory in enumerate(ranked):
        target = _wrong_group(place, trajectory, workers, edges)
        if target is None or not _may_move(trajectory, target, snapshot.rates):
            continue
        source = trajectory.worker or ""
        if {source, target.id} & busy or not _gains(
            trajectory, target, loads, homes, snapshot.rates
        ):
            continue
        busy |= {source, target.id}
        because = f"rank {place} of {len(ranked)} belongs to {target.id}, was on {source}"
        moves.append(
            Move(trajectory=trajectory.id, source=source, target=target.id, because=because)
        )
    return moves


def _wrong_group(
    place: int, trajectory: Trajectory, workers: Sequence[Worker], edges: Sequence[int]
) -> Worker | None:
    """The worker of that rank, if the rank lies outside the host's group by the margin."""
    home = next(i for i, w in enumerate(workers) if w.id == trajectory.worker)
    margin = MARGIN * (edges[-1] if edges else 0)
    first = edges[home - 1] if home else 0
    if first - margin <= place < edges[home] + margin:
        return None
    return next(w for w, edge in zip(workers, edges, strict=True) if place < edge)


def _may_move(trajectory: Trajectory, target: Worker, rates: Rates) -> bool:
    """Between two steps, with enough tool time expected to hide the re-prefill."""
    if trajectory.state != "tool" or trajectory.moving or not trajectory.movable:
        return False
    left_s = rates.tool_s - trajectory.tool_s
    return left_s >= target.latency.prefill_s(trajectory.context_tokens)


def _homes(live: list[Trajectory], workers: Sequence[Worker]) -> dict[str, list[Trajectory]]:
    homes = {w.id: list[Trajectory]() for w in workers}
    for trajectory in live:
        homes[trajectory.worker or ""].append(trajectory)
    return homes


def _load(law: Latency, held: Sequence[Trajectory], rates: Rates) -> Load:
    load = Load(law)
    for trajectory in held:
        load.add(remaining_work(trajectory, rates), 0.0)
    return load


def _gains(
    trajectory: Trajectory,
    target: Worker,
    loads: dict[str, Load],
    homes: dict[str, list[Trajectory]],
    rates: Rates,
) -> bool:
    """Whether the later of the two workers' expected ends comes nearer, re-prefill paid."""
    source = trajectory.worker or ""
    before = max(loads[source].finish_s(), loads[target.id].finish_s())
    others = [t for t in homes[source] if t is not trajectory]
    without = _load(loads[source].latency, others, rates)
    work = remaining_work(trajectory, rates)
    price_s = target.latency.prefill_s(trajectory.context_tokens)
    after = max(without.finish_s(), loads[target.id].finish_s(work, price_s))
    return after < before * (1.0 - GAIN)


def rebalance(snapshot: Snapshot, book: Book) -> list[Move]:
    """Few moves, each off the worker with the latest expected end, re-prefill paid by the target.

    Stops where the latest end is near the mean, so it is quiet when there is nothing to gain.
    """
    if len(snapshot.workers) < 2 or not snapshot.trajectories:
        return []
    crowd = book.crowd
    names = list(crowd.at)
    members = _members(snapshot, crowd, book)
    stuck = np.zeros(len(names), dtype=bool)
    for trajectory in snapshot.trajectories:
        if trajectory.moving and trajectory.worker in crowd.at:
            stuck[crowd.at[trajectory.worker]] = True
    moves: list[Move] = []
    while len(moves) < MOST_MOVES:
        ends, mean_s = crowd.ends_s(), float(crowd.ends_s().mean())
        source = int(np.argmax(np.where(stuck, -1.0, ends)))
        if stuck.all() or ends[source] < mean_s * (1.0 + LATE):
            break
        stuck[source] = True
        found = _relief(crowd, members[source], source, ends, stuck)
        if found is None or ends[source] - found[2] < GAIN * mean_s:
            continue
        trajectory, target, after_s = found
        stuck[target] = True
        because = (
            f"{names[source]} would end last at {ends[source]:.1f} s; on {names[target]} "
            f"the later of both ends is {after_s:.1f} s, re-prefill paid"
        )
        moves.append(
            Move(
                trajectory=trajectory.id,
                source=names[source],
                target=names[target],
                because=because,
            )
        )
    return moves


def _members(snapshot: Snapshot, crowd: Crowd, book: Book) -> list[list[Trajectory]]:
    """Who counts at each worker."""
    members: list[list[Trajectory]] = [[] for _ in crowd.at]
    for trajectory in snapshot.trajectories:
        home = crowd.at.get(trajectory.worker or "")
        if home is not None and not book.is_away(trajectory):
            members[home].append(trajectory)
    return members


def _relief(
    crowd: Crowd, members: list[Trajectory], source: int, ends: Floats, closed: np.ndarray
) -> tuple[Trajectory, int, float] | None:
    """The move off that worker after which the later of both ends is earliest."""
    may = [i for i, t in enumerate(members) if t.state == "tool" and not t.moving and t.movable]
    targets = _targets(crowd, ends, closed)
    if not may or not targets:
        return None
    rows = np.array([crowd.outlook.rows[t.id] for t in members], dtype=np.intp)
    left = _without(crowd, source, rows)[may]
    best: tuple[Trajectory, int, float] | None = None
    for target in targets:
        there = _with(crowd, target, rows[may])
        later = np.maximum(left, there)
        place = int(np.argmin(later))
        if best is None or later[place] < best[2]:
            best = members[may[place]], target, float(later[place])
    return best


def _targets(crowd: Crowd, ends: Floats, closed: np.ndarray) -> list[int]:
    """The two earliest of each degree that no other transfer of this decision uses."""
    found: list[int] = []
    for kind in range(len(crowd.work_by_kind)):
        those = [int(i) for i in np.flatnonzero((crowd.kind == kind) & ~closed)]
        found += sorted(those, key=lambda i: float(ends[i]))[:2]
    return found


def _without(crowd: Crowd, source: int, rows: np.ndarray) -> Floats:
    """Expected end of the source without each of its members."""
    look = crowd.outlook
    draws = look.draws[rows]
    longest = np.zeros(1)
    if len(rows) > 1:
        first, second = np.partition(draws, -2, axis=0)[[-1, -2]]
        longest = np.where(draws >= first, second, first).mean(axis=1)
    work = crowd.work_by_kind[crowd.kind[source], rows]
    return ends_s(
        crowd.a_s[source], crowd.kv[source], crowd.running[source], look.tool_s_a_token,
        longest, crowd.area[source] - look.area[rows],
        crowd.tokens[source] - look.tokens[rows], crowd.work_s[source] - work,
    )  # fmt: skip


def _with(crowd: Crowd, target: int, rows: np.ndarray) -> Floats:
    """Expected end of the target with each of those, their contexts prefilled again."""
    look, kind = crowd.outlook, crowd.kind[target]
    work = crowd.work_by_kind[kind, rows] + crowd.prefill_by_kind[kind, rows]
    return ends_s(
        crowd.a_s[target], crowd.kv[target], crowd.running[target], look.tool_s_a_token,
        np.maximum(crowd.longest[target], look.draws[rows]).mean(axis=1),
        crowd.area[target] + look.area[rows], crowd.tokens[target] + look.tokens[rows],
        crowd.work_s[target] + work,
    )  # fmt: skip


MIGRATIONS: Final[dict[str, Migration]] = {"off": stay, "rank": rank, "rebalance": rebalance}
