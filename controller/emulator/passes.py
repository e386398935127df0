"""When does each iteration of a pass end, without walking through them?

A decode pass is a run of iterations with a constant batch: arithmetic series, so its time and its
inverse are closed forms. A prefill pass is one indivisible stretch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import floor, inf, sqrt
from typing import Final, NamedTuple

from heddle.controller.emulator.admission import Part
from heddle.controller.emulator.truth import Piece


class PrefillPass(NamedTuple):
    """Decodes wait until it ends."""

    start_s: float
    end_s: float
    parts: list[Part]


prefill_pass: Final = PrefillPass._make


class DecodePass:
    """`iterations` of a constant batch; may be cut short at any iteration's end."""

    __slots__ = ("_counts", "_ends_s", "_pieces", "batch", "end_s", "iterations", "start_s")

    def __init__(self, start_s: float, batch: int, pieces: Sequence[Piece]) -> None:
        self.start_s = start_s
        self.batch = batch
        self._pieces = pieces
        self._counts, self._ends_s = counts, ends_s = [0], [0.0]
        count, end_s = 0, 0.0
        for iterations, first_s, step_s in pieces:
            count += iterations
            end_s += first_s * iterations + step_s * (iterations * (iterations - 1) / 2)
            counts.append(count)
            ends_s.append(end_s)
        self.iterations = count
        self.end_s = start_s + end_s

    def time_s(self, iterations: int) -> float:
        """When that many iterations have ended."""
        counts, pieces = self._counts, self._pieces
        at = bisect_right(counts, iterations) - 1
        if at == len(pieces):
            at -= 1
        return self.start_s + self._ends_s[at] + pieces[at].lasting_s(iterations - counts[at])

    def ended_by(self, now_s: float) -> int:
        """How many iterations have ended at that time."""
        return self._around(now_s)[0]

    def cut(self, now_s: float) -> None:
        """End with the iteration that is under way at that time."""
        ended, ended_s, next_s = self._around(now_s)
        if ended_s < now_s and ended < self.iterations:
            ended, ended_s = ended + 1, next_s
        self.iterations, self.end_s = ended, ended_s

    def _around(self, now_s: float) -> tuple[int, float, float]:
        """Iterations ended by then, when the last of them did, and when the next one will."""
        if now_s <= self.start_s:
            return 0, self.start_s, self.time_s(1)
        since_s, most = now_s - self.start_s, self.iterations
        at = min(bisect_left(self._ends_s, since_s), len(self._pieces)) - 1
        guess = self._counts[at] + _solve(self._pieces[at], since_s - self._ends_s[at])
        guess = guess if guess < most else most
        # The square root may miss by one in the last bits; the forward form decides.
        last_s, next_s = self.time_s(guess), self.time_s(guess + 1)
        while guess < most and next_s <= now_s:
            guess += 1
            last_s, next_s = next_s, self.time_s(guess + 1)
        while guess > 0 and last_s > now_s:
            guess -= 1
            last_s, next_s = self.time_s(guess), last_s
        return guess, last_s, next_s


def _solve(piece: Piece, elapsed_s: float) -> int:
    """Whole iterations of a piece in that time: first*k + step*k(k-1)/2 <= elapsed."""
    if abs(piece.step_s) < 1e-15:
        return max(0, floor(elapsed_s / piece.first_s)) if piece.first_s > 0 else 0
    linear = piece.first_s - piece.step_s / 2
    inside = linear * linear + 2 * piece.step_s * elapsed_s
    root = (sqrt(inside) - linear) / piece.step_s if inside >= 0 else inf
    return max(0, min(floor(root), piece.iterations)) if root != inf else piece.iterations
