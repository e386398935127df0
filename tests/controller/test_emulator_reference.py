"""Does the closed form finish when an engine that walks token by token does?

The reference shares prices and nothing else: a plain loop over iterations, first come first served
by priority, chunked prefill first, a running cap, prefix hits by comparing whole histories.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from drawn_requests import requests
from hypothesis import given, settings

from heddle.controller.emulator.engine import Engine
from heddle.controller.emulator.request import EngineConfig, Request
from heddle.controller.emulator.truth import TruthParams, load_truth

CHUNK, SLOTS = 256, 3
TRUTH = load_truth("h100_sxm", "Qwen3-14B", 1, TruthParams(noise_sigma=0.05, noise_block=7))
CONFIG = EngineConfig(chunk_tokens=CHUNK, max_running=SLOTS, truth=TRUTH.params)


@dataclass
class Walker:
    rid: str
    arrival_s: float
    tokens: list[int]
    new: int
    priority: int
    done: int = 0
    out: int = 0
    end_s: float = field(default=0.0)


def shared(one, other):
    size = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        size += 1
    return size


class Reference:
    """One iteration at a time."""

    def __init__(self, walkers: list[Walker]):
        self.coming = sorted(walkers, key=lambda w: w.arrival_s)
        self.waiting, self.running, self.held = [], [], []
        self.half = None
        self.now_s, self.iterations = 0.0, 0
        self.longest_s = 0.0

    def run(self):
        while self.coming or self.waiting or self.running or self.half:
            if not (self.waiting or self.running or self.half):
                self.now_s = max(self.now_s, self.coming[0].arrival_s)
            self.arrive()
            parts = self.admit()
            took_s = self.prefill(parts) if parts else self.decode()
            self.longest_s = max(self.longest_s, took_s)

    def arrive(self):
        while self.coming and self.coming[0].arrival_s <= self.now_s:
            self.waiting.append(self.coming.pop(0))
        self.waiting.sort(key=lambda w: (-w.priority, w.arrival_s))

    def admit(self):
        room, parts = CHUNK, []
        if self.half is not None:
            parts.append((self.half, min(room, len(self.half.tokens) - self.half.done)))
            room -= parts[0][1]
            if self.half.done + parts[0][1] == len(self.half.tokens):
                self.half = None
        while (
            self.waiting and room and self.half is None and len(self.running) + len(parts) < SLOTS
        ):
            walker = self.waiting.pop(0)
            hits = [shared(walker.tokens[:-1], known) for known in self.held]
            walker.done = max(hits, default=0)
            parts.append((walker, min(room, len(walker.tokens) - walker.done)))
            room -= parts[-1][1]
            if walker.done + parts[-1][1] < len(walker.tokens):
                self.half = walker
        return parts

    def prefill(self, parts):
        sizes = [(new, walker.done) for walker, new in parts]
        took_s = TRUTH.prefill_s(sizes, self.iterations)
        self.step(took_s)
        for walker, new in parts:
            walker.done += new
            self.held.append(walker.tokens[: walker.done])
            if walker.done == len(walker.tokens):
                self.running.append(walker)
                walker.out = min(1, walker.new)
        self.leave()
        return took_s

    def decode(self):
        contexts = sum(len(w.tokens) + w.out for w in self.running)
        (piece,) = TRUTH.pieces(len(self.running), contexts, self.iterations, 1)
        self.step(piece.first_s)
        for walker in self.running:
            walker.out += 1
        self.leave()
        return piece.first_s

    def step(self, took_s):
        self.now_s += took_s
        self.iterations += 1

    def leave(self):
        for walker in [w for w in self.running if w.out >= w.new]:
            walker.end_s = self.now_s
            self.running.remove(walker)


jobs = requests((0.0, 1.0), (0, 2), (1, 700), (0, 90), (1, 9))


@settings(max_examples=60, deadline=None)
@given(jobs)
def test_finish_times_agree_within_one_iteration(made):
    walkers, engine = [], Engine(CONFIG)
    for index, (arrival, tag, size, new, priority) in enumerate(sorted(made)):
        ids = np.random.default_rng(tag).integers(0, 150_000, size).astype(np.int32)
        arrival += index * 1e-6
        walkers.append(Walker(f"r{index}", arrival, ids.tolist(), new, priority))
    reference = Reference(walkers)
    reference.run()
    done = []
    for walker in walkers:
        ids = np.array(walker.tokens, dtype=np.int32)
        request = Request(
            rid=walker.rid, ids=ids, max_new_tokens=walker.new, priority=walker.priority
        )
        engine.submit(request, walker.arrival_s)
    while (at := engine.next_event_s()) != float("inf"):
        done += engine.advance(at)
    for finished in done:
        (walker,) = [w for w in walkers if w.rid == finished.rid]
        assert abs(finished.at_s - walker.end_s) <= reference.longest_s
