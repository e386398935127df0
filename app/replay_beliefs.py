"""What may the controller believe in a paired replay: history alone, or lengths foreseen?

History is another epoch of the same groups: what an earlier rollout of the run left behind, with
the tool seconds and context growth its controller saw. `--error SIGMA` gives each trajectory a
calibrated prediction of that log-error instead; 0 is the oracle.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import polars as pl

from heddle.controller.beliefs import Beliefs, Expected, Seen
from heddle.controller.core.types import Latency, Length, Work
from heddle.controller.emulator.rollout import RUN
from heddle.controller.emulator.workload import TrajectorySpec
from heddle.controller.live import LiveTrajectory
from heddle.models.history import GroupHistory
from heddle.models.lognormal import Lognormal

SURE: Final = 1e-3
"""Log-error of an oracle: a law needs some width."""


def history_of(past: Sequence[TrajectorySpec]) -> GroupHistory:
    """As the collector's `history` query would tell it."""
    groups: dict[tuple[str, str], list[TrajectorySpec]] = defaultdict(list)
    for one in past:
        groups[one.task, one.group_id].append(one)
    rows = [_row(task, group, of) for (task, group), of in groups.items()]
    return GroupHistory.from_frame(pl.DataFrame(rows)) if rows else GroupHistory()


def beliefs_of(past: Sequence[TrajectorySpec]) -> Beliefs:
    """Of a controller that ran those trajectories before."""
    return Beliefs(histories={RUN: history_of(past)}, seen={RUN: seen_of(past)})


def seen_of(past: Sequence[TrajectorySpec]) -> Seen:
    """Sums over their steps, as the controller keeps them."""
    seen = Seen()
    for one in past:
        seen.ended(one.output_tokens, truncated=one.truncated)
        for index, step in enumerate(one.steps):
            seen.resets += step.reset
            if index and not step.reset:
                seen.continued += 1
                seen.output_tokens += step.output_tokens
                seen.gained_tokens += step.output_tokens + step.observation_tokens
        seen.tools += len(one.steps) - 1
        seen.tool_s += one.tool_s
    return seen


@dataclass(slots=True)
class Foreseen(Beliefs):
    """Every length known up to a calibrated log-error."""

    laws: dict[str, Lognormal] = field(default_factory=dict[str, Lognormal])
    groups: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def told(self, policy: str, trajectory: LiveTrajectory) -> tuple[Length, str]:
        """Remaining tokens, given that it got this far."""
        _ = policy
        found = self.laws[trajectory.id].remaining(trajectory.output_tokens)
        return Length(p10=found.p10, p50=found.p50, p90=found.p90, mean=found.mean), "foreseen"

    def works(self, run: str, groups: Sequence[Expected], rng: np.random.Generator) -> list[Work]:
        """One draw of each trajectory's length."""
        works: list[Work] = []
        for group in groups:
            names = self.groups[group.group]
            lengths = [float(self.laws[name].draws(1, rng)[0]) for name in names]
            works += self.works_of(run, group, lengths)
        return works


def foreseen(
    past: Sequence[TrajectorySpec],
    now: Sequence[TrajectorySpec],
    sigma: float,
    seed: int,
    *,
    claimed: float | None = None,
) -> Foreseen:
    """log L + N(0, sigma^2) is told; the posterior weighs it against what lengths usually are.

    `claimed` is the error that the posterior is told to reckon with, where it is not the true one.
    """
    rng = np.random.default_rng([seed, 0x5EE])
    logs = np.log([max(t.output_tokens, 1) for t in past])
    usual, spread = float(logs.mean()), max(float(logs.var()), 1e-6)
    error = max(sigma if claimed is None else claimed, SURE) ** 2
    trust = spread / (spread + error)
    width = math.sqrt(trust * error)
    self = Foreseen(histories={RUN: history_of(past)}, seen={RUN: seen_of(past)})
    for one in now:
        told = math.log(max(one.output_tokens, 1)) + sigma * float(rng.standard_normal())
        self.laws[one.trajectory_id] = Lognormal(usual + trust * (told - usual), width)
        self.groups.setdefault(one.group_id, []).append(one.trajectory_id)
    return self


def perturbed(known: Mapping[int, Latency]) -> dict[int, Latency]:
    """Laws that are wrong in every term: iterations off by 15 %, up for one degree and down for
    the next, 20 % more KV than there is, prefill a quarter too cheap."""
    told: dict[int, Latency] = {}
    for index, (degree, law) in enumerate(sorted(known.items())):
        off = 1.15 if index % 2 else 0.85
        told[degree] = replace(
            law,
            a_s=law.a_s * off,
            b_s=law.b_s * off,
            c_s=law.c_s * off,
            p1_s=law.p1_s * 0.75,
            kv_tokens=round(law.kv_tokens * 1.2),
        )
    return told


def biased(seen: Seen) -> Seen:
    """Task rates that are wrong: tools twice as long, a fifth less context gained."""
    return replace(seen, tool_s=seen.tool_s * 2, gained_tokens=seen.gained_tokens * 0.8)


def _row(task: str, group: str, of: Sequence[TrajectorySpec]) -> dict[str, Any]:
    whole, cut = (
        np.log([max(t.output_tokens, 1) for t in of if t.truncated == ended]) for ended in (0, 1)
    )
    return {
        "run_id": RUN,
        "task": task,
        "group_id": group,
        "trajectories": len(whole),
        "mean_log_tokens": float(whole.mean()) if len(whole) else None,
        "var_log_tokens": float(whole.var(ddof=1)) if len(whole) > 1 else None,
        "mean_tokens": float(np.mean([t.output_tokens for t in of])),
        "truncated": len(cut),
        "mean_log_truncated": float(cut.mean()) if len(cut) else None,
        "mean_steps": float(np.mean([len(t.steps) for t in of])),
        "mean_tool_s": float(np.mean([t.tool_s for t in of])),
    }
