"""What would other policies have made of the same rollout?

Paired replay in virtual time: the same trajectories, tools, seed and engines for every policy, the
controller's real loop deciding. A policy is a preset, optionally with changed choices:
`verl`, `heddle`, `heddle/migration=off`, `verl/allocation=fixed-4`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

import polars as pl

from heddle.app.errors import fail
from heddle.app.replay_beliefs import beliefs_of, biased, foreseen, perturbed
from heddle.app.rollouts import bounds_s
from heddle.controller.core.policies import changed, preset_switches
from heddle.controller.core.types import CoreError, Latency, Switches
from heddle.controller.emulator.records import RolloutResult
from heddle.controller.emulator.rollout import RUN, Setup, run_rollout
from heddle.controller.emulator.workload import StepSpec, TrajectorySpec, generate
from heddle.controller.laws import laws

CUT_NAMED: Final = 20
"""Trajectories named of those that a barrier cuts, the longest first."""
GROUPS_NAMED: Final = 2_000
TAIL: Final = 0.9
"""The tail begins when this share of the trajectories has finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One rollout to replay: what happens, what an earlier one taught, on which fleet."""

    name: str
    now: Sequence[TrajectorySpec]
    past: Sequence[TrajectorySpec]
    gpus: int = 8
    model: str = "Qwen3-14B"
    system: str = "h100_sxm"
    seed: int = 0
    error: float | None = None
    """Log-error of foreseen lengths; None: history alone predicts."""
    claimed: float | None = None
    """The log-error that predictions are told to have; None: the true one."""
    wrong: bool = False
    """Whether every other belief is off too: latency law, KV room, task rates (see `perturbed`)."""
    slow_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds by which each iteration of a worker is longer, unknown to the planner."""
    first: int | None = None
    """The rollout ends when so many have finished; the rest is carried over."""
    cutoff_s: float | None = None
    """The rollout ends then, whoever still runs."""
    arrivals_s: float = 0.0
    """Trajectories arrive evenly over so many seconds; 0: all at once."""


def generated(workload: str, *, seed: int, groups: int, samples: int = 16, **fleet: Any) -> Cell:
    """Epoch 1 of a generated workload, with epoch 0 as history."""
    now, past = (
        generate(workload, groups=groups, samples=samples, seed=seed, epoch=e) for e in (1, 0)
    )
    return Cell(name=f"{workload}/{seed}", now=now, past=past, seed=seed, **fleet)


def switches_of(spelled: str) -> Switches:
    """A preset with changed choices, or a sentence that names what is known."""
    preset, *changes = spelled.split("/")
    if bad := [change for change in changes if "=" not in change]:
        fail(f"policy {spelled!r}: expected choice=policy, got {bad[0]!r}")
    try:
        pairs = dict(change.split("=", 1) for change in changes)
        if len(pairs) < len(changes):
            fail(f"policy {spelled!r} names a choice twice; each has one policy")
        return changed(preset_switches(preset), pairs)
    except CoreError as error:
        fail(str(error))


def play(cell: Cell, policy: str, *, detail: bool = False) -> dict[str, Any]:
    """One cell under one policy, as a row; *detail*: with its groups and trajectories."""
    if cell.error is None:
        beliefs = beliefs_of(cell.past)
    else:
        beliefs = foreseen(cell.past, cell.now, cell.error, cell.seed, claimed=cell.claimed)
    known = laws(cell.system, cell.model)
    if cell.wrong:
        known = perturbed(known)
        beliefs.seen[RUN] = biased(beliefs.seen[RUN])
    setup = Setup(
        gpus=cell.gpus,
        model=cell.model,
        system=cell.system,
        seed=cell.seed,
        beliefs=beliefs,
        laws=known,
        slow_s=cell.slow_s,
        first=cell.first,
        cutoff_s=cell.cutoff_s,
        arrivals_s=_arrivals_s(len(cell.now), cell.arrivals_s),
    )
    result = run_rollout(cell.now, switches=switches_of(policy), setup=setup)
    bounds = bounds_s(cell.now, cell.system, cell.model, cell.gpus)
    named = {"cell": cell.name, "seed": cell.seed, "policy": policy, "gpus": cell.gpus}
    new_tokens = sum(step.observation_tokens for one in cell.now for step in one.steps)
    told = {**named, **_row(result, cell.gpus, bounds, new_tokens), **_barrier(result)}
    told["what_if"] = _what_if(cell)
    if detail:
        told |= {"group_s": _groups(result), "lengths_s": _lengths(result)}
    return told


def _what_if(cell: Cell) -> str:
    """Everything but the workload, the fleet and the seed that makes this another replay."""
    said = {
        "error": cell.error,
        "claimed": cell.claimed,
        "wrong": cell.wrong or None,
        "slow": dict(sorted(cell.slow_s.items())) or None,
        "first": cell.first,
        "cutoff": cell.cutoff_s,
        "arrivals": cell.arrivals_s or None,
    }
    return ", ".join(f"{name} {value}" for name, value in said.items() if value is not None)


def _arrivals_s(trajectories: int, over_s: float) -> list[float] | None:
    if over_s <= 0:
        return None
    return [over_s * i / trajectories for i in range(trajectories)]


def _barrier(result: RolloutResult) -> dict[str, Any]:
    """Who had not finished when the rollout ended, and the tokens that they carry over.

    Carried tokens are those of finished steps: what the next weights did not write.
    """
    cut = [t for t in result.trajectories if t.end_s is None]
    made = sum(t.output_tokens for t in result.trajectories)
    carried = sum(t.output_tokens for t in cut)
    longest = sorted(cut, key=lambda t: -t.output_tokens)
    return {
        "cut": len(cut),
        "carried_tokens": carried,
        "stale_share": carried / made if made else 0.0,
        "cut_longest": [t.trajectory_id for t in longest[:CUT_NAMED]],
    }


def _groups(result: RolloutResult) -> dict[str, float]:
    """Group to when its last trajectory ended: GROUPS_NAMED of them, the last to end."""
    ends: dict[str, float] = {}
    for one in result.trajectories:
        ends[one.group_id] = max(ends.get(one.group_id, 0.0), one.end_s or result.makespan_s)
    return dict(sorted(ends.items(), key=lambda kept: (-kept[1], kept[0]))[:GROUPS_NAMED])


def _lengths(result: RolloutResult) -> list[float]:
    """Seconds of every trajectory, longest first."""
    took = [(t.end_s or result.makespan_s) - t.start_s for t in result.trajectories]
    return sorted((round(one, 3) for one in took), reverse=True)


def _row(
    result: RolloutResult, gpus: int, bounds: dict[str, float], new_tokens: int
) -> dict[str, Any]:
    known = laws(result.system, result.model)
    degrees = {w.worker_id: w.degree for w in result.workers}
    spent = {"prefill": 0.0, "decode": 0.0}
    for one in result.passes:
        if one.state in spent:
            spent[one.state] += degrees[one.worker_id] * (one.end_s - one.start_s)
    ends = sorted(t.end_s for t in result.trajectories if t.end_s is not None)
    computed = sum(s.input_tokens - s.cached_tokens for s in result.steps)
    return {
        "makespan_s": result.makespan_s,
        "predicted_s": result.predicted_makespan_s,
        "bound_s": max(bounds.values()),
        "bounds_s": bounds,
        "tail_s": result.makespan_s - ends[int(TAIL * (len(ends) - 1))] if ends else None,
        "tail_start_s": ends[int(TAIL * (len(ends) - 1))] if ends else None,
        "decode_slow_down": _slow_down(result, degrees, known),
        "layout": "+".join(map(str, result.layout)),
        **{f"{state}_gpu_s": seconds for state, seconds in spent.items()},
        # GPUs that the layout left over are idle too: the causes add up to gpus x makespan.
        "idle_gpu_s": gpus * result.makespan_s - sum(spent.values()),
        "moves": len(result.moves),
        "exposed_s": sum(m.exposed_s for m in result.moves),
        "held_s": sum(t.held_s for t in result.trajectories),
        "prefilled_tokens": computed,
        "reprefilled_tokens": max(computed - new_tokens, 0),
        "retractions": sum(t.retractions for t in result.trajectories),
        "failures": result.failures,
        "errors": dict(Counter(t.error for t in result.trajectories if t.error is not None)),
        "cpu_s": result.cpu_s,
        "workload_hash": result.workload_hash,
        "truth_hash": result.truth_hash,
    }


def _slow_down(
    result: RolloutResult, degrees: Mapping[str, int], known: Mapping[int, Latency]
) -> float | None:
    """Decode time over what the same tokens would have taken alone on their engines."""
    alone_s = taken_s = 0.0
    for step in result.steps:
        law = known.get(degrees.get(step.worker_id, 0))
        if law is not None:
            context = step.input_tokens + step.output_tokens / 2
            alone_s += step.output_tokens * (law.a_s + law.b_s + law.c_s * context)
            taken_s += step.decode_s
    return taken_s / alone_s if alone_s else None


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Policy by policy against the first: medians over cells, the range of the paired ratio."""
    base = {row["cell"]: row["makespan_s"] for row in rows if row["policy"] == rows[0]["policy"]}
    told: list[dict[str, Any]] = []
    for policy in dict.fromkeys(row["policy"] for row in rows):
        mine = [row for row in rows if row["policy"] == policy]
        ratios = sorted(base[row["cell"]] / row["makespan_s"] for row in mine)
        told.append(
            {
                "policy": policy,
                "cells": len(mine),
                "makespan_s": median(row["makespan_s"] for row in mine),
                "tail_s": _median(mine, "tail_s"),
                "speed_up": median(ratios),
                "least": ratios[0],
                "most": ratios[-1],
                "of_bound": _of_bound(mine),
                "off_plan": _off_plan(mine),
                "moves": median(row["moves"] for row in mine),
                "held_s": median(row["held_s"] for row in mine),
                "reprefilled_tokens": _median(mine, "reprefilled_tokens"),
                "decode_slow_down": _median(mine, "decode_slow_down"),
                "idle_gpu_s": median(row["idle_gpu_s"] for row in mine),
                "failed": sum(sum(row.get("errors", {}).values()) for row in mine),
                "cut": _median(mine, "cut"),
                "carried_tokens": _median(mine, "carried_tokens"),
                "stale_share": _median(mine, "stale_share"),
            }
        )
    return told


def _median(rows: Sequence[dict[str, Any]], key: str) -> float | None:
    known = [row[key] for row in rows if row.get(key) is not None]
    return median(known) if known else None


def is_whole(row: Mapping[str, Any]) -> bool:
    """Whether everything was played: bound and forecast are of the whole rollout."""
    return not row.get("cut") and not row.get("errors")


def _of_bound(rows: Sequence[dict[str, Any]]) -> float | None:
    """Median share of the lower bound."""
    known = [row["bound_s"] / row["makespan_s"] for row in rows if is_whole(row)]
    return median(known) if known else None


def _off_plan(rows: Sequence[dict[str, Any]]) -> float | None:
    """Median distance of the predicted from the replayed makespan."""
    known = [r for r in rows if r["predicted_s"] and is_whole(r)]
    if not known:
        return None
    return median(abs(r["predicted_s"] / r["makespan_s"] - 1.0) for r in known)


def from_store(steps: pl.DataFrame, tools: pl.DataFrame) -> list[TrajectorySpec]:
    """The trajectories of a recorded rollout, from the `steps` and `tool_calls` queries.

    Steps without output are left out. A context shorter than the last step's end lost its end; one
    shorter than what the last step began with was compacted, down to the prompt.
    """
    waits = {
        (row["trajectory_id"], row["step_index"]): (row["tool_name"], row["duration_s"] or 0.0)
        for row in tools.iter_rows(named=True)
    }
    specs: list[TrajectorySpec] = []
    ordered = steps.filter(pl.col("output_tokens") > 0).sort("trajectory_id", "step_index")
    for (name,), rows in ordered.group_by("trajectory_id", maintain_order=True):
        made, began, context = list[StepSpec](), 0, 0
        for row in rows.iter_rows(named=True):
            length = row["input_tokens"] or max(context, 1)
            reset = length < began
            prefix = made[0].observation_tokens if reset else context
            tool, tool_s = waits.get((name, row["step_index"]), (None, 0.0))
            made.append(StepSpec(length - prefix, row["output_tokens"], tool, tool_s, reset=reset))
            began, context = length, length + row["output_tokens"]
        group = rows["group_id"][0] or str(name)
        specs.append(TrajectorySpec(str(name), group, len(specs), "", tuple(made)))
    return specs
