"""Do the books of a decision conserve, are draws common and calibrated, do moves only help?"""

from __future__ import annotations

import numpy as np
import pytest

from heddle.controller.core.admission import PEAK_ROOM, KvPeaks, hold_kv
from heddle.controller.core.book import Book
from heddle.controller.core.crowd import Crowd
from heddle.controller.core.decide import decide
from heddle.controller.core.draws import DRAWS, draws_of, level_of, quantiles_of
from heddle.controller.core.memory import PEAK_GRID, Memory
from heddle.controller.core.migration import LATE, rebalance
from heddle.controller.core.policies import KNOWN, PRESETS, changed
from heddle.controller.core.types import Latency, Length, Rates, Snapshot, State, Trajectory, Worker

RNG = np.random.default_rng(0)


def law(kv=200_000):
    return Latency(
        degree=1, a_s=0.01, b_s=1e-4, c_s=1e-8, p0_s=0.01, p1_s=3e-5, p2_s=0.0, kv_tokens=kv,
        max_running=64,
    )  # fmt: skip


def length(mean):
    return Length(p10=mean / 2, p50=mean / 1.05, p90=mean * 1.9, mean=mean)


def live(i, mean, worker=None, state: State = "held"):
    return Trajectory(
        id=f"t{i}", arrival=i, worker=worker, state=state, steps=0 if worker is None else 2,
        context_tokens=1_000, output_tokens=0 if worker is None else 500, remaining=length(mean),
    )  # fmt: skip


def fleet(trajectories, workers=4, kv=200_000):
    return Snapshot(
        trajectories=tuple(trajectories),
        workers=tuple(Worker(id=f"w{i}", latency=law(kv)) for i in range(workers)),
        rates=Rates(context_per_output=1.5, tool_s=2.0),
    )


def remaining_draws(trajectories, mean):
    quantiles = np.array([quantiles_of(t, mean) for t in trajectories])
    return draws_of(quantiles, np.array([level_of(t.id) for t in trajectories]))


def test_draws_keep_the_predicted_mean_and_belong_to_the_trajectory():
    some = [live(i, 100.0 * (i + 1)) for i in range(50)]
    draws = remaining_draws(some, 1.0)
    assert draws.shape == (50, DRAWS)
    assert draws.mean(axis=1) == pytest.approx([100.0 * (i + 1) for i in range(50)])
    assert remaining_draws(list(reversed(some)), 1.0)[::-1] == pytest.approx(draws)
    share = np.mean([(row > length(100.0 * (i + 1)).p90).mean() for i, row in enumerate(draws)])
    assert 0.03 <= share <= 0.17


def test_the_crowd_is_the_sum_of_who_was_added_in_any_order():
    some = fleet([live(i, 50.0 * (i + 1)) for i in range(9)])
    memory, nowhere = Memory(), np.full(9, -1)
    outlook = memory.outlook(some, memory.facts(some))
    one, two = (Crowd(some.workers, outlook, nowhere) for _ in range(2))
    homes = np.array([row % 4 for row in range(9)])
    at_once = Crowd(some.workers, outlook, homes)
    for row in range(9):
        one.add(row, row % 4)
        two.add(8 - row, (8 - row) % 4)
    assert one.ends_s() == pytest.approx(two.ends_s())
    assert one.ends_s() == pytest.approx(at_once.ends_s())
    assert one.peaks == pytest.approx(at_once.peaks)
    assert one.tokens.sum() == pytest.approx(one.outlook.tokens.sum())
    assert (one.ends_with_s(0, 0.0) >= one.ends_s() - 1e-9).all()


@pytest.mark.parametrize("placement", KNOWN["placement"])
def test_hold_kv_never_promises_more_than_the_room_and_starts_somebody(placement):
    snapshot = fleet([live(i, 2_000.0 + 40 * i) for i in range(60)], kv=20_000)
    switches = changed(PRESETS["heddle"], {"placement": placement})
    plan = decide(snapshot, switches, RNG)
    assert plan.releases
    assert plan.held
    started = {r.trajectory: r.worker for r in plan.releases}
    after = [
        live(i, 2_000.0 + 40 * i, started.get(f"t{i}"), "running") if f"t{i}" in started else t
        for i, t in enumerate(snapshot.trajectories)
    ]
    full = fleet(after, kv=20_000)
    allowance = hold_kv(full, Book.of(full))
    assert isinstance(allowance, KvPeaks)
    crowd = allowance.crowd
    assert crowd.peaks.shape == (len(PEAK_GRID), 4)
    for held, count in zip(crowd.peaks.max(axis=0), crowd.count, strict=True):
        assert count <= 1 or held <= PEAK_ROOM * 20_000 * 1.001


def test_rebalance_relieves_the_latest_worker_and_is_quiet_when_level():
    crowded = [live(i, 900.0, "w0", "tool") for i in range(30)]
    others = [live(30 + i, 900.0, f"w{1 + i % 3}", "running") for i in range(9)]
    snapshot = fleet([*crowded, *others])
    moves = rebalance(snapshot, Book.of(snapshot))
    assert moves
    assert {m.source for m in moves} == {"w0"}
    assert len({m.target for m in moves}) == len(moves)
    sure = Length(p10=900.0, p50=900.0, p90=900.0, mean=900.0)
    level = fleet([live(i, 900.0, f"w{i % 4}", "tool")._replace(remaining=sure) for i in range(40)])
    ends = Book.of(level).crowd.ends_s()
    assert ends.max() <= ends.mean() * (1 + LATE)
    assert rebalance(level, Book.of(level)) == []


def test_rebalance_moves_nobody_who_runs_or_is_under_way():
    running = fleet([live(i, 900.0, "w0", "running") for i in range(30)])
    assert rebalance(running, Book.of(running)) == []
    assert rebalance(fleet([]), Book.of(fleet([]))) == []


def test_a_worker_that_outgrew_its_kv_parks_whoever_has_least_to_come():
    grown = [
        live(i, 500.0 * (i + 1), "w0", "tool")._replace(context_tokens=6_000) for i in range(9)
    ]
    others = [live(20, 900.0, "w1", "tool")]
    plan = decide(fleet([*grown, *others], workers=2, kv=50_000), PRESETS["heddle"], RNG)
    assert [p.trajectory for p in plan.parks] == ["t0", "t1"]
    assert {p.worker for p in plan.parks} == {"w0"}
    fits = decide(fleet([*grown[2:], *others], workers=2, kv=50_000), PRESETS["heddle"], RNG)
    assert fits.parks == ()
    other = changed(PRESETS["heddle"], {"admission": "hold-count"})
    assert decide(fleet(grown, workers=2, kv=50_000), other, RNG).parks == ()


def test_a_parked_step_goes_where_there_is_room_before_any_fresh_one():
    busy = [live(i, 4_000.0, "w0", "running")._replace(context_tokens=9_000) for i in range(4)]
    parked = live(9, 900.0, "w0")._replace(parked=True, context_tokens=6_000, arrival=50)
    fresh = live(10, 9_000.0)
    plan = decide(fleet([*busy, parked, fresh], workers=2, kv=45_000), PRESETS["heddle"], RNG)
    assert [(r.trajectory, r.worker) for r in plan.releases] == [("t9", "w1"), ("t10", "w1")]
    crowded = [t._replace(worker="w1", id=f"u{t.id}") for t in busy]
    full = fleet([*busy, *crowded, parked], workers=2, kv=45_000)
    assert list(decide(full, PRESETS["heddle"], RNG).held) == ["t9"]


def test_nobody_moves_while_somebody_waits_for_a_place_nor_where_the_target_is_full():
    crowded = [live(i, 900.0, "w0", "tool") for i in range(30)]
    others = [live(30 + i, 900.0, f"w{1 + i % 3}", "running") for i in range(9)]
    calm = fleet([*crowded, *others])
    assert rebalance(calm, Book.of(calm))
    busy = fleet([*crowded, *others, live(50, 900.0)])
    assert rebalance(busy, Book.of(busy)) == []
    short = fleet([*crowded, *others], kv=6_000)
    assert rebalance(short, Book.of(short)) == []


def test_a_move_whose_prefill_is_dear_against_what_is_left_is_not_made():
    crowded = [live(i, 90.0, "w0", "tool")._replace(context_tokens=30_000) for i in range(30)]
    others = [live(30 + i, 90.0, f"w{1 + i % 3}", "running") for i in range(9)]
    dear = fleet([*crowded, *others], kv=10**7)
    assert rebalance(dear, Book.of(dear)) == []
    cheap = fleet([*[t._replace(context_tokens=10) for t in crowded], *others], kv=10**7)
    assert rebalance(cheap, Book.of(cheap))
