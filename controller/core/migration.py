"""Which trajectories should change worker while their tools run?

`rank` is the paper's rule: sort the live by what remains, cut the list into the workers' groups
(sizes scaled to who is still alive), move whoever sits in the wrong group. A margin and the price
of the re-prefill guard it: on stock engines a move is paid for, and similar lengths packed together
thrash a finite cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from heddle.controller.core.cost import Load, remaining_work
from heddle.controller.core.priority import longest_first
from heddle.controller.core.types import Latency, Move, Rates, Snapshot, Trajectory, Worker

Migration = Callable[[Snapshot], list[Move]]

# Share of the live by which a rank must lie outside its worker's group: below it, ranks that a
# fresh prediction swaps would bounce trajectories between two workers.
MARGIN: Final = 0.05
# A move must bring the later of its two workers' ends this share nearer (planning.md B.2).
GAIN: Final = 0.005


def stay(snapshot: Snapshot) -> list[Move]:
    """Nobody moves."""
    _ = snapshot
    return []


def rank(snapshot: Snapshot) -> list[Move]:
    """Longest first, one transfer per source and per target, only inside a tool interval."""
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


def group_edges(workers: Sequence[Worker], live: int) -> list[int]:
    """Where each worker's group ends in the ranked list: planned shares scaled to the live."""
    shares = [w.share for w in workers]
    if not any(shares):
        shares = [1] * len(workers)
    total, edges, seen = sum(shares), list[int](), 0
    for share in shares:
        seen += share
        edges.append(round(seen * live / total))
    return edges


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


MIGRATIONS: Final[dict[str, Migration]] = {"off": stay, "rank": rank}
