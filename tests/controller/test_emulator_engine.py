"""Does the emulated engine keep SGLang's rules: order, preemption, retraction, cache, accounts?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.controller.emulator.engine import Engine
from heddle.controller.emulator.errors import BadRequest, EngineBusy
from heddle.controller.emulator.request import EngineConfig, Request, output_ids
from heddle.controller.emulator.truth import TruthParams

QUIET = TruthParams(noise_sigma=0.0)


def prompt(tag: int, size: int):
    return np.random.default_rng(tag).integers(0, 150_000, size).astype(np.int32)


def ask(rid: str, size: int = 100, new: int = 10, tag: int | None = None, **more) -> Request:
    seed = sum(map(ord, rid)) * 1000 + len(rid) if tag is None else tag
    return Request(rid=rid, ids=prompt(seed, size), max_new_tokens=new, **more)


def drain(engine: Engine):
    done = []
    while (at := engine.next_event_s()) != float("inf"):
        done += engine.advance(at)
    return done


def check_accounts(engine: Engine):
    s = engine.scheduler
    assert s.cache.held_tokens == sum(node.tokens for node in s.cache.nodes())
    assert s.private_tokens >= 0
    assert s.free_tokens >= 0
    assert s.private_tokens + s.cache.locked_tokens + s.cache.evictable_tokens + s.free_tokens == (
        s.capacity
    )


def test_a_lone_request_takes_one_prefill_and_one_iteration_a_token():
    engine = Engine(EngineConfig(truth=QUIET))
    engine.submit(ask("a", 1000, 5), 2.0)
    (done,) = drain(engine)
    prefill_s = engine.truth.prefill_s([(1000, 0)], 0)
    decode_s = sum(p.lasting_s(p.iterations) for p in engine.truth.pieces(1, 1001, 1, 4))
    assert done.prefill_end_s == pytest.approx(2.0 + prefill_s)
    assert done.at_s == pytest.approx(2.0 + prefill_s + decode_s)
    assert (done.reason, done.prompt_tokens, len(done.output_ids)) == ("length", 1000, 5)


def test_the_next_step_of_a_trajectory_hits_everything_but_its_last_token():
    engine = Engine(EngineConfig())
    engine.submit(ask("a", 500, 50), 0.0)
    (first,) = drain(engine)
    grown = np.concatenate([prompt(97001, 500), first.output_ids, prompt(7, 30)])
    engine.submit(Request(rid="b", ids=grown, max_new_tokens=1), 100.0)
    (second,) = drain(engine)
    assert second.cached_tokens == 549


def test_a_request_that_is_held_whole_still_computes_one_token():
    engine = Engine(EngineConfig())
    for rid in ("a", "b"):
        engine.submit(ask(rid, 200, 1, tag=3), 0.0 if rid == "a" else 9.0)
    assert [done.cached_tokens for done in drain(engine)] == [0, 199]


def test_prefill_only_fills_the_cache_and_returns_nothing():
    engine = Engine(EngineConfig())
    engine.submit(ask("warm", 300, 0, tag=1), 0.0)
    engine.submit(ask("step", 400, 2, tag=1), 50.0)
    warm, step = drain(engine)
    assert len(warm.output_ids) == 0
    # default_rng draws the same first 300 ids for both sizes
    assert step.cached_tokens == 300


def test_higher_priority_goes_first_and_equal_ones_keep_their_arrival_order():
    engine = Engine(EngineConfig(max_running=1))
    engine.submit(ask("first", new=50), 0.0)
    for index, priority in enumerate([0, 20, 0, 20, 10]):
        engine.submit(ask(f"q{index}", priority=priority), 0.001 * (index + 1))
    assert [done.rid for done in drain(engine)] == ["first", "q1", "q3", "q4", "q0", "q2"]


def test_without_priority_scheduling_the_priority_is_ignored():
    engine = Engine(EngineConfig(max_running=1, priority_scheduling=False))
    engine.submit(ask("first", new=50), 0.0)
    engine.submit(ask("low"), 0.001)
    engine.submit(ask("high", priority=99), 0.002)
    assert [done.rid for done in drain(engine)] == ["first", "low", "high"]


@pytest.mark.parametrize(("priority", "preempts"), [(10, False), (11, True)])
def test_preemption_needs_more_than_the_threshold(priority, preempts):
    engine = Engine(EngineConfig(max_running=1, preemption_threshold=10))
    engine.submit(ask("low", 200, 400), 0.0)
    engine.submit(ask("high", 200, 5, priority=priority), 1.0)
    done = {d.rid: d for d in drain(engine)}
    assert (done["high"].at_s < done["low"].at_s) is preempts
    assert done["low"].retractions == int(preempts)
    assert len(done["low"].output_ids) == 400


def test_kv_pressure_alone_never_preempts():
    engine = Engine(EngineConfig(max_running=8, preemption_threshold=10, kv_tokens=3000))
    engine.submit(ask("low", 2000, 500), 0.0)
    engine.submit(ask("high", 1500, 5, priority=99), 1.0)
    done = drain(engine)
    assert [d.rid for d in done] == ["low", "high"]
    assert engine.scheduler.preempted == 0


def test_the_first_that_does_not_fit_blocks_those_behind_it():
    engine = Engine(EngineConfig(kv_tokens=4000))
    engine.submit(ask("runs", 2000, 900), 0.0)
    engine.submit(ask("big", 3500, 5, priority=5), 1.0)
    engine.submit(ask("small", 100, 5), 2.0)
    done = {d.rid: d for d in drain(engine)}
    assert done["small"].entry_s >= done["runs"].at_s


def test_a_long_prompt_is_prefilled_in_chunks_that_hold_up_decoding():
    engine = Engine(EngineConfig(truth=QUIET, chunk_tokens=2048))
    engine.submit(ask("decodes", 100, 400), 0.0)
    engine.submit(ask("long", 10_000, 2), 1.0)
    engine.advance(1.05)
    made = engine.progress("decodes", 1.05)
    end_s = 1.0 + sum(engine.truth.prefill_s([(2048, 2048 * i)], 0) for i in range(4))
    assert engine.progress("decodes", end_s) == made
    done = {d.rid: d for d in drain(engine)}
    assert done["long"].prefill_end_s > end_s
    assert len(done["decodes"].output_ids) == 400


def test_retraction_frees_the_request_with_the_least_output_and_it_finishes_later():
    # Outputs beyond the 4,096 that admission counts: three fit at first and not to their ends.
    engine = Engine(EngineConfig(kv_tokens=12_000))
    for index in range(3):
        engine.submit(ask(f"r{index}", 300, 8000), 0.1 * index)
    done = drain(engine)
    assert engine.scheduler.retracted > 0
    assert sum(d.retractions for d in done) == engine.scheduler.retracted
    assert all(len(d.output_ids) == 8000 for d in done)
    assert done[0].rid == "r0"
    check_accounts(engine)


def test_an_abort_keeps_the_output_and_the_computed_prefix():
    engine = Engine(EngineConfig())
    request = ask("a", 500, 1000)
    engine.submit(request, 0.0)
    engine.abort("a", 2.0)
    (done,) = drain(engine)
    assert done.reason == "abort"
    assert 100 < len(done.output_ids) < 300
    assert done.at_s - 2.0 < 0.02
    resumed = np.concatenate([request.ids, done.output_ids])
    engine.submit(Request(rid="b", ids=resumed, max_new_tokens=5), 3.0)
    (after,) = drain(engine)
    assert after.cached_tokens == len(resumed) - 1


def test_a_resumed_request_continues_with_the_tokens_it_would_have_had():
    whole, broken = Engine(EngineConfig()), Engine(EngineConfig(degree=2))
    request = ask("a", 500, 40, salt="t7")
    whole.submit(request, 0.0)
    (all_at_once,) = drain(whole)
    received = all_at_once.output_ids[:15]
    rest = Request(
        rid="z", ids=np.concatenate([request.ids, received]), max_new_tokens=25, salt="t7"
    )
    broken.submit(rest, 0.0)
    assert drain(broken)[0].output_ids.tolist() == all_at_once.output_ids[15:].tolist()


def test_samples_of_one_prompt_differ_by_their_salt():
    assert output_ids(1, 10, 20).tolist() != output_ids(2, 10, 20).tolist()


def test_an_aborted_waiting_request_has_no_tokens_and_counts_its_queue_time():
    engine = Engine(EngineConfig(max_running=1))
    engine.submit(ask("a", new=500), 0.0)
    engine.submit(ask("b"), 1.0)
    engine.abort("b", 3.0)
    (done,) = engine.advance(3.0)
    assert (done.reason, len(done.output_ids), done.queue_s) == ("abort", 0, 2.0)


def test_pausing_in_place_freezes_and_continuing_finishes():
    engine = Engine(EngineConfig())
    engine.submit(ask("a", new=100), 0.0)
    engine.pause("in_place", 0.5)
    engine.submit(ask("b"), 1.0)
    assert engine.advance(60.0) == []
    engine.resume(60.0)
    done = drain(engine)
    assert {d.rid for d in done} == {"a", "b"}
    assert all(d.at_s > 60.0 and d.retractions == 0 for d in done)


def test_pausing_by_retraction_lets_the_cache_be_flushed_and_keeps_outputs():
    engine = Engine(EngineConfig())
    engine.submit(ask("a", 400, 100), 0.0)
    with pytest.raises(EngineBusy, match="pending requests"):
        engine.flush(0.3)
    engine.pause("retract", 0.5)
    engine.flush(1.0)
    assert engine.loads(1.0).used_tokens == 0
    engine.resume(2.0)
    (done,) = drain(engine)
    assert (done.retractions, len(done.output_ids)) == (1, 100)


def test_pausing_by_abort_ends_all_and_holds_what_comes():
    engine = Engine(EngineConfig())
    engine.submit(ask("a", new=1000), 0.0)
    engine.pause("abort", 1.0)
    engine.submit(ask("b"), 1.5)
    assert [d.reason for d in engine.advance(10.0)] == ["abort"]
    engine.resume(10.0)
    assert drain(engine)[0].entry_s >= 10.0


def test_sleep_needs_an_idle_engine_loses_kv_and_wakes_after_its_time():
    engine = Engine(EngineConfig())
    engine.submit(ask("a", new=5), 0.0)
    with pytest.raises(EngineBusy, match="idle"):
        engine.sleep({"kv_cache", "weights"}, 0.01)
    drain(engine)
    engine.sleep({"kv_cache", "weights"}, 10.0)
    assert engine.loads(10.0).used_tokens == 0
    engine.submit(ask("b"), 11.0)
    assert engine.advance(100.0) == []
    took_s = engine.wake({"kv_cache", "weights"}, 100.0)
    assert drain(engine)[0].entry_s == pytest.approx(100.0 + took_s)


def test_new_weights_flush_the_cache_take_time_and_show_their_version():
    engine = Engine(EngineConfig())
    engine.submit(ask("a", 300, 2, tag=1), 0.0)
    drain(engine)
    took_s = engine.load_weights("step-7", 5.0)
    engine.submit(ask("b", 300, 2, tag=1), 5.1)
    (done,) = drain(engine)
    assert (done.weight_version, done.cached_tokens) == ("step-7", 0)
    assert done.entry_s == pytest.approx(5.0 + took_s)


def test_slow_down_adds_its_seconds_to_every_iteration():
    times = []
    for slow_s in (0.0, 0.1):
        engine = Engine(EngineConfig(truth=QUIET))
        engine.slow_down(slow_s, 0.0)
        engine.submit(ask("a", 100, 11), 0.0)
        times.append(drain(engine)[0].at_s)
    assert times[1] - times[0] == pytest.approx(1.1)


def test_what_can_never_run_is_refused_with_a_sentence():
    engine = Engine(EngineConfig(kv_tokens=1000))
    engine.submit(ask("a", new=500), 0.0)
    with pytest.raises(BadRequest, match="Duplicate request ID detected: a"):
        engine.submit(ask("a"), 0.1)
    with pytest.raises(BadRequest, match="longer than the model's context length"):
        engine.submit(ask("b", 1000), 0.1)
    with pytest.raises(BadRequest, match="must not be empty"):
        engine.submit(Request(rid="c", ids=prompt(0, 0)), 0.1)


def test_more_output_than_fits_is_clipped_as_sglang_does():
    engine = Engine(EngineConfig(kv_tokens=1000))
    engine.submit(ask("a", 400, 10_000), 0.0)
    assert len(drain(engine)[0].output_ids) == 599


jobs = st.lists(
    st.tuples(
        st.floats(0.0, 3.0), st.integers(0, 3), st.integers(1, 900), st.integers(0, 400),
        st.integers(0, 2), st.sampled_from(["run", "run", "run", "abort", "late-abort"]),
    ),
    min_size=1, max_size=14,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(jobs, st.integers(1400, 6000), st.sampled_from([None, 0]), st.integers(1, 5))
def test_every_token_of_kv_is_accounted_for_and_everything_ends(made, kv, threshold, slots):
    config = EngineConfig(
        kv_tokens=kv, max_running=slots, preemption_threshold=threshold, chunk_tokens=512
    )
    engine = Engine(config)
    ended, now = 0, 0.0
    for index, (at, tag, size, new, priority, deed) in enumerate(sorted(made)):
        now = max(now, at)
        ended += len(engine.advance(now))
        engine.submit(ask(f"r{index:03d}", size, new, tag=tag, priority=priority), now)
        if deed != "run":
            now += 0.2 if deed == "late-abort" else 0.0
            engine.abort(f"r{index:03d}", now)
        check_accounts(engine)
    while (at := engine.next_event_s()) != float("inf"):
        ended += len(engine.advance(at))
        check_accounts(engine)
    assert ended == len(made)
    assert engine.is_idle
    assert engine.scheduler.cache.locked_tokens == engine.scheduler.private_tokens == 0


@settings(max_examples=30, deadline=None)
@given(jobs, st.integers(1400, 6000))
def test_how_often_one_looks_changes_nothing(made, kv):
    runs = []
    for look_s in (None, 0.05):
        engine = Engine(EngineConfig(kv_tokens=kv, max_running=4))
        done, at = [], 0.0
        for index, (arrival, tag, size, new, priority, _) in enumerate(sorted(made)):
            while look_s is not None and at + look_s < arrival:
                at += look_s
                done += engine.advance(at)
            engine.submit(ask(f"r{index:03d}", size, new, tag=tag, priority=priority), arrival)
        done += drain(engine)
        runs.append([(d.rid, d.at_s, d.retractions, d.output_ids.tolist()) for d in done])
    assert runs[0] == runs[1]


def test_lof_admits_the_longest_declared_output_first_within_a_priority():
    config = EngineConfig(schedule_policy="lof", max_running=1, truth=QUIET)
    engine = Engine(config)
    engine.submit(ask("first", 100, 20), 0.0)
    for rid, new in (("short", 5), ("long", 50), ("middle", 20)):
        engine.submit(ask(rid, 100, new), 0.01)
    assert [done.rid for done in drain(engine)] == ["first", "long", "middle", "short"]
