"""How would a rollout of these lengths go on that layout?

A fluid in time steps: every engine decodes what lives there at one speed (batch, context, prefill
and tool waits by its law), first steps wait until the KV they will grow to fits, the longest by a
guess first, and go where the end is nearest. Not in it: moves, a prefix cache that forgets, prompts
that siblings share, single steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from heddle.controller.core.draws import LEVELS, Floats, Ints
from heddle.controller.core.exact import Columns, prefill_s
from heddle.controller.core.memory import Flags
from heddle.controller.core.types import CoreError, Latency, Work

STEPS: Final = 300
"""Time steps of a rollout, about: 600 moved makespans by under 0.3 %."""
ROOM: Final = 0.85
"""Share of the KV that first steps may fill: what `hold-kv` reaches with 0.8 of expected peaks,
since who is in a tool for long does not count there. Between 0.8 and 0.9 sixteen replays of four
workloads (14B, 8 GPUs) were forecast as well; docs/lab-log.md has them."""
GUESS_SIGMA: Final = 0.6
"""Log-error of the guesses by which first steps are ordered, admitted and placed: about history's.
At 1.0 halves looked up to 50 % worse than they replayed, with lengths known 3 to 8 % better; at 0.3
single engines 2 to 4 % better."""
OUTLIVED: Final = 0.5
"""Of what it has made, what a trajectory that outlived its guess is expected to make still."""
LOOKS: Final = 16
"""Times ahead at which the KV of those who live is summed up, until the longest of them ends."""
FEWEST: Final = 50
"""Time steps that a rollout has at least: contexts grow within one."""
TURNS: Final = 2
"""Turns of the fixed point a time step; it goes on from where the last one was."""
MOST_PREFILL: Final = 0.95
"""Share of an engine's time that prefill may take."""
WAITING: Final = -1
OVER: Final = -2


def imagined_s(works: Sequence[Work], laws: Mapping[int, Latency], degrees: Sequence[int]) -> float:
    """Seconds until the last of *works* has ended on engines of those degrees; 0 for none.

    CoreError where a degree has no law.
    """
    if unknown := sorted(set(degrees) - set(laws)):
        message = f"no latency law of degree {unknown[0]}; known degrees are {sorted(laws)}"
        raise CoreError(message)
    if not works:
        return 0.0
    fluid = Fluid(Columns.of(works), [laws[degree] for degree in degrees])
    while fluid.left:
        fluid.start()
        fluid.go()
    return fluid.now_s


class Fluid:
    """One rollout under way: columns are trajectories, longest first, and engines."""

    def __init__(self, works: Columns, laws: Sequence[Latency]) -> None:
        self.now_s, self.left = 0.0, len(works)
        self.output = np.maximum(works.output, 1.0)
        self.prompt = works.prompt
        self.growth = 1.0 + works.observed / self.output
        self.tool_s = works.tool_s / self.output
        self.resets = works.resets / self.output
        self.made = np.zeros(self.left)
        self.half = np.zeros(self.left)
        self.home: Ints = np.full(self.left, WAITING, dtype=np.intp)
        self.guess = self.output * np.exp(GUESS_SIGMA * np.resize(LEVELS, self.left))
        self.guess *= self.output.sum() / self.guess.sum()
        self.order: Ints = np.argsort(-self.guess, kind="stable")
        self.kinds = (np.log2(np.maximum(self.guess, 64.0)) * 4).astype(int).tolist()
        self._of_engines(works, laws)
        # An upper guess of the makespan: everything one after the other would be far above it.
        self.whole_s = max(self._ends_s(*self._sums(np.arange(self.left) % len(laws))))
        self.token_s = self.a_s + self.b_s

    def _of_engines(self, works: Columns, laws: Sequence[Latency]) -> None:
        self.a_s, self.b_s, self.c_s, self.kv, self.most = (
            np.array([float(value) for value in column])
            for column in zip(
                *((w.a_s, w.b_s, w.c_s, max(w.kv_tokens, 1), max(w.max_running, 1)) for w in laws),
                strict=True,
            )
        )
        unlike = {law.degree: law for law in laws}
        self.kind: Ints = np.array([list(unlike).index(law.degree) for law in laws], dtype=np.intp)
        self.prefill_s = np.stack([prefill_s(works, law) for law in unlike.values()]) / self.output
        area = self.output * (self.prompt + works.depth)
        self.area = area
        self.work_s = (
            np.stack([law.b_s * self.output + law.c_s * area for law in unlike.values()])
            + self.prefill_s * self.output
        )

    def start(self) -> None:
        """Let first steps go that fit, the longest first, each to the engine that ends soonest."""
        waiting = self.order[self.home[self.order] == WAITING]
        if not len(waiting):
            return
        ahead = np.linspace(0.0, float(self._expected(self.home != OVER).max()), LOOKS)
        held, count = (
            self._held(ahead),
            np.bincount(self.home[self.home >= 0], minlength=len(self.kv)),
        )
        sums = self._sums(self.home)
        full = set[int]()
        for place in waiting.tolist():
            kind = self.kinds[place]
            if kind in full:
                continue
            own = self.prompt[place] + self.growth[place] * ahead
            own[ahead >= self.guess[place]] = 0.0
            fits = (held + own[:, None]).max(axis=0) <= ROOM * self.kv
            fits &= count < self.most
            fits |= count == 0
            if not fits.any():
                full.add(kind)
                continue
            there = self._with(sums, place)
            best = int(np.where(fits, self._ends_s(*there), np.inf).argmin())
            for mine, then in zip(sums, there, strict=True):
                mine[best] = then[best]
            held[:, best] += own
            count[best] += 1
            self.home[place] = best

    def _expected(self, which: Flags | Ints) -> Floats:
        """Tokens still to come as far as anybody knows: who outlived the guess has half as much
        again before it."""
        made = self.made[which]
        return np.maximum(self.guess[which] - made, OUTLIVED * made)

    def go(self) -> None:
        """One time step: everybody at home somewhere decodes, prefills and waits for tools."""
        live = np.flatnonzero(self.home >= 0)
        home = self.home[live]
        spent_s = self._token_s(live, home)
        left_s = (self.output[live] - self.made[live]) * spent_s
        step_s = min(max(float(left_s.min()), self.whole_s / STEPS), self.whole_s / FEWEST)
        done = left_s <= step_s
        if done.all() and len(live) == self.left:
            step_s = float(left_s.max())
        self.now_s += step_s
        self.made[live] += step_s / spent_s
        self.half[live] = step_s / spent_s / 2
        self.home[live[done]] = OVER
        self.left -= int(done.sum())

    def _token_s(self, live: Ints, home: Ints) -> Floats:
        """Seconds a token takes each of them, tools and prefill between included."""
        engines = len(self.kv)
        # In the middle of the step, if it gets as far as the last one did.
        made = np.minimum(self.made[live] + self.half[live], self.output[live])
        context = self._contexts(live, made)
        own_s = self.prefill_s[self.kind[home], live]
        beside_s = self.tool_s[live] + own_s
        for _ in range(TURNS):
            decode_s = self.token_s[home]
            spent_s = decode_s + beside_s
            share = decode_s / spent_s
            batch = np.bincount(home, weights=share, minlength=engines)
            held = np.bincount(home, weights=share * context, minlength=engines)
            prefilling = np.bincount(home, weights=own_s / spent_s, minlength=engines)
            queued = np.maximum(np.maximum(batch / self.most, held / self.kv), 1.0)
            then_s = self.a_s + self.b_s * batch / queued + self.c_s * held / queued
            then_s = then_s * queued / (1.0 - np.minimum(prefilling, MOST_PREFILL))
            self.token_s = np.sqrt(self.token_s * then_s)
        return self.token_s[home] + beside_s

    def _contexts(self, live: Ints, made: Floats) -> Floats:
        """Tokens of each context, which falls back to the prompt at any time with the same odds."""
        rate = self.resets[live]
        often = rate > 0.0
        made[often] = -np.expm1(-rate[often] * made[often]) / rate[often]
        return self.prompt[live] + self.growth[live] * made

    def _held(self, ahead: Floats) -> Floats:
        """KV tokens of each engine, so many tokens further on."""
        live = np.flatnonzero(self.home >= 0)
        home, left = self.home[live], self._expected(live)
        context, growth = self._contexts(live, self.made[live]), self.growth[live]
        return np.stack([
            np.bincount(
                home, weights=np.where(further < left, context + growth * further, 0.0),
                minlength=len(self.kv),
            )
            for further in ahead.tolist()
        ]).astype(float)  # fmt: skip

    def _sums(self, home: Ints) -> tuple[Floats, Floats, Floats, Floats]:
        """What is left to do at each engine: the longest, KV area, tokens, busy seconds."""
        live = np.flatnonzero(home >= 0)
        at = home[live]
        tokens = self._expected(live)
        left = tokens / self.output[live]
        engines = len(self.kv)
        longest = np.zeros(engines)
        np.maximum.at(longest, at, tokens * (self.a_s[at] + self.tool_s[live]))
        area, tokens, work = (
            np.bincount(at, weights=left * values, minlength=engines).astype(float)
            for values in (self.area[live], self.output[live], self.work_s[self.kind[at], live])
        )
        return longest, area, tokens, work

    def _with(
        self, sums: tuple[Floats, Floats, Floats, Floats], place: int
    ) -> tuple[Floats, Floats, Floats, Floats]:
        longest, area, tokens, work = sums
        guess = self.guess[place]
        part = guess / self.output[place]
        return (
            np.maximum(longest, guess * (self.a_s + self.tool_s[place])),
            area + part * self.area[place],
            tokens + guess,
            work + part * self.work_s[self.kind, place],
        )

    def _ends_s(self, longest: Floats, area: Floats, tokens: Floats, work: Floats) -> Floats:
        """In closed form, as in cost.py."""
        full = self.a_s * np.maximum(area / (ROOM * self.kv), tokens / self.most)
        return np.maximum(longest, full) + work
