"""What does it cost to change an engine: to stop, sleep, wake, launch it, load its weights?

The median of what was measured here, per (model, degree, method), kept in the journal; until
something was, what the latency profile says. Fleet seconds.
"""

from __future__ import annotations

import json
import math
from statistics import median
from typing import Final

from heddle.controller.core.regroup import Group, Place, Regroup
from heddle.controller.journal import Journal
from heddle.models.latency import load_profile

KEPT: Final = 16
METHODS: Final = ("drain", "stop", "sleep", "launch", "wake", "weights", "flush")
_QUICK_S: Final = {"drain": 0.0, "stop": 1.0, "flush": 0.1}
"""What no profile says: at a rollout's boundary nothing is left to drain."""


class Costs:
    """Measured seconds of every method and degree, for one model on one system."""

    def __init__(self, journal: Journal, system: str, model: str) -> None:
        self._journal = journal
        self._model = model
        self._laws = load_profile(system, model).degrees
        self._known: dict[tuple[int, str], list[float]] = {}

    def learn(self, degree: int, method: str, seconds: float) -> None:
        """One more measurement; the oldest are forgotten."""
        if not math.isfinite(seconds) or seconds < 0:
            return
        samples = [*self._samples(degree, method), seconds][-KEPT:]
        self._known[degree, method] = samples
        self._journal.set_fact(self._name(degree, method), json.dumps(samples))

    def expected_s(self, degree: int, method: str) -> float:
        """What it is believed to take."""
        samples = self._samples(degree, method)
        return median(samples) if samples else self._prior_s(degree, method)

    def measured(self) -> dict[tuple[int, str], tuple[float, int]]:
        """(degree, method) -> (expected seconds, how many measurements), where there are any."""
        found: dict[tuple[int, str], tuple[float, int]] = {}
        for degree in self._laws:
            for method in METHODS:
                if samples := self._samples(degree, method):
                    found[degree, method] = (median(samples), len(samples))
        return found

    def change_s(
        self, plan: Regroup, degree_of: dict[str, int], asleep: set[Place], *, sleeps: bool,
        weights: bool, live: bool,
    ) -> float:  # fmt: skip
        """A whole change: its waves one after the other, in each the slowest group.

        Only while trajectories are `live` is there anything to drain.
        """
        ends = "sleep" if sleeps else "stop"

        def group_s(group: Group) -> float:
            ended = max((self.expected_s(degree_of[w], ends) for w in group.drains), default=0.0)
            begun = [
                self.expected_s(p.degree, "wake" if p in asleep else "launch")
                + (self.expected_s(p.degree, "weights") if weights else 0.0)
                + self.expected_s(p.degree, "flush")
                for p in group.starts
            ]
            empty = (self.expected_s(degree_of[w], "drain") * live for w in group.drains)
            return max(empty, default=0.0) + ended + max(begun, default=0.0)

        return sum(max(map(group_s, wave)) for wave in plan.waves)

    def _prior_s(self, degree: int, method: str) -> float:
        if method in _QUICK_S:
            return _QUICK_S[method]
        nearest = min(self._laws, key=lambda d: (abs(d - degree), d))
        law = self._laws[nearest]
        return {
            "sleep": law.sleep_s, "wake": law.wake_s, "launch": law.launch_s, "weights": law.load_s,
        }[method]  # fmt: skip

    def _samples(self, degree: int, method: str) -> list[float]:
        key = (degree, method)
        if key not in self._known:
            said = self._journal.fact(self._name(degree, method))
            self._known[key] = json.loads(said) if said else []
        return self._known[key]

    def _name(self, degree: int, method: str) -> str:
        return f"cost/{self._model}/{degree}/{method}"
