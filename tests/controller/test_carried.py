"""A move between engines that share a storage is priced as the fetch it is, once one was seen."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_draws_and_moves import fleet, live

from heddle.controller.benefit import WEIGHT, Benefit
from heddle.controller.clock import Clock
from heddle.controller.core.book import Book
from heddle.controller.core.carried import carried_many_s, carried_s, fetch_token_s
from heddle.controller.core.migration import rank, rebalance
from heddle.controller.core.types import Fetches, Latency, Move, Worker
from heddle.controller.dataplane.spans import StepSpans
from heddle.controller.fleet.engine import Warmed
from heddle.controller.journal import Journal
from heddle.controller.live import LiveTrajectory, LiveWorker
from heddle.controller.movers import Mover
from heddle.controller.service import Controller, ControllerConfig, NoSpans

LAW = Latency(
    degree=1, a_s=0.01, b_s=1e-4, c_s=1e-8, p0_s=0.02, p1_s=4e-5, p2_s=1e-9, kv_tokens=10**6
)
LAWS = {1: LAW, 2: replace(LAW, degree=2)}
workers = st.builds(
    Worker,
    id=st.just("w"),
    latency=st.sampled_from([*LAWS.values()]),
    storage=st.sampled_from(["", "file", "mooncake"]),
)
fetches = st.dictionaries(
    st.tuples(st.sampled_from(["file", "mooncake"]), st.sampled_from([1, 2])),
    st.floats(0.0, 1.0),
)


@given(st.integers(1, 100_000), workers, workers, fetches)
def test_a_move_costs_a_fetch_only_where_one_can_be_and_was_seen(tokens, source, target, seen):
    price_s, prefill_s = carried_s(tokens, source, target, seen), target.latency.prefill_s(tokens)
    alike = source.storage == target.storage and source.degree == target.degree
    known_s = seen.get((source.storage, source.degree))
    if alike and known_s is not None:
        assert price_s == min(prefill_s, known_s * tokens)
    else:
        assert price_s == prefill_s
    token_s = fetch_token_s(source, target, seen)
    many = carried_many_s(np.array([prefill_s]), np.array([float(tokens)]), token_s)
    assert many.tolist() == [price_s]


def sharing(snapshot, token_s=None):
    stored = tuple(replace(w, storage="file") for w in snapshot.workers)
    seen = {} if token_s is None else {("file", 1): token_s}
    return replace(snapshot, workers=stored, fetches=seen)


def test_a_move_whose_prefill_is_too_dear_is_made_where_its_context_can_be_fetched():
    crowded = [live(i, 90.0, "w0", "tool")._replace(context_tokens=30_000) for i in range(30)]
    others = [live(30 + i, 90.0, f"w{1 + i % 3}", "running") for i in range(9)]
    dear = fleet([*crowded, *others], kv=10**7)
    for unpriced in (dear, sharing(dear), sharing(dear, token_s=1.0)):
        assert rebalance(unpriced, Book.of(unpriced)) == []
    fetched = sharing(dear, token_s=1e-7)
    moves = rebalance(fetched, Book.of(fetched))
    assert moves
    assert all(move.because.endswith("fetch paid") for move in moves)


def test_the_papers_rule_moves_inside_a_tool_that_hides_a_fetch_and_no_prefill():
    law = fleet([]).workers[0].latency
    behind = [live(i, 50.0, "w0", "tool") for i in range(20)]
    ahead = [live(20 + i, 5_000.0, "w1", "tool") for i in range(20)]
    snapshot = fleet([*behind, *ahead], workers=2)
    shorter_s = law.prefill_s(1_000) / 2
    snapshot = replace(snapshot, rates=snapshot.rates._replace(tool_s=shorter_s), now_s=0.0)
    assert rank(snapshot, Book.of(snapshot)) == []
    fetched = sharing(snapshot, token_s=shorter_s / 2_000)
    assert rank(fetched, Book.of(fetched))


def test_the_pace_of_fetches_is_an_average_by_storage_and_degree():
    benefit = Benefit()
    benefit.fetched("file", 1, 1_000, 0.5)
    benefit.fetched("file", 1, 1_000, 1.5)
    benefit.fetched("file", 2, 100, -1.0)
    benefit.fetched("", 1, 1_000, 0.5)
    benefit.fetched("file", 4, 0, 0.5)
    one = 5e-4 + WEIGHT * (15e-4 - 5e-4)
    assert benefit.fetches == {("file", 1): pytest.approx(one), ("file", 2): 0.0}


def test_what_a_profile_measured_counts_until_fetches_are_seen():
    prior = {("file", 1): 1e-3, ("file", 2): 2e-3}
    benefit = Benefit(prior)
    assert benefit.fetches == prior
    for _ in range(20):
        benefit.fetched("file", 1, 1_000, 0.1)
    assert benefit.fetches["file", 1] == pytest.approx(1e-4, rel=0.02)
    assert benefit.fetches["file", 2] == 2e-3
    assert prior["file", 1] == 1e-3


async def test_a_controller_prices_its_first_move_by_what_its_profile_measured(tmp_path: Path):
    document = json.loads((files("heddle.models.profiles") / "h100_sxm.json").read_text("utf-8"))
    degrees = document["models"]["Qwen3-14B"]["degrees"]
    degrees["1"]["fetch"] = {"storage": "file", "ms_per_token": 0.08}
    path = tmp_path / "v0001.json"
    path.write_text(json.dumps(document))
    told: dict[str, Fetches] = {}
    for system in ("h100_sxm", str(path)):
        controller = Controller(ControllerConfig(system=system), "a token")
        told[system] = controller.loop._decider.snapshot("r").fetches
        await controller.close()
    assert told == {"h100_sxm": {}, str(path): {("file", 1): pytest.approx(8e-5)}}


class Storing:
    """An engine that finds most of a warm-up in a storage, after a while."""

    url = "http://w1"

    async def warm(self, ids: bytes, rid: str, headers: dict[str, str]) -> Warmed:
        await asyncio.sleep(0.05)
        return Warmed(prompt_tokens=1_000, cached_tokens=900, stored_tokens=800)


async def test_a_move_that_fetched_teaches_how_long_the_storage_took():
    engine: Any = Storing()
    target = LiveWorker(id="w1", engine=engine, latency=LAW, storage="file")
    workers: Any = SimpleNamespace(workers={"w1": target})
    journal, ended = Journal(None), asyncio.Event()
    mover = Mover(Clock(), workers, journal, StepSpans(NoSpans(), 1.0), lambda _: ended.set())
    trajectory = LiveTrajectory(run="r", id="t", number=0)
    trajectory.prompt_ids, trajectory.context_tokens = b"1,2", 1_000
    assert mover.carry(trajectory, Move(trajectory="r/t", source="w0", target="w1", because="b"))
    await ended.wait()
    move = trajectory.move
    assert move is not None
    assert (trajectory.worker, move.method) == ("w1", "l3_fetch")
    took_s = (move.ended_ns - move.started_ns) / 1e9 - LAW.prefill_s(100, 900)
    assert 0.0 <= mover.benefit.fetches["file", 1] <= max(took_s, 0.0) / 800
    await mover.close()
    journal.close()
