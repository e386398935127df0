"""Does what the GPU forgot come back from the host or a storage, at its price, and only there?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_virtual_cache import Ids, Names, fleets, play

from heddle.controller.emulator.request import EngineConfig, HostConfig, Request
from heddle.controller.emulator.rollout import run_rollout
from heddle.controller.emulator.span import SpanCache
from heddle.controller.emulator.stored import make_engine
from heddle.controller.emulator.tiers import FolderStorage, TreeStorage
from heddle.controller.emulator.truth import TruthParams
from heddle.controller.emulator.workload import generate

QUIET = TruthParams(noise_sigma=0.0)
SIZE = 4_000


def context(number):
    return np.random.default_rng(number).integers(150_000, 2**30, SIZE).astype(np.int32)


def ask(engine, number, now_s, new=1):
    """That context's answer, asked for at that time."""
    rid = f"{number}-{now_s}"
    engine.submit(Request(rid=rid, ids=context(number), max_new_tokens=new), now_s)
    while True:
        found = [done for done in engine.advance(engine.next_event_s()) if done.rid == rid]
        if found:
            return found[0]


def config(write="through", ratio=4.0, **more):
    host = HostConfig(write=write, ratio=ratio)
    return EngineConfig(kv_tokens=10_000, context_tokens=9_000, truth=QUIET, host=host, **more)


@pytest.mark.parametrize("write", ["through", "back"])
def test_a_context_that_the_gpu_evicted_comes_back_from_the_host_and_not_without_one(write):
    for settings_, hit in ((config(write), SIZE - 1), (EngineConfig(kv_tokens=10_000), 0)):
        engine = make_engine(settings_)
        for at, number in enumerate([0, 1, 2, 3]):
            assert ask(engine, number, 10.0 * at).cached_tokens == 0
        again = ask(engine, 0, 100.0)
        assert again.cached_tokens == pytest.approx(hit, abs=1)
        assert again.host_tokens == again.cached_tokens


def test_a_host_that_is_full_forgets_the_least_recently_used():
    engine = make_engine(config(ratio=1.0))
    for at, number in enumerate([0, 1, 2, 3]):
        ask(engine, number, 10.0 * at)
    assert engine.scheduler.host.used_tokens <= engine.scheduler.host.capacity == 10_000
    assert ask(engine, 0, 100.0).cached_tokens == 0


def test_loading_takes_the_time_of_its_bytes_where_that_is_longer_than_the_prefill():
    slow = HostConfig(ratio=4.0, load_bytes_per_s=1e9)
    engine = make_engine(EngineConfig(kv_tokens=10_000, truth=QUIET, host=slow))
    for at, number in enumerate([0, 1, 2, 3]):
        ask(engine, number, 10.0 * at)
    again = ask(engine, 0, 100.0)
    # 163,840 bytes a token of Qwen3-14B.
    assert again.at_s - 100.0 == pytest.approx(again.host_tokens * 163_840 / 1e9, abs=1e-9)


def test_a_neighbour_finds_a_context_in_the_storage_and_one_of_another_degree_does_not(tmp_path):
    folders = [FolderStorage(tmp_path, "Qwen3-14B", degree) for degree in (1, 1, 2)]
    one, other, wide = (
        make_engine(config(degree=degree), storage=folder)
        for degree, folder in zip((1, 1, 2), folders, strict=True)
    )
    assert ask(one, 0, 0.0).cached_tokens == 0
    pages = (SIZE - 1) // 64 * 64
    found = ask(other, 0, 10.0)
    assert found.cached_tokens == pages
    # It waited for 2 GB/s, and waiting is queueing.
    assert found.queue_s == pytest.approx(pages * 163_840 / 2e9)
    assert found.at_s > 10.0 + found.queue_s
    assert ask(wide, 0, 10.0).cached_tokens == 0


def test_while_one_request_is_read_another_decodes_and_an_abort_ends_it():
    storage = TreeStorage(SpanCache())
    engine = make_engine(config(), storage=storage, spans=True)
    kind = Names()
    long = kind.start(0, 60)
    storage.put(long, len(long), 0.0)
    engine.submit(Request(rid="read", ids=long, max_new_tokens=5), 0.0)
    engine.submit(Request(rid="runs", ids=kind.start(1, 1), max_new_tokens=5), 0.0)
    (first,) = engine.advance(0.25)
    assert first.rid == "runs"
    assert engine.next_event_s() == pytest.approx(3_649 * 163_840 / 2e9)
    assert engine.abort("read", 0.26) == 1
    (gone,) = engine.advance(0.26)
    assert (gone.rid, gone.reason, gone.output_tokens) == ("read", "abort", 0)
    assert engine.is_idle


@settings(max_examples=25, deadline=None)
@given(fleets, st.sampled_from(["through", "back"]))
def test_naming_contexts_changes_nothing_with_a_host_below(made, write):
    settings_ = EngineConfig(
        kv_tokens=1300, context_tokens=2000, chunk_tokens=128, max_running=4, truth=QUIET,
        host=HostConfig(write=write, ratio=1.5),
    )  # fmt: skip
    by_ids, one = play(Ids(), made, settings_)
    by_name, other = play(Names(), made, settings_)
    assert [row[:2] for row in by_name] == [row[:2] for row in by_ids]
    assert other.scheduler.host.used_tokens == one.scheduler.host.used_tokens
    assert one.scheduler.cache.locked_tokens == one.scheduler.private_tokens == 0


def test_a_fleet_with_hosts_computes_less_again_and_with_a_storage_a_mover_computes_least():
    work = [t for t in generate("search", groups=2) if t.peak_context_tokens < 50_000]
    tight = EngineConfig(kv_tokens=60_000)
    with_host = replace(tight, host=HostConfig(ratio=1.0))
    said = {"preset": "slime", "gpus": 2, "layout": (1, 1), "seed": 3}

    def new_tokens(**more):
        result = run_rollout(work, **said, **more)
        assert result.finished == len(work)
        return sum(s.input_tokens - s.cached_tokens for s in result.steps)

    alone, hosted = new_tokens(engine=tight), new_tokens(engine=with_host)
    stored = new_tokens(engine=with_host, storage=True)
    assert stored < hosted < alone
