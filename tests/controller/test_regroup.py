"""Which engines stay when a layout changes: against every way there is, on small fleets."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from heddle.controller.core.regroup import Group, Place, nodes_of, regroup, spelled
from heddle.controller.core.types import CoreError


def every_block(nodes):
    for node, size in enumerate(nodes):
        for degree in (1, 2, 4, 8):
            for first in range(0, size - degree + 1, degree):
                yield Place(node, first, degree)


def every_layout(nodes, degrees):
    """All sets of places of exactly those degrees that share no GPU."""
    blocks = [b for b in every_block(nodes) if b.degree in degrees]
    for chosen in itertools.combinations(blocks, len(degrees)):
        if Counter(p.degree for p in chosen) == Counter(degrees) and apart(chosen):
            yield chosen


def apart(places):
    return not any(a.overlaps(b) for a, b in itertools.combinations(places, 2))


def random_fleet(rng, nodes):
    """Some engines that fit, and the tokens each holds."""
    placed, blocks = {}, list(every_block(nodes))
    for place in rng.permutation(np.array(blocks, dtype=object)):
        place = Place(*map(int, place))
        if rng.random() < 0.6 and apart([place, *placed.values()]):
            placed[f"w{len(placed)}"] = place
    return placed, {w: float(rng.integers(0, 1000)) for w in placed}


def lost(placed, tokens, stays):
    gone = [w for w in placed if w not in stays]
    return sum(placed[w].degree for w in gone), sum(tokens[w] for w in gone)


def serving_after(placed, plan):
    return sorted([*(placed[w].degree for w in plan.stays), *(p.degree for p in plan.starts)])


@pytest.mark.parametrize("seed", range(40))
def test_no_way_to_the_layout_disrupts_less(seed):
    rng = np.random.default_rng(seed)
    nodes = [(4, 2), (4, 4), (2, 2, 1), (4, 3)][seed % 4]
    placed, tokens = random_fleet(rng, nodes)
    degrees = [int(d) for d in rng.choice([1, 1, 2, 2, 4], size=rng.integers(1, 4))]
    ways = list(every_layout(nodes, degrees))
    if not ways:
        with pytest.raises(CoreError, match="does not fit nodes of"):
            regroup(nodes, placed, degrees)
        return
    at = {place: worker for worker, place in placed.items()}
    best = min(lost(placed, tokens, {at[p] for p in way if p in at}) for way in ways)
    plan = regroup(nodes, placed, degrees, tokens=tokens)
    assert serving_after(placed, plan) == sorted(degrees)
    assert apart([*(placed[w] for w in plan.stays), *plan.starts])
    assert lost(placed, tokens, plan.stays) == best


@pytest.mark.parametrize("seed", range(20))
def test_nothing_begins_on_gpus_that_are_held_and_the_floor_serves_at_every_time(seed):
    rng = np.random.default_rng(seed)
    nodes = (8,) * int(rng.integers(2, 9))
    placed, tokens = random_fleet(rng, nodes)
    degrees = nodes_mix(rng, sum(nodes))
    serving = sum(p.degree for p in placed.values())
    # Two nodes' worth below what serves can always be kept: no regroup is larger than a node.
    floor = max(serving - 16, 0)
    plan = regroup(nodes, placed, degrees, tokens=tokens, floor_gpus=floor)
    held = dict(placed)
    lowest = serving
    for wave in plan.waves:
        for group in wave:
            for worker in group.drains:
                del held[worker]
        lowest = min(lowest, sum(p.degree for p in held.values()))
        for place in (p for group in wave for p in group.starts):
            assert not any(place.overlaps(p) for p in held.values())
            held[f"n{len(held)}-{place}"] = place
    assert lowest == plan.lowest_gpus
    assert not plan.waves or lowest >= floor
    assert sorted(p.degree for p in held.values()) == sorted(degrees)


def nodes_mix(rng, gpus):
    degrees, left = [], gpus
    while left:
        degree = int(rng.choice([d for d in (1, 2, 4, 8) if d <= left]))
        degrees.append(degree)
        left -= degree
    return degrees


def test_the_fleet_of_the_paper_regroups_in_as_many_waves_as_its_floor_asks_for():
    placed = {f"w{i}": Place(i // 8, i % 8, 1) for i in range(64)}
    wanted = (8,) * 4 + (4,) * 8
    at_once = regroup((8,) * 8, placed, wanted)
    halves = regroup((8,) * 8, placed, wanted, floor_gpus=32)
    assert (len(at_once.waves), at_once.lowest_gpus) == (1, 0)
    assert (len(halves.waves), halves.lowest_gpus) == (2, 32)
    assert Counter(p.degree for p in halves.starts) == {8: 4, 4: 8}
    with pytest.raises(CoreError, match=r"floor of 62 serving GPUs cannot be kept: 64 serve"):
        regroup((8,) * 8, placed, wanted, floor_gpus=62)


def test_the_engine_that_holds_less_context_is_the_one_that_ends():
    placed = {"a": Place(0, 0, 1), "b": Place(0, 1, 1), "c": Place(1, 0, 1), "d": Place(1, 1, 1)}
    tokens = {"a": 10.0, "b": 10.0, "c": 9.0, "d": 10.0}
    plan = regroup((2, 2), placed, (2, 1, 1), tokens=tokens)
    assert plan.stays == ("a", "b")
    assert plan.waves == ((Group(("c", "d"), (Place(1, 0, 2),)),),)


def test_one_engine_that_splits_is_one_group_and_what_stays_is_not_touched():
    placed = {"big": Place(0, 0, 4), "small": Place(0, 4, 2)}
    plan = regroup((8,), placed, (2, 2, 2, 1, 1))
    assert plan.stays == ("small",)
    (group,) = (g for g in plan.groups if g.drains)
    assert group.drains == ("big",)
    assert sorted(p.degree for p in plan.starts) == [1, 1, 2, 2]


def test_a_layout_that_is_there_already_changes_nothing():
    placed = {"a": Place(0, 0, 4), "b": Place(0, 4, 4)}
    plan = regroup((8,), placed, (4, 4), floor_gpus=8)
    assert (plan.stays, plan.waves, plan.lowest_gpus) == (("a", "b"), (), 8)


def test_degrees_that_no_block_has_are_refused_with_the_nodes():
    with pytest.raises(CoreError, match=r"1x16 does not fit nodes of 8\+8 GPUs"):
        regroup((8, 8), {}, (16,))
    with pytest.raises(CoreError, match="1x3 does not fit"):
        regroup((8,), {}, (3,))
    assert nodes_of(20) == (8, 8, 4)
    assert spelled({8: 4, 4: 8, 1: 0}) == "4x8 + 8x4"


@pytest.mark.parametrize("degrees", [[], [0], [2, 0], [-1]])
def test_a_layout_without_an_engine_or_with_one_of_no_gpu_is_refused(degrees):
    with pytest.raises(CoreError, match="a layout has at least one engine, of one GPU or more"):
        regroup((4,), {"w0": Place(0, 0, 4)}, degrees)
