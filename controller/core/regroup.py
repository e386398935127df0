"""From the engines that serve to the layout that is wanted: who stays, who drains, which GPUs
regroup?

An engine of degree d holds an aligned block of d GPUs of one node, so blocks nest like a tree and
the cheapest change is exact: options of a block from those of its halves, then one table over the
nodes. Disruption is GPUs that stop serving first, then tokens of context that lose their cache.
Limit: degrees are powers of two within a node.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from heddle.controller.core.types import CoreError

NODE_GPUS: Final = 8
_TOKENS: Final = 1e-9
"""A GPU weighs as much as a billion tokens: tokens only decide between equals."""
_MOST_CELLS: Final = 20_000_000


class Place(NamedTuple):
    """A block of GPUs: `degree` of them from `first` on, on that node."""

    node: int
    first: int
    degree: int

    @property
    def gpus(self) -> range:
        """Their numbers on the node."""
        return range(self.first, self.first + self.degree)

    def overlaps(self, other: Place) -> bool:
        """Whether they share a GPU."""
        here, there = self.gpus, other.gpus
        return self.node == other.node and here.start < there.stop and there.start < here.stop


@dataclass(frozen=True, slots=True)
class Group:
    """GPUs that change together: all of `drains` end, then all of `starts` begin."""

    drains: tuple[str, ...]
    starts: tuple[Place, ...]

    @property
    def serving_gpus(self) -> int:
        """GPUs it will serve with."""
        return sum(place.degree for place in self.starts)


@dataclass(frozen=True, slots=True)
class Regroup:
    """The change with the least disruption, in waves that keep the floor."""

    stays: tuple[str, ...]
    waves: tuple[tuple[Group, ...], ...]
    lowest_gpus: int
    """The fewest GPUs that serve at any time of it."""

    @property
    def groups(self) -> list[Group]:
        """All of them, in order."""
        return [group for wave in self.waves for group in wave]

    @property
    def drains(self) -> list[str]:
        """Workers that end."""
        return [worker for group in self.groups for worker in group.drains]

    @property
    def starts(self) -> list[Place]:
        """Engines that begin."""
        return [place for group in self.groups for place in group.starts]


@dataclass(frozen=True, slots=True)
class _Option:
    """One way to fill a block: what it costs, who stays and what begins there."""

    cost: float
    stays: tuple[str, ...] = ()
    starts: tuple[Place, ...] = ()

    def plus(self, other: _Option, more: float = 0.0) -> _Option:
        return _Option(
            self.cost + other.cost + more, self.stays + other.stays, self.starts + other.starts
        )


_Counts = tuple[int, ...]
_Options = dict[_Counts, _Option]


@dataclass(slots=True)
class _Fleet:
    """Who is where, what each would lose, and how many of each degree are wanted."""

    placed: Mapping[str, Place]
    tokens: Mapping[str, float]
    wanted: Counter[int]
    degrees: list[int] = field(init=False)
    at: dict[Place, str] = field(init=False)

    def __post_init__(self) -> None:
        self.degrees = sorted(self.wanted)
        self.at = {place: worker for worker, place in self.placed.items()}

    def loss(self, worker: str) -> float:
        return self.placed[worker].degree + _TOKENS * self.tokens.get(worker, 0.0)


def spelled(degrees: Mapping[int, int]) -> str:
    """A layout in short, as 4x8 + 8x4: four engines of degree 8, eight of degree 4."""
    return " + ".join(f"{n}x{d}" for d, n in sorted(degrees.items(), reverse=True) if n)


def nodes_of(gpus: int, node_gpus: int = NODE_GPUS) -> tuple[int, ...]:
    """GPUs of each node of a fleet of that many."""
    whole, rest = divmod(gpus, node_gpus)
    return (node_gpus,) * whole + ((rest,) if rest else ())


def regroup(
    nodes: Sequence[int],
    placed: Mapping[str, Place],
    degrees: Sequence[int],
    *,
    tokens: Mapping[str, float] | None = None,
    floor_gpus: int = 0,
) -> Regroup:
    """From the workers that are `placed` to workers of exactly those degrees.

    `tokens` are the contexts each worker holds; CoreError when the degrees do not fit the nodes, or
    when fewer than `floor_gpus` would serve at some time.
    """
    if not degrees or min(degrees) < 1:
        message = "a layout has at least one engine, of one GPU or more; say as 4x8+8x4"
        raise CoreError(message)
    fleet = _Fleet(placed, tokens or {}, Counter(degrees))
    chosen = _cheapest([_node(fleet, n, size) for n, size in enumerate(nodes)], fleet, nodes)
    stays = tuple(w for w in placed if w in set(chosen.stays))
    drains = [w for w in placed if w not in set(chosen.stays)]
    groups = _groups(placed, drains, sorted(chosen.starts, key=_order))
    waves, lowest = _waves(groups, placed, floor_gpus)
    return Regroup(stays, waves, lowest)


def _order(place: Place) -> tuple[int, int, int]:
    return -place.degree, place.node, place.first


def blocks(size: int) -> Iterator[tuple[int, int]]:
    """(first, size) of the largest aligned blocks that make up a node of that many GPUs."""
    first = 0
    while first < size:
        block = 1 << ((size - first).bit_length() - 1)
        yield first, block
        first += block


def _node(fleet: _Fleet, node: int, size: int) -> _Options:
    options: _Options = {(0,) * len(fleet.degrees): _Option(0.0)}
    for first, block in blocks(size):
        options = _both(fleet, options, _block(fleet, Place(node, first, block)))
    return options


def _block(fleet: _Fleet, place: Place) -> _Options:
    """Every mix of engines that fits the block, each at its least disruption."""
    mine = fleet.at.get(place)
    own = fleet.loss(mine) if mine else 0.0
    half = place.degree // 2
    if half < fleet.degrees[0]:
        smaller = (w for w, p in fleet.placed.items() if p.degree < place.degree)
        inside = sum(fleet.loss(w) for w in smaller if place.overlaps(fleet.placed[w]))
        options: _Options = {(0,) * len(fleet.degrees): _Option(own + inside)}
    else:
        left = _block(fleet, Place(place.node, place.first, half))
        right = _block(fleet, Place(place.node, place.first + half, half))
        options = {
            counts: _Option(one.cost + own, one.stays, one.starts)
            for counts, one in _both(fleet, left, right).items()
        }
    if place.degree in fleet.wanted:
        empty = options[(0,) * len(fleet.degrees)].cost
        whole = tuple(int(d == place.degree) for d in fleet.degrees)
        options[whole] = _Option(0.0, (mine,)) if mine else _Option(empty, (), (place,))
    return options


def _both(fleet: _Fleet, left: _Options, right: _Options) -> _Options:
    found: _Options = {}
    for (a, one), (b, two) in itertools.product(left.items(), right.items()):
        counts = tuple(x + y for x, y in zip(a, b, strict=True))
        if any(n > fleet.wanted[d] for n, d in zip(counts, fleet.degrees, strict=True)):
            continue
        known = found.get(counts)
        if known is None or one.cost + two.cost < known.cost:
            found[counts] = one.plus(two)
    return found


def _cheapest(options: list[_Options], fleet: _Fleet, nodes: Sequence[int]) -> _Option:
    """One option a node, together exactly what is wanted, at the least disruption."""
    goal = tuple(fleet.wanted[d] for d in fleet.degrees)
    shape = tuple(n + 1 for n in goal)
    if int(np.prod(shape)) * len(nodes) > _MOST_CELLS:
        message = f"{spelled(fleet.wanted)} over {len(nodes)} nodes is too large to plan exactly"
        raise CoreError(message)
    costs, chosen = np.full(shape, np.inf), list[np.ndarray]()
    costs[(0,) * len(goal)] = 0.0
    for node in options:
        costs, choice = _added(costs, list(node.items()))
        chosen.append(choice)
    if not np.isfinite(costs[goal]):
        message = (
            f"{spelled(fleet.wanted)} does not fit nodes of {'+'.join(map(str, nodes))} GPUs; each "
            "engine needs an aligned block of a power of two within one node"
        )
        raise CoreError(message)
    return _walked(options, chosen, goal)


def _added(
    costs: np.ndarray, node: Sequence[tuple[_Counts, _Option]]
) -> tuple[np.ndarray, np.ndarray]:
    """The table after one more node, and which of its options each cell took."""
    best, choice = np.full(costs.shape, np.inf), np.zeros(costs.shape, dtype=np.int32)
    for number, (counts, option) in enumerate(node):
        to = tuple(slice(n, None) for n in counts)
        since = tuple(slice(None, size - n) for n, size in zip(counts, costs.shape, strict=True))
        with_it = costs[since] + option.cost
        better = with_it < best[to]
        best[to][better] = with_it[better]
        choice[to][better] = number
    return best, choice


def _walked(options: list[_Options], chosen: list[np.ndarray], goal: _Counts) -> _Option:
    found, at = _Option(0.0), goal
    for node, choice in zip(reversed(options), reversed(chosen), strict=True):
        counts, option = list(node.items())[int(choice[at])]
        found = option.plus(found)
        at = tuple(a - n for a, n in zip(at, counts, strict=True))
    return found


def _groups(
    placed: Mapping[str, Place], drains: Sequence[str], starts: Sequence[Place]
) -> list[Group]:
    """Blocks nest, so what overlaps is one large block with all the small ones inside it."""
    taken: set[str] = set()
    begun: set[Place] = set()
    found: list[Group] = []
    tops = sorted([*starts, *(placed[w] for w in drains)], key=_order)
    for top in tops:
        mine = tuple(p for p in starts if p not in begun and p.overlaps(top))
        ends = tuple(w for w in drains if w not in taken and placed[w].overlaps(top))
        if mine or ends:
            begun.update(mine)
            taken.update(ends)
            found.append(Group(ends, mine))
    return found


def _waves(
    groups: Sequence[Group], placed: Mapping[str, Place], floor_gpus: int
) -> tuple[tuple[tuple[Group, ...], ...], int]:
    """As few waves as first-fit gives; in each the floor still serves beside what drains."""
    serving = lowest = sum(place.degree for place in placed.values())
    left = sorted(groups, key=lambda g: _drained_gpus(g, placed) - g.serving_gpus)
    waves: list[tuple[Group, ...]] = []
    while left:
        wave, kept, spare = list[Group](), list[Group](), serving - floor_gpus
        for group in left:
            takes = _drained_gpus(group, placed)
            fits = takes <= spare or not takes
            (wave if fits else kept).append(group)
            spare -= takes if fits else 0
        if not wave:
            least = min(_drained_gpus(group, placed) for group in left)
            message = (
                f"the floor of {floor_gpus} serving GPUs cannot be kept: {serving} serve and the "
                f"smallest regroup takes {least}; wait for the rollout's end or lower the floor"
            )
            raise CoreError(message)
        drained = sum(_drained_gpus(group, placed) for group in wave)
        lowest = min(lowest, serving - drained)
        serving += sum(group.serving_gpus for group in wave) - drained
        waves.append(tuple(wave))
        left = kept
    return tuple(waves), lowest


def _drained_gpus(group: Group, placed: Mapping[str, Place]) -> int:
    return sum(placed[worker].degree for worker in group.drains)
