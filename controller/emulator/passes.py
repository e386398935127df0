"""When does each iteration of a pass end, without walking through them?

A decode pass is a run of iterations with a constant batch: arithmetic series, so its time and its
inverse are closed forms. A prefill pass is one indivisible stretch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import floor, inf, sqrt
from typing import NamedTuple

from heddle.controller.emulator.admission import Part
from heddle.controller.emulator.truth import Piece


class PrefillPass(NamedTuple):
    """Decodes wait until it ends."""

    start_s: float
    end_s: float
    parts: list[Part]


class DecodePass:
    """`iterations` of a constant batch; may be cut short at any iteration's end."""

    __slots__ = ("_counts", "_ends_s", "_pieces", "batch", "end_s", "iterations", "start_s")

    def __init__(self, start_s: float, batch: int, pieces: Sequence[Piece]) -> None:
        self.start_s = start_s
        self.batch = batch
        self._pieces = pieces
        self._counts, self._ends_s = [0], [0.0]
        for piece in pieces:
            self._counts.append(self._counts[-1] + piece.iterations)
            self._ends_s.append(self._ends_s[-1] + piece.lasting_s(piece.iterations))
        self.iterations = self._counts[-1]
        self.end_s = start_s + self._ends_s[-1]

    def time_s(self, iterations: int) -> float:
        """When that many iterations have ended."""
        at = min(bisect_right(self._counts, iterations) - 1, len(self._pieces) - 1)
        inside = iterations - self._counts[at]
        return self.start_s + self._ends_s[at] + self._pieces[at].lasting_s(inside)

    def ended_by(self, now_s: float) -> int:
        """How many iterations have ended at that time."""
        if now_s <= self.start_s:
            return 0
        since_s = now_s - self.start_s
        at = min(bisect_left(self._ends_s, since_s), len(self._pieces)) - 1
        piece = self._pieces[at]
        guess = self._counts[at] + _solve(piece, since_s - self._ends_s[at])
        guess = min(guess, self.iterations)
        # The square root may miss by one in the last bits; the forward form decides.
        while guess < self.iterations and self.time_s(guess + 1) <= now_s:
            guess += 1
        while guess > 0 and self.time_s(guess) > now_s:
            guess -= 1
        return guess

    def cut(self, now_s: float) -> None:
        """End with the iteration that is under way at that time."""
        ended = self.ended_by(now_s)
        under_way = 0 if self.time_s(ended) >= now_s else 1
        self.iterations = min(self.iterations, ended + under_way)
        self.end_s = self.time_s(self.iterations)


def _solve(piece: Piece, elapsed_s: float) -> int:
    """Whole iterations of a piece in that time: first*k + step*k(k-1)/2 <= elapsed."""
    if abs(piece.step_s) < 1e-15:
        return max(0, floor(elapsed_s / piece.first_s)) if piece.first_s > 0 else 0
    linear = piece.first_s - piece.step_s / 2
    inside = linear * linear + 2 * piece.step_s * elapsed_s
    root = (sqrt(inside) - linear) / piece.step_s if inside >= 0 else inf
    return max(0, min(floor(root), piece.iterations)) if root != inf else piece.iterations
