"""What does a rule look at, and what does it hand back?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias
from urllib.parse import urlencode

import numpy as np
import polars as pl

from heddle.collector.accounting import Accounts
from heddle.collector.blame import Blame
from heddle.collector.decompose import PARTS
from heddle.collector.findings import thresholds as t
from heddle.collector.findings.signals import Signals
from heddle.collector.spare import Spare
from heddle.collector.states import BUSY, FLEET_STATES, State

Severity: TypeAlias = Literal["high", "medium"]


@dataclass(frozen=True)
class Case:
    """One rollout, accounted for."""

    accounts: Accounts
    blame: Blame
    parts: pl.DataFrame
    """Of decompose(): one row per trajectory."""
    provisional: bool = False
    signals: Signals = field(default_factory=Signals)
    spare: Spare | None = None

    def share(self, states: Sequence[State]) -> float:
        """Of all GPU time, the share in *states*."""
        return _ratio(sum(self.accounts.gpu_ns[s] for s in states), self.accounts.total_gpu_ns)

    @cached_property
    def busy_shares(self) -> dict[str, float]:
        """Busy share of each worker's leased time, busiest first, ties by id."""
        busy: dict[str, int] = {}
        leased: dict[str, int] = {}
        for (worker_id, _, state), amount in self.accounts.by_worker.items():
            if worker_id is not None:
                leased[worker_id] = leased.get(worker_id, 0) + amount
                busy[worker_id] = busy.get(worker_id, 0) + amount * (state in BUSY)
        shares = {worker_id: _ratio(busy[worker_id], leased[worker_id]) for worker_id in leased}
        return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))

    @cached_property
    def alone_share(self) -> float:
        """Of the time in which anybody was busy, the share in which only one worker was."""
        strips = self.accounts.of(BUSY)
        base = self.accounts.window.start_ns
        # Time and what changes there share a number: it sorts faster than an order is found.
        edges = np.concatenate([(strips.start - base) * 2 + 1, (strips.end - base) * 2])
        edges.sort()
        busy, length = np.cumsum((edges & 1) * 2 - 1)[:-1], np.diff(edges >> 1)
        return _ratio(int(length[busy == 1].sum()), int(length[busy > 0].sum()))

    @cached_property
    def starver(self) -> tuple[str, float]:
        """The trajectory most starving is blamed on, and its share of that blame; "" for none."""
        by_trajectory = self.blame.of(FLEET_STATES)
        if not by_trajectory:
            return "", 0.0
        worst = next(iter(by_trajectory))
        return worst, _ratio(by_trajectory[worst], sum(by_trajectory.values()))

    def part_shares(self, trajectory_id: str | None = None) -> dict[str, float]:
        """Share of each part in the time of one trajectory, or of all of them together."""
        rows = self.parts
        if trajectory_id is not None:
            rows = rows.filter(pl.col("trajectory_id") == trajectory_id)
        total = int(rows["duration_ns"].sum())
        names = [name for name in rows.columns if name in PARTS]
        return {name.removesuffix("_ns"): _ratio(int(rows[name].sum()), total) for name in names}


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A diagnosis a person can act on."""

    rule: str
    severity: Severity
    title: str
    """One sentence with its numbers."""
    evidence: str
    """The named query, with filters, that shows it."""
    knob: str
    """What to change."""
    lost_share: float
    """Of all GPU time (of trajectories' time for waiting-for-service), what it cost at most."""


def finding(rule: str, lost: float, title: str, evidence: str, knob: str) -> Finding:
    """A finding whose severity follows from what it cost."""
    severity: Severity = "high" if lost >= t.SEVERE else "medium"
    return Finding(rule, severity, title, evidence, knob, lost)


def asking(query: str, **filters: str) -> str:
    """The address of a named query's answer; a name of a span stays one value of it."""
    return f"{query}?{urlencode(filters)}"
