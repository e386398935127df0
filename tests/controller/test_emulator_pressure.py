"""Short of KV, does the closed form finish when an engine that walks token by token does?

The walker shares prices and the prefix tree (tested by brute force on its own) and nothing else: it
adds everything up anew at every iteration: SGLang's admission with its reserve, chunks, retraction,
preemption when slots are gone, eviction.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
from drawn_requests import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.controller.emulator.cache import PrefixCache
from heddle.controller.emulator.engine import Engine
from heddle.controller.emulator.request import EngineConfig, Request, content_salt, output_ids
from heddle.controller.emulator.truth import TruthParams, load_truth

TRUTH = load_truth("h100_sxm", "Qwen3-14B", 1, TruthParams(noise_sigma=0.05, noise_block=7))
CLIP, START, LEAST, FALL, STEPS = 4096, 0.7, 0.098, (0.7 - 0.098) / 600, 20


class Walker:
    def __init__(self, rid, arrival_s, ids, new, priority, number):
        self.rid, self.arrival_s, self.prompt, self.new = rid, arrival_s, ids, new
        self.priority, self.number = priority, number
        self.salt = content_salt(ids, rid)
        self.ids = ids
        self.out = self.private = self.held = self.done = self.retractions = 0
        self.node = self.cached = self.end_s = None
        self.abort_s = inf

    @property
    def left(self):
        return self.new - self.out

    def whole(self):
        return np.concatenate([self.prompt, output_ids(self.salt, len(self.prompt), self.out)])


class Slow:
    """One iteration at a time; every sum is made anew."""

    def __init__(self, walkers: list[Walker], capacity, slots, chunk, threshold):
        self.coming = sorted(walkers, key=lambda w: w.arrival_s)
        self.capacity, self.slots, self.chunk, self.threshold = capacity, slots, chunk, threshold
        self.waiting, self.running, self.half, self.full = [], [], None, False
        self.cache, self.ratio = PrefixCache(), START
        self.joining: list[Walker] = []
        self.now_s, self.iterations, self.longest_s = 0.0, 0, 0.0

    def play(self):
        while self.coming or self.waiting or self.running or self.half:
            if not (self.waiting or self.running or self.half):
                # SGLang's scheduler starts its reserve anew whenever it is idle.
                self.ratio, self.full = START, False
                self.now_s = max(self.now_s, self.coming[0].arrival_s)
            while self.coming and self.coming[0].arrival_s <= self.now_s:
                self.waiting.append(self.coming.pop(0))
            for walker in [w for w in self.waiting if w.abort_s < self.now_s]:
                self.waiting.remove(walker)
                walker.end_s = walker.abort_s
            parts = self.admit()
            if parts:
                self.prefill(parts)
            elif self.running:
                self.retract()
                self.decode()
            else:
                self.ratio, self.full = START, False

    # KV, added up anew

    def owned(self):
        halves = [self.half] if self.half and self.half not in self.running else []
        return sum(w.private for w in [*self.running, *halves, *self.joining])

    def room(self):
        return self.capacity - self.owned() - self.cache.locked_tokens

    def evict_for(self, tokens):
        self.cache.evict(tokens - (self.room() - self.cache.evictable_tokens))

    def reserve(self):
        kept = self.ratio * sum(min(w.left, CLIP) for w in self.running)
        if self.half:
            kept += len(self.half.ids) - self.half.done - self.half.private
            kept += min(self.half.left, CLIP)
        return kept

    def free(self, walker):
        if walker.node is not None:
            self.cache.unlock(walker.node)
        walker.node, walker.private, walker.held, walker.done = None, 0, 0, 0

    def keep(self, walker, ids):
        _, node = self.cache.insert(ids, len(ids), self.now_s)
        self.cache.lock(node)
        self.free(walker)
        walker.node, walker.held, walker.done = node, len(ids), len(ids)

    # the rules

    def line(self):
        return sorted(self.waiting, key=lambda w: (-w.priority, w.arrival_s, w.number))

    def admit(self):
        parts, self.joining = [], []
        if self.half:
            new = min(len(self.half.ids) - self.half.done, self.chunk)
            self.evict_for(new)
            self.half.private += new
            parts.append((self.half, new, self.half.done))
            self.joining.append(self.half)
            if self.half.done + new == len(self.half.ids):
                self.half = None
            else:
                self.joining.clear()
        if self.threshold is not None:
            self.full = False
        promised = sum(min(w.left, CLIP) for w, _, _ in parts)
        for walker in [] if self.full or self.half else self.line():
            room = self.chunk - sum(new for _, new, _ in parts)
            if room <= 0 or self.half:
                break
            if not self.slot(walker, len(parts), promised):
                self.full = True
                break
            if not self.enter(walker, room, promised, parts):
                self.full = bool(self.running or parts)
                break
            promised += min(walker.left, CLIP)
        return parts

    def enter(self, walker, room, promised, parts):
        held, node = self.cache.match(walker.ids, len(walker.ids) - 1, self.now_s)
        self.cache.lock(node)
        extend = len(walker.ids) - held
        if extend + min(walker.left, CLIP) >= self.room() - self.reserve() - promised:
            self.cache.unlock(node)
            return False
        walker.node, walker.held, walker.done = node, held, held
        new = min(extend, room)
        self.evict_for(new)
        walker.private = new
        self.waiting.remove(walker)
        if new < extend:
            self.half = walker
        else:
            self.joining.append(walker)
        walker.cached = held if walker.cached is None else walker.cached
        parts.append((walker, new, held))
        return True

    def slot(self, walker, taking, promised):
        if len(self.running) + taking < self.slots:
            return True
        if self.threshold is None:
            return False
        held, _ = self.cache.match(walker.ids, len(walker.ids) - 1, self.now_s)
        need = len(walker.ids) - held + min(walker.left, CLIP)
        need -= self.room() - self.reserve() - promised
        victims = []
        for victim in sorted(self.running, key=lambda w: (w.priority, -w.number)):
            if walker.priority - victim.priority <= self.threshold or (victims and need <= 0):
                break
            victims.append(victim)
            need -= victim.held + victim.private + int(self.ratio * min(victim.left, CLIP))
        if not victims or need > 0:
            return False
        for victim in victims:
            self.send_back(victim)
        return True

    def send_back(self, victim):
        self.running.remove(victim)
        self.free(victim)
        victim.ids = victim.whole()
        victim.retractions += 1
        self.waiting.append(victim)

    def retract(self):
        if self.room() >= len(self.running):
            return
        while len(self.running) > 1 and self.room() < STEPS * len(self.running):
            self.send_back(min(self.running, key=lambda w: (w.out, -len(w.prompt), -w.number)))
        out, target = sum(w.out for w in self.running), sum(w.new for w in self.running)
        self.ratio = min(1.0, (out + STEPS * len(self.running)) / (target + 1))
        self.full = False

    def step(self, took_s):
        self.now_s += took_s
        self.iterations += 1
        self.longest_s = max(self.longest_s, took_s)

    def prefill(self, parts):
        self.step(TRUTH.prefill_s([(new, prefix) for _, new, prefix in parts], self.iterations))
        self.joining = [w for w, _, _ in parts if w is not self.half]
        for walker, new, prefix in parts:
            self.keep(walker, walker.ids[: prefix + new])
            if walker is self.half and walker.abort_s < self.now_s:
                self.half, walker.end_s = None, self.now_s
                self.free(walker)
                continue
            if walker.done == len(walker.ids):
                self.joining.remove(walker)
                self.running.append(walker)
                walker.out += walker.new > 0
                if walker.left == 0 or walker.abort_s < self.now_s:
                    self.leave(walker)
        self.joining = []

    def decode(self):
        batch = len(self.running)
        self.evict_for(batch)
        contexts = sum(len(w.prompt) + w.out for w in self.running)
        (piece,) = TRUTH.pieces(batch, contexts, self.iterations, 1)
        self.step(piece.first_s)
        self.ratio = max(LEAST, self.ratio - FALL)
        for walker in self.running:
            walker.out += 1
            walker.private += 1
        for walker in [w for w in self.running if w.left == 0 or w.abort_s < self.now_s]:
            self.leave(walker)

    def leave(self, walker):
        walker.end_s = self.now_s
        self.running.remove(walker)
        whole = walker.whole()
        self.keep(walker, whole[: max(len(whole) - 1, walker.held + walker.private)])
        self.free(walker)
        self.full = False


jobs = requests((0.0, 1.5), (0, 2), (1, 260), (0, 150), (1, 10))


crowds = requests((0.0, 0.2), (0, 9), (5, 40), (90, 300), (6, 10))


def both(made, capacity, slots, threshold, aborted=()):
    """`aborted`: the number of one, and how long after it came."""
    walkers = []
    for number, (arrival_s, tag, size, new, priority) in enumerate(sorted(made)):
        ids = np.random.default_rng(tag).integers(0, 150_000, size).astype(np.int32)
        at_s = arrival_s + number * 1e-6
        walkers.append(Walker(f"r{number}", at_s, ids, new, priority, number + 1))
    for number, after_s in aborted:
        walker = walkers[number % len(walkers)]
        walker.abort_s = walker.arrival_s + after_s
    slow = Slow(walkers, capacity, slots, 128, threshold)
    slow.play()
    config = EngineConfig(
        kv_tokens=capacity, context_tokens=capacity, chunk_tokens=128, max_running=slots,
        preemption_threshold=threshold, truth=TRUTH.params,
    )  # fmt: skip
    engine, done = Engine(config), {}
    told = [(w.arrival_s, False, w) for w in walkers]
    told += [(w.abort_s, True, w) for w in walkers if w.abort_s < inf]
    for at_s, aborts, walker in sorted(told, key=lambda one: one[:2]):
        if aborts:
            engine.abort(walker.rid, at_s)
            continue
        request = Request(
            rid=walker.rid, ids=walker.prompt, max_new_tokens=walker.new, priority=walker.priority,
            salt=walker.rid,
        )  # fmt: skip
        engine.submit(request, at_s)
    while (at_s := engine.next_event_s()) != float("inf"):
        done |= {finished.rid: finished for finished in engine.advance(at_s)}
    return walkers, slow, done, engine


def agree(walkers, slow, done):
    for walker in walkers:
        finished = done[walker.rid]
        assert abs(finished.at_s - walker.end_s) <= slow.longest_s
        assert finished.retractions == walker.retractions
        assert finished.cached_tokens == (walker.cached or 0)
        assert finished.output_tokens == walker.out
        if walker.new:
            assert (finished.reason == "abort") == (walker.out < walker.new)


@settings(max_examples=60, deadline=None)
@given(jobs | crowds, st.sampled_from([420, 600, 1100]), st.sampled_from([2, 4, 8]))
def test_short_of_kv_both_finish_within_one_iteration_with_the_same_retractions(
    made, capacity, slots
):
    walkers, slow, done, _ = both(made, capacity, slots, None)
    agree(walkers, slow, done)


@settings(max_examples=60, deadline=None)
@given(jobs | crowds, st.sampled_from([420, 600, 1100]), st.sampled_from([1, 2, 3]))
def test_with_preemption_both_finish_within_one_iteration_with_the_same_victims(
    made, capacity, slots
):
    walkers, slow, done, _ = both(made, capacity, slots, 0)
    agree(walkers, slow, done)


# One that is long under way lets the reserve fall to its least; then many are let in at once, and
# in three of four cases some are retracted again, mostly several in one iteration.
rushes = requests((5.0, 5.3), (1, 8), (5, 40), (90, 300), (6, 10))
LONG = (0.0, 0, 20, 1000, 0)


@settings(max_examples=60, deadline=None)
@given(rushes)
def test_when_many_are_retracted_at_once_they_are_the_same_many(made):
    agree(*both([LONG, *made], 1500, 16, None)[:3])


aborts = st.lists(st.tuples(st.integers(0, 9), st.floats(0.0001, 1.0)), max_size=6)


@settings(max_examples=60, deadline=None)
@given(jobs | crowds, st.sampled_from([420, 600, 1100]), st.sampled_from([2, 4, 8]), aborts)
def test_aborted_at_any_time_both_keep_the_same_tokens(made, capacity, slots, aborted):
    agree(*both(made, capacity, slots, None, aborted)[:3])


def test_an_abort_during_a_prefill_or_a_pause_ends_it_at_the_next_iteration():
    """It went on to the first natural end of the batch: hundreds of tokens."""
    long = Request(rid="a", ids=np.arange(50, dtype=np.int32), max_new_tokens=5000)
    engine = Engine(EngineConfig(truth=TRUTH.params))
    engine.submit(long, 0.0)
    engine.pause("in_place", 1.0)
    engine.advance(2.0)
    before = engine.progress("a", 2.0)
    engine.abort("a", 2.0)
    engine.resume(3.0)
    (done,) = engine.advance(4.0)
    assert (done.reason, done.output_tokens) == ("abort", before + 1)
    engine.submit(replace(long, rid="b"), 10.0)
    wide = Request(rid="c", ids=np.arange(60_000, 120_000, dtype=np.int32), max_new_tokens=5000)
    engine.submit(wide, 11.0)
    engine.advance(11.3)
    assert (engine.under_way(11.3) or ("",))[0] == "prefill"
    before = engine.progress("b", 11.3)
    engine.abort("b", 11.3)
    done = engine.advance(30.0)[0]
    assert (done.rid, done.reason, done.output_tokens) == ("b", "abort", before + 1)


def test_the_cases_do_retract_preempt_and_evict():
    crowd = [(i * 0.01, 0, 20 + i, 150, 0) for i in range(10)]
    *_, engine = both(crowd, 600, 8, None)
    assert engine.scheduler.retracted > 0
    assert engine.scheduler.cache.evicted_tokens > 0
    rush = [(5.0 + 0.01 * i, 1 + i, 10 + i, 250, 0) for i in range(10)]
    *_, engine = both([LONG, *rush], 1500, 16, None)
    assert engine.scheduler.retracted > 2
    *_, engine = both([(0.0, 0, 50, 150, 0), (0.5, 1, 50, 50, 2)], 600, 1, 0)
    assert engine.scheduler.preempted == 1
