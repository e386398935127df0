"""What do the pages read out of the collector's frames? Pure: frames in, numbers and words out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import polars as pl

from heddle.collector.states import is_told
from heddle.dashboards import theme

PARTS: Final = {
    "held_s": "held in the controller",
    "queue_s": "queued in engines",
    "prefill_s": "prefill",
    "decode_s": "decode",
    "tool_s": "tools",
    "unknown_s": "unknown",
}
"""What a trajectory's time is told to have gone into; the rest lies between steps and tools."""
REST: Final = "rest_s"


NOTICED: Final = 0.005
"""The share of GPU time from which on it is said that it is unknown."""


def at_least(states: Mapping[str, int], said: str) -> str:
    """A share of GPU time as it is said: a least of it where much is unknown."""
    return f"≥ {said}" if (share(states, "unknown") or 0) >= NOTICED else said


def busy_share(states: Mapping[str, int]) -> float | None:
    """Share of GPU time with a forward in flight; None where nobody told what any GPU did."""
    if not is_told(states):
        return None
    return sum(states.get(state, 0) for state in theme.BUSY) / sum(states.values())


def share(states: Mapping[str, int], state: str) -> float | None:
    """Share of GPU time in one state; None where nobody told what any GPU did."""
    return states.get(state, 0) / sum(states.values()) if is_told(states) else None


def untold(states: Mapping[str, int], *, has_begun: bool) -> str | None:
    """Why there is nothing to show of GPU time: nothing came, or nothing of it is accounted."""
    if is_told(states):
        return None
    if not has_begun:
        return "Nothing of this rollout has been seen yet."
    if not states:
        return (
            "Nothing of this rollout's GPU time is accounted: no span says of how many GPUs its "
            "workers are made (heddle.degree)."
        )
    return (
        "What the GPUs of this rollout did is unknown: no step of it says how long its prefill and "
        "decode took (heddle.prefill_s, heddle.decode_s)."
    )


def largest_loss(states: Mapping[str, int]) -> str | None:
    """The idle state that cost most; `unknown` is no loss, it is ignorance."""
    idle = {s: ns for s, ns in states.items() if s not in theme.BUSY and s != "unknown" and ns > 0}
    return max(idle, key=lambda state: idle[state]) if idle else None


def label(rollout: Mapping[str, Any]) -> str:
    """`r3 · heddle`: a rollout with the preset that ran it, where known."""
    preset = rollout.get("preset")
    return f"{rollout['rollout_id']} · {preset}" if preset else str(rollout["rollout_id"])


def makespans(rollouts: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> list[str]:
    """Each makespan in words, and how many times as fast as the chosen rollout it was."""
    return [_makespan(row, chosen) for row in rollouts]


def _makespan(row: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    said, base_s = theme.seconds(row["makespan_s"]), chosen["makespan_s"]
    if row["state"] == "running":
        return f"{said} so far"
    is_itself = chosen["rollout_id"] == row["rollout_id"]
    if is_itself or chosen["state"] == "running" or not base_s or not row["makespan_s"]:
        return said
    return f"{said}  {base_s / row['makespan_s']:.2f}x"


def fleet_time(speeds: Iterable[float | None]) -> str | None:
    """What must stand where times of an emulated fleet are shown; None where time is real."""
    fast = sorted({speed for speed in speeds if speed and speed != 1.0})
    if not fast:
        return None
    said = ", ".join(f"x{speed:g}" for speed in fast)
    return f"emulated fleet, {said}: times are fleet time"


def recorded_runs(runs: pl.DataFrame) -> list[str]:
    """Runs to choose from, the latest first; one without rollouts only where no other is."""
    newest = runs.sort("last_ns", descending=True, nulls_last=True)
    trained = newest.filter(pl.col("rollouts").fill_null(0) > 0)
    return (newest if trained.is_empty() else trained)["run_id"].to_list()


def layout(degrees: str | None) -> str:
    """`1,1,4` as `2 x TP1, 1 x TP4`; as it came where it is no list of numbers."""
    parts = [part.strip() for part in (degrees or "").replace("+", ",").split(",")]
    if not all(part.isdigit() for part in parts):
        return degrees or "–"
    counted = Counter(int(part) for part in parts)
    return ", ".join(f"{counted[degree]} x TP{degree}" for degree in sorted(counted))


def lanes(parts: pl.DataFrame, by: str) -> dict[str, dict[str, int]]:
    """Worker (with its degree) or degree to state to GPU-ns; GPUs in no worker last."""
    found: dict[str, dict[str, int]] = {}
    order = parts.sort(pl.col("worker_id").str.len_chars(), "worker_id", "degree", nulls_last=True)
    if by == "degree":
        order = order.sort("worker_id", "degree", nulls_last=True).sort(
            pl.col("worker_id").is_null(), "degree", maintain_order=True, nulls_last=True
        )
    for row in order.iter_rows(named=True):
        states = found.setdefault(_lane(row, by), {})
        states[row["state"]] = states.get(row["state"], 0) + row["gpu_ns"]
    return found


def _lane(row: Mapping[str, Any], by: str) -> str:
    if row["worker_id"] is None:
        return "no worker"
    degree = f"TP{row['degree']}" if row["degree"] else "unknown degree"
    return degree if by == "degree" else f"{row['worker_id']} · {degree}"


def longest_by_group(trajectories: pl.DataFrame, measure: str) -> dict[str, float]:
    """Group to the largest *measure* of its samples; who names no group is one of its own."""
    named = trajectories.filter(pl.col(measure).is_not_null()).with_columns(
        pl.coalesce("group_id", "trajectory_id").alias("group")
    )
    rows = named.group_by("group").agg(pl.col(measure).max()).sort("group")
    return {str(group): float(value) for group, value in rows.iter_rows()}


def changed(policies: str | None, base: str | None) -> str:
    """Choices of *policies* that differ from *base*, both as `order=fcfs,...`; `the same`."""
    theirs = set((base or "").split(","))
    found = [choice for choice in (policies or "").split(",") if choice and choice not in theirs]
    return ", ".join(found) or "the same"


def stragglers(trajectories: pl.DataFrame, now_ns: int, *, top: int = 12) -> pl.DataFrame:
    """The last to finish, running ones first, each with what it spent its time on.

    Adds so_far_s, times_median, last_by_s (after the 90th percentile of ends) and cause.
    """
    if trajectories.is_empty():
        return trajectories.with_columns(
            so_far_s=pl.lit(0.0), times_median=pl.lit(0.0), last_by_s=pl.lit(0.0), cause=pl.lit("")
        )
    end = pl.col("end_ns").fill_null(now_ns)
    timed = trajectories.with_columns(
        _end=end, so_far_s=pl.col("duration_s").fill_null((end - pl.col("start_ns")) / 1e9)
    )
    median = pl.col("so_far_s").median()
    said = timed.with_columns(
        times_median=pl.when(median > 0).then(pl.col("so_far_s") / median),
        last_by_s=((pl.col("_end") - pl.col("_end").quantile(0.9)) / 1e9).clip(lower_bound=0.0),
    )
    last = said.sort("_end", "trajectory_id", descending=[True, False]).head(top)
    causes = [cause(row) for row in last.iter_rows(named=True)]
    return last.with_columns(cause=pl.Series("cause", causes, dtype=pl.String)).drop("_end")


_SAID: Final = {**PARTS, REST: theme.STATES["orchestrator"].label}


def cause(row: Mapping[str, Any]) -> str:
    """What most of a trajectory's time went into, in words: `decode 74 %, 48.1k tokens`.

    Of all of it: what nobody told is `unknown`, and may be the most.
    """
    known = {name: float(row.get(name) or 0.0) for name in PARTS}
    told = sum(known.values())
    if not told and not row.get("steps"):
        return "no step has ended yet"
    # Overlapping calls sum to more than it lasted.
    total = max(told, float(row.get("duration_s") or 0.0))
    if not total:
        return "it took no time"
    known[REST] = total - told
    most = max(known, key=lambda name: known[name])
    words = f"{_SAID[most]} {100 * known[most] / total:.0f} %"
    if most == "unknown_s":
        return f"{words}, no phases"
    if most == "decode_s":
        return f"{words}, {theme.count(row.get('output_tokens'))} tokens"
    if most == "tool_s":
        return f"{words}, {row.get('tool_calls') or 0} calls"
    if row.get("retractions"):
        return f"{words}, {row['retractions']} retractions"
    return words
