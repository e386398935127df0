"""Which trajectories should change worker while their tools run?

`rank` is the paper's rule: sort the live by what remains, cut the list into the workers' groups
(sizes scaled to who is still alive), move whoever sits in the wrong group. A margin and the price
of the move guard it (carried.py): on stock engines it is paid for, and similar lengths packed
together thrash a finite cache. `rebalance` ignores ranks: it takes from the worker that would end
last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from heddle.controller.core.book import Book, group_edges
from heddle.controller.core.carried import carried_many_s, carried_s, fetch_token_s
from heddle.controller.core.cost import Load, remaining_work
from heddle.controller.core.crowd import Crowd
from heddle.controller.core.draws import Floats, Ints
from heddle.controller.core.memory import HELD, TOOL, Flags
from heddle.controller.core.priority import Standing, longest_first
from heddle.controller.core.types import Latency, Move, Rates, Snapshot, Trajectory, Worker

Migration = Callable[[Snapshot, Book], list[Move]]

# Share of the live by which a rank must lie outside its worker's group: below it, ranks that a
# fresh prediction swaps would bounce trajectories between two workers.
MARGIN: Final = 0.05
# A move must bring the later of its two workers' ends this share nearer (planning.md B.2).
GAIN: Final = 0.005
PRICE: Final = 0.01
"""Most that the prefill of a move may take of what its worker has left: the gain is an expectation,
the delay of the one who moves is certain (dear moves lost 1-3 % in search)."""
# A worker this share above the mean expected end is not worth relieving (planning.md B.2).
LATE: Final = 0.05
MOVE_ROOM: Final = 0.8
"""Share of the target's KV that may be expected at its peak with the newcomer, as in admission."""
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
    at_home = {w.id: w for w in workers}
    live = [t for t in snapshot.trajectories if t.worker in at_home]
    standing = Standing.of(live, snapshot.rates)
    ranked = [live[i] for i in np.lexsort((standing.arrival, longest_first(standing))).tolist()]
    edges = group_edges(workers, len(ranked))
    homes = _homes(live, workers)
    loads = {w.id: _load(w.latency, homes[w.id], snapshot.rates) for w in workers}
    busy: set[str] = {t.worker or "" for t in live if t.moving}
    moves: list[Move] = []
    for place, trajectory in enumerate(ranked):
        target = _wrong_group(place, trajectory, workers, edges)
        source = trajectory.worker or ""
        if target is None:
            continue
        price_s = carried_s(trajectory.context_tokens, at_home[source], target, snapshot.fetches)
        if not _may_move(trajectory, price_s, snapshot):
            continue
        if {source, target.id} & busy or not _gains(
            trajectory, target, price_s, loads, homes, snapshot.rates
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


def _may_move(trajectory: Trajectory, price_s: float, snapshot: Snapshot) -> bool:
    """Between two steps, with enough tool time expected to hide what the move takes."""
    if trajectory.state != "tool" or trajectory.moving or not trajectory.movable:
        return False
    left_s = snapshot.rates.tool_s - trajectory.in_tool_s(snapshot.now_s)
    return left_s >= price_s


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
    price_s: float,
    loads: dict[str, Load],
    homes: dict[str, list[Trajectory]],
    rates: Rates,
) -> bool:
    """Whether the later of the two workers' expected ends comes nearer, the move's price paid."""
    source = trajectory.worker or ""
    before = max(loads[source].finish_s(), loads[target.id].finish_s())
    others = [t for t in homes[source] if t is not trajectory]
    without = _load(loads[source].latency, others, rates)
    work = remaining_work(trajectory, rates)
    after = max(without.finish_s(), loads[target.id].finish_s(work, price_s))
    return after < before * (1.0 - GAIN)


def rebalance(snapshot: Snapshot, book: Book) -> list[Move]:
    """Few moves, each off the worker with the latest expected end, paid for by the target.

    Stops where the latest end is near the mean, so it is quiet when there is nothing to gain. While
    anybody waits for a place, that one goes to the worker that ends first: a move then only pays
    for a prefill (9 % later in a search rollout on four engines whose KV was short).
    """
    waiting = (book.facts.state == HELD) & (book.home < 0)
    if len(snapshot.workers) < 2 or not snapshot.trajectories or waiting.any():
        return []
    crowd = book.crowd
    may, closed = _movable(snapshot, book)
    moves: list[Move] = []
    while len(moves) < MOST_MOVES:
        ends = crowd.ends_s()
        mean_s = float(ends.mean())
        source = int(np.argmax(np.where(closed, -1.0, ends)))
        if closed.all() or ends[source] < mean_s * (1.0 + LATE):
            break
        closed[source] = True
        paces = [fetch_token_s(snapshot.workers[source], w, snapshot.fetches) for w in book.workers]
        found = _relief(crowd, book.home, may, source, ends, closed, paces)
        if found is None:
            continue
        place, target, after_s = found
        if ends[source] - after_s < GAIN * mean_s:
            continue
        closed[target] = True
        because = (
            f"{book.names[source]} would end last at {ends[source]:.1f} s; on "
            f"{book.names[target]} the later of both ends is {after_s:.1f} s, "
            f"{'re-prefill' if paces[target] is None else 'fetch'} paid"
        )
        moves.append(
            Move(
                trajectory=snapshot.trajectories[place].id,
                source=book.names[source],
                target=book.names[target],
                because=because,
            )
        )
    return moves


def _movable(snapshot: Snapshot, book: Book) -> tuple[Flags, Flags]:
    """Who is between two steps with its prefix known; workers that somebody is leaving."""
    may: Flags = (book.facts.state == TOOL) & (book.home >= 0)
    closed: Flags = np.zeros(len(book.names), dtype=bool)
    for place in np.flatnonzero(may).tolist():
        trajectory = snapshot.trajectories[place]
        may[place] = trajectory.movable and not trajectory.moving
        closed[book.home[place]] |= trajectory.moving
    return may, closed


def _relief(
    crowd: Crowd,
    home: Ints,
    may: Flags,
    source: int,
    ends: Floats,
    closed: Flags,
    paces: Sequence[float | None],
) -> tuple[int, int, float] | None:
    """The move off that worker after which the later of both ends is earliest."""
    members = np.flatnonzero(home == source)
    among = may[members]
    targets = _targets(crowd, ends, closed)
    if not among.any() or not targets:
        return None
    left, movable = _without(crowd, source, members)[among], members[among]
    most_s = PRICE * float(ends[source])
    best: tuple[int, int, float] | None = None
    for target in targets:
        prefill_s = crowd.prefill_by_kind[crowd.kind[target], movable]
        price_s = carried_many_s(prefill_s, crowd.outlook.context[movable], paces[target])
        later = np.maximum(left, _with(crowd, target, movable, price_s))
        later[price_s > most_s] = np.inf
        first = int(np.argmin(later))
        if later[first] < (best[2] if best else np.inf):
            best = int(movable[first]), target, float(later[first])
    return best


def _targets(crowd: Crowd, ends: Floats, closed: Flags) -> list[int]:
    """The two earliest of each degree that no other transfer of this decision uses."""
    found: list[int] = []
    for kind in range(len(crowd.work_by_kind)):
        those = np.flatnonzero((crowd.kind == kind) & ~closed)
        found += those[np.argsort(ends[those], kind="stable")[:2]].tolist()
    return found


def _without(crowd: Crowd, source: int, members: Ints) -> Floats:
    """Expected end of the source without each of its members."""
    look = crowd.outlook
    draws = look.draws[members]
    longest = np.zeros(1)
    if len(members) > 1:
        first, second = np.partition(draws, -2, axis=0)[[-1, -2]]
        longest = np.where(draws >= first, second, first).mean(axis=1)
    work = crowd.work_by_kind[crowd.kind[source], members]
    return crowd.ends_at_s(
        source,
        longest,
        crowd.area[source] - look.area[members],
        crowd.tokens[source] - look.tokens[members],
        crowd.work_s[source] - work,
    )


def _with(crowd: Crowd, target: int, places: Ints, price_s: Floats) -> Floats:
    """Expected end of the target with each of those, and what bringing their contexts takes.

    Never where its KV would not hold the newcomer: it would evict others' contexts, and each of
    them would be prefilled again too.
    """
    look, kind = crowd.outlook, crowd.kind[target]
    work = crowd.work_by_kind[kind, places] + price_s
    ends = crowd.ends_at_s(
        target,
        np.maximum(crowd.longest[:, target], look.draws[places]).mean(axis=1),
        crowd.area[target] + look.area[places],
        crowd.tokens[target] + look.tokens[places],
        crowd.work_s[target] + work,
    )
    peaks = (crowd.peaks[:, target] + crowd.peaks_of[places]).max(axis=1)
    ends[peaks > MOVE_ROOM * crowd.kv[target]] = np.inf
    return ends


MIGRATIONS: Final[dict[str, Migration]] = {"off": stay, "rank": rank, "rebalance": rebalance}
