"""What need not be worked out again at every decision?

Columns of the live trajectories, one row each, kept from decision to decision: only facts that
changed are read again, and draws only where the prediction changed. A decision with a memory is
bit-equal to one without: everything handed out is gathered in the snapshot's order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from operator import is_not
from typing import Final

import numpy as np
from numpy.typing import NDArray

from heddle.controller.core.draws import DRAWS, Floats, Ints, draws_of, level_of, quantiles_of
from heddle.controller.core.priority import Standing
from heddle.controller.core.types import Snapshot, Trajectory

Flags = NDArray[np.bool_]

PEAK_GRID: Final = np.concatenate([[0.0], np.geomspace(300.0, 39_000.0, 15)])
"""Iterations from now at which the KV held is looked at."""
HELD, RUNNING, TOOL = 0.0, 1.0, 2.0
_STATES: Final = {"held": HELD, "running": RUNNING, "tool": TOOL}
_FACTS: Final = 10
"""State, tool_since_s, context, steps, output tokens, arrival, expected, fresh, parked, level of
the draws."""
NOWHERE: Final = -1
_NOBODY: Final = (None, NOWHERE)


@dataclass(frozen=True, slots=True)
class Facts:
    """Every trajectory of a snapshot, in its order."""

    rows: Ints
    home: Ints
    """Index of its worker in the snapshot; NOWHERE without one or parked."""
    state: Floats
    tool_since_s: Floats
    context: Floats
    steps: Floats
    output: Floats
    arrival: Floats
    expected: Floats
    """Mean of the remaining tokens, the rates' where nothing was predicted."""
    fresh: Floats
    """1 before its first step, else 0."""
    parked: Floats
    """1 where the next step waits for a place anywhere."""

    def standing(self, places: Ints) -> Standing:
        """What the orders look at, of some of them."""
        columns = (self.arrival, self.steps, self.output, self.expected, self.fresh)
        return Standing(*(column[places] for column in columns))


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is still to come of every trajectory of a snapshot, in its order."""

    draws: Floats
    alive: Floats
    """Share of the draws that go on after each of PEAK_GRID's iterations."""
    context: Floats
    tokens: Floats
    squares: Floats
    """Mean squares of the draws."""
    area: Floats
    growth: float
    """Observation tokens for each output token."""
    steps_a_token: float
    tool_s_a_token: float

    @property
    def kv(self) -> Floats:
        """Expected KV tokens of each, at each of PEAK_GRID's iterations from now."""
        return self.alive * (self.context[:, None] + PEAK_GRID * (1.0 + self.growth))


class Memory:
    """Rows by trajectory id. Hand the same one to the next decision of the same run."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Trajectory, int]] = {}
        self._free: list[int] = []
        self._workers: tuple[str, ...] = ()
        self._at: dict[str | None, int] = {}
        self._facts = np.zeros((_FACTS, 0))
        self._home: Ints = np.zeros(0, dtype=np.intp)
        self._draws, self._alive = np.zeros((0, DRAWS)), np.zeros((0, len(PEAK_GRID)))
        self._moments = np.zeros((2, 0))
        self._stale: dict[int, str] = {}
        """Rows whose draws are not those of the present prediction."""
        self._guessed: dict[int, str] = {}
        """Rows without a prediction: their draws follow the rates."""
        self._guess_tokens = math.nan
        self._last: Sequence[Trajectory] = ()
        self._last_rows: Ints | None = None

    def facts(self, snapshot: Snapshot) -> Facts:
        """Read what changed, forget who left."""
        workers = tuple(w.id for w in snapshot.workers)
        if workers != self._workers:
            self._workers, self._at = workers, {w: i for i, w in enumerate(workers)}
            for trajectory, row in self._known.values():
                self._home[row] = self._home_of(trajectory)
        known, live = self._known, snapshot.trajectories
        changed = self._changed(live)
        if changed:
            self._read(changed)
        if len(known) > len(live):
            self._forget({t.id for t in live})
            self._last_rows = None
        if self._last_rows is None:
            self._last_rows = np.array([known[t.id][1] for t in live], dtype=np.intp)
        self._last, rows = live, self._last_rows
        columns = self._facts[:-1, rows]
        expected = columns[6]
        expected[np.isnan(expected)] = snapshot.rates.remaining_tokens
        return Facts(rows, self._home[rows], *columns)

    def _changed(self, live: Sequence[Trajectory]) -> list[Trajectory]:
        """Whose fact is another object; all in one sweep where the same live in the same order."""
        last = self._last
        if len(last) == len(live):
            other = [*compress(range(len(live)), map(is_not, live, last))]
            if all(live[i].id == last[i].id for i in other):
                return [live[i] for i in other]
        self._last_rows = None
        known = self._known
        return [t for t in live if known.get(t.id, _NOBODY)[0] is not t]

    def outlook(self, snapshot: Snapshot, facts: Facts) -> Outlook:
        """Draws of everybody, and what this rollout's steps have looked like so far."""
        rates, rows = snapshot.rates, facts.rows
        self._draw(rates.remaining_tokens)
        tokens, squares = self._moments[:, rows]
        growth = max(rates.context_per_output - 1.0, 0.0)
        made = float(facts.output.sum())
        steps = float(facts.steps.sum()) / made if made else 0.0
        return Outlook(
            draws=self._draws[rows],
            alive=self._alive[rows],
            context=facts.context,
            tokens=tokens,
            squares=squares,
            area=tokens * facts.context + (1.0 + growth) / 2 * squares,
            growth=growth,
            steps_a_token=steps,
            tool_s_a_token=steps * rates.tool_s,
        )

    def _read(self, changed: Sequence[Trajectory]) -> None:
        known = self._known
        rows = [known[t.id][1] if t.id in known else self._row() for t in changed]
        for t, row in zip(changed, rows, strict=True):
            before = known.get(t.id, _NOBODY)[0]
            if before is None or before.remaining != t.remaining:
                self._stale[row] = t.id
            known[t.id] = (t, row)
        self._home[rows] = [self._home_of(t) for t in changed]
        self._facts[:, rows] = np.array(
            [
                (_STATES[t.state], t.tool_since_s, t.context_tokens, t.steps, t.output_tokens,
                 t.arrival, t.remaining.mean if t.remaining else math.nan, t.is_fresh, t.parked,
                 level_of(t.id))
                for t in changed
            ]
        ).T  # fmt: skip

    def _home_of(self, trajectory: Trajectory) -> int:
        return NOWHERE if trajectory.parked else self._at.get(trajectory.worker, NOWHERE)

    def _row(self) -> int:
        if not self._free:
            self._grow()
        return self._free.pop()

    def _grow(self) -> None:
        """Twice the rows, the new ones free, lowest first."""
        n, more = len(self._home), max(len(self._home), 256)
        self._facts = np.concatenate([self._facts, np.zeros((_FACTS, more))], axis=1)
        self._home = np.concatenate([self._home, np.full(more, NOWHERE, dtype=np.intp)])
        self._draws = np.concatenate([self._draws, np.zeros((more, DRAWS))])
        self._alive = np.concatenate([self._alive, np.zeros((more, len(PEAK_GRID)))])
        self._moments = np.concatenate([self._moments, np.zeros((2, more))], axis=1)
        self._free = list(range(n + more - 1, n - 1, -1))

    def _forget(self, live: set[str]) -> None:
        for name in [name for name in self._known if name not in live]:
            _, row = self._known.pop(name)
            self._free.append(row)
            self._stale.pop(row, None)
            self._guessed.pop(row, None)

    def _draw(self, guess_tokens: float) -> None:
        if guess_tokens != self._guess_tokens:
            self._guess_tokens = guess_tokens
            self._stale.update(self._guessed)
        if not self._stale:
            return
        rows, told = list(self._stale), list[tuple[float, float, float, float]]()
        for row, name in self._stale.items():
            trajectory = self._known[name][0]
            told.append(quantiles_of(trajectory, guess_tokens))
            if trajectory.remaining is None:
                self._guessed[row] = name
            else:
                self._guessed.pop(row, None)
        draws = draws_of(np.array(told), self._facts[-1, rows].astype(np.intp))
        self._draws[rows] = draws
        self._moments[:, rows] = draws.mean(axis=1), (draws * draws).mean(axis=1)
        self._alive[rows] = _alive(draws)
        self._stale.clear()


def _alive(draws: Floats) -> Floats:
    """Draw by draw: all at once would build an array sixteen times as large."""
    longer = np.zeros((len(draws), len(PEAK_GRID)))
    for one in draws.T:
        longer += one[:, None] > PEAK_GRID
    return longer / DRAWS
