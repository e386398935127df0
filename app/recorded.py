"""Which trajectories does a recorded parquet file hold, and what was changed to run them?

One row a step, columns as in README's table. Nothing is invented silently: each limit and each
drawn tool time is counted in `Recording.notes`. Every row with a tool name is a tool call, the last
row's too (also `user` and `human` turns: the agent waits either way).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from heddle.app.errors import fail
from heddle.controller.emulator.workload import StepSpec, TrajectorySpec

REQUIRED: Final = ("trajectory_id", "group_id", "step_index", "input_tokens", "output_tokens")
OPTIONAL: Final = ("sample_index", "source", "tool_name", "tool_seconds", "truncated")
TYPES: Final = {
    **dict.fromkeys(("trajectory_id", "group_id"), "text or whole numbers"),
    **dict.fromkeys(("step_index", "input_tokens", "output_tokens"), "whole numbers"),
    **dict.fromkeys(("sample_index", "tool_seconds"), "numbers"),
    **dict.fromkeys(("source", "tool_name"), "text"),
    "truncated": "booleans",
}
_TEXT: Final = (pl.String, pl.Categorical, pl.Enum)
_FITS: Final[dict[str, Callable[[pl.DataType], bool]]] = {
    "text": lambda t: isinstance(t, _TEXT),
    "whole numbers": lambda t: t.is_integer(),
    "text or whole numbers": lambda t: t.is_integer() or isinstance(t, _TEXT),
    "numbers": lambda t: t.is_numeric(),
    "booleans": lambda t: t == pl.Boolean,
}

# Of the 647 logged tool and user times of tau2_whissle: median 0.78 s, p90 1.4 s.
TOOL_MEDIAN_S: Final = 0.78
TOOL_SIGMA: Final = log(1.4 / 0.78) / 1.2816
TOOL_LAW: Final = f"lognormal(median {TOOL_MEDIAN_S} s, sigma {TOOL_SIGMA:.2f})"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a person asked to cut; None cuts nothing."""

    trajectories: int | None = None
    context_tokens: int | None = None
    tool_wait_s: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """The trajectories to send, and one sentence for each thing that differs from the file."""

    trajectories: list[TrajectorySpec]
    notes: list[str] = field(default_factory=list[str])

    @property
    def counts(self) -> dict[str, int]:
        """What the store must hold afterwards."""
        steps = [step for t in self.trajectories for step in t.steps]
        return {
            "trajectories": len(self.trajectories),
            "steps": len(steps),
            "tool_calls": sum(step.tool_name is not None for step in steps),
            "output_tokens": sum(step.output_tokens for step in steps),
        }


def load(path: Path, limits: Limits) -> Recording:
    """The file's trajectories in file order, within the limits."""
    frame, notes = _limit(_read(path), limits)
    for apply in (_cut_context, _draw_tools, _cut_waits):
        frame, said = apply(frame, limits)
        notes += said
    grouped = frame.group_by("trajectory_id", maintain_order=True)
    trajectories = [_trajectory(rows.to_dicts()) for _, rows in grouped]
    resets = sum(step.reset for t in trajectories for step in t.steps)
    if resets:
        notes.append(f"{resets} steps shrink their context: sent as resets, with fresh tokens")
    if empty := sum(not step.output_tokens for t in trajectories for step in t.steps):
        notes.append(f"{empty} steps have no output: sent as prefill only")
    return Recording(trajectories, notes)


def _read(path: Path) -> pl.DataFrame:
    if not path.exists():
        fail(f"there is no file {path}")
    try:
        names = pl.read_parquet_schema(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        fail(f"{path} is not a readable parquet file: {str(error).splitlines()[0]}")
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        fail(f"{path} lacks the columns {', '.join(missing)}; a replay needs {', '.join(REQUIRED)}")
    _fitting(path, names)
    frame = pl.read_parquet(path, columns=[n for n in (*REQUIRED, *OPTIONAL) if n in names])
    absent = [pl.lit(None).alias(name) for name in OPTIONAL if name not in names]
    return _checked(path, frame.with_columns(absent))


def _fitting(path: Path, schema: Mapping[str, pl.DataType]) -> None:
    """Each column's type must be one that can be sent; a column of nulls says nothing."""
    for name, wanted in TYPES.items():
        held = schema.get(name)
        if held is not None and held != pl.Null and not _FITS[wanted](held):
            fail(f"column {name} of {path} holds {held}; a replay needs {wanted} there")


def _distinct(path: Path, frame: pl.DataFrame) -> None:
    """A step is there once, and a trajectory is of one group."""
    twice = frame.filter(pl.struct("trajectory_id", "step_index").is_duplicated())
    if not twice.is_empty():
        first = twice.row(0, named=True)
        fail(
            f"{path} has {twice.height} rows that share trajectory_id and step_index with another, "
            f"as step {first['step_index']} of {first['trajectory_id']!r}; a replay needs each once"
        )
    groups = frame.group_by("trajectory_id", maintain_order=True).agg(pl.n_unique("group_id"))
    torn = groups.filter(pl.col("group_id") > 1)
    if not torn.is_empty():
        fail(f"{path} has trajectory {torn['trajectory_id'][0]!r} in more than one group_id")


def _checked(path: Path, frame: pl.DataFrame) -> pl.DataFrame:
    if frame.is_empty():
        fail(f"{path} holds no steps")
    for name in REQUIRED:
        if nulls := frame[name].null_count():
            fail(f"{path} has {nulls} rows without {name}; a replay needs it on every row")
    if frame.select(pl.min_horizontal("input_tokens", "output_tokens").min()).item() < 0:
        fail(f"{path} has negative token counts")
    seconds = frame["tool_seconds"].cast(pl.Float64).fill_nan(None).drop_nulls()
    if not (seconds.is_finite() & (seconds >= 0)).all():
        fail(f"{path} has tool_seconds that are negative or infinite; leave unknown ones empty")
    _distinct(path, frame)
    # Stable: trajectories keep the order in which the file begins them.
    whole = pl.col("step_index", "input_tokens", "output_tokens").cast(pl.Int64)
    ordered = frame.with_columns(whole).sort("step_index", maintain_order=True)
    return ordered.with_columns(
        pl.col("tool_name").cast(pl.String),
        pl.col("tool_seconds").cast(pl.Float64).fill_nan(None),
        # pandas writes whole numbers with gaps as floats.
        pl.col("sample_index").cast(pl.Float64).fill_nan(None).cast(pl.Int64, strict=False),
        pl.col("input_tokens").clip(lower_bound=1).alias("context"),
        pl.lit(value=False).alias("synthetic"),
        (pl.col("input_tokens").diff().over("trajectory_id") < 0).fill_null(False).alias("reset"),
    ).with_columns(
        # A wait that names no tool still was one.
        pl.when(pl.col("tool_name").is_null() & (pl.col("tool_seconds") > 0))
        .then(pl.lit("tool"))
        .otherwise("tool_name")
        .alias("tool_name")
    )


Cut = tuple[pl.DataFrame, list[str]]


def _limit(frame: pl.DataFrame, limits: Limits) -> Cut:
    ids = frame["trajectory_id"].unique(maintain_order=True)
    if limits.trajectories is None or limits.trajectories >= len(ids):
        return frame, []
    kept = frame.filter(pl.col("trajectory_id").is_in(ids.head(limits.trajectories).implode()))
    note = f"--limit {limits.trajectories}: the first {limits.trajectories} of {len(ids)}"
    return kept, [f"{note} trajectories, {kept.height} of {frame.height} steps"]


def _cut_context(frame: pl.DataFrame, limits: Limits) -> Cut:
    room = limits.context_tokens
    if room is None:
        return frame, []
    longest = int(frame.select(pl.col("output_tokens").max()).item())
    if longest >= room:
        fail(f"--max-context {room} leaves no room for a step of {longest} output tokens")
    cut = frame.with_columns(pl.min_horizontal("context", room - pl.col("output_tokens")))
    changed = frame.filter(cut["context"] < frame["context"])
    whose = changed["trajectory_id"].n_unique()
    note = f"--max-context {room}: {changed.height} steps of {whose} trajectories keep the first"
    return cut, [f"{note} tokens of their context, and all their output tokens"]


def _draw_tools(frame: pl.DataFrame, limits: Limits) -> Cut:
    missing = (frame["tool_name"].is_not_null() & frame["tool_seconds"].is_null()).to_numpy()
    count = int(missing.sum())
    if not count:
        return frame, []
    seconds = frame["tool_seconds"].to_numpy().copy()
    rng = np.random.default_rng(limits.seed)
    seconds[missing] = rng.lognormal(log(TOOL_MEDIAN_S), TOOL_SIGMA, count)
    drawn = frame.with_columns(
        pl.Series("tool_seconds", seconds), pl.Series("synthetic", missing)
    ).with_columns(pl.col("tool_seconds").fill_nan(None))
    note = f"{count} tool calls have no recorded time: drawn from {TOOL_LAW}, seed {limits.seed}"
    return drawn, [f"{note}, and marked synthetic"]


def _cut_waits(frame: pl.DataFrame, limits: Limits) -> Cut:
    most = limits.tool_wait_s
    if most is None:
        return frame, []
    waits = frame["tool_seconds"].fill_null(0.0)
    cut = waits.clip(upper_bound=most)
    changed, saved_h = int((cut < waits).sum()), float((waits - cut).sum()) / 3600
    note = f"--max-tool-wait {most:g}: {changed} tool calls cut, {saved_h:.1f} h of waiting"
    return frame.with_columns(cut.alias("tool_seconds")), [f"{note} left out"]


def _trajectory(rows: list[dict[str, Any]]) -> TrajectorySpec:
    first = rows[0]
    ends = 0
    steps: list[StepSpec] = []
    for index, row in enumerate(rows):
        reset = bool(row["reset"]) and row["context"] < ends
        before = first["context"] if reset else ends
        steps.append(_step(row, row["context"] - (before if index else 0), reset=reset))
        ends = row["context"] + row["output_tokens"]
    return TrajectorySpec(
        trajectory_id=str(first["trajectory_id"]),
        group_id=str(first["group_id"]),
        sample_index=int(first["sample_index"] or 0),
        task=str(first["source"] or "recorded"),
        steps=tuple(steps),
        truncated=bool(first["truncated"]),
    )


def _step(row: Mapping[str, Any], observation: int, *, reset: bool) -> StepSpec:
    """Negative observations leave that much of the context's end out (thinking, clipping)."""
    return StepSpec(
        observation_tokens=observation,
        output_tokens=row["output_tokens"],
        tool_name=row["tool_name"],
        tool_s=float(row["tool_seconds"] or 0.0),
        tool_synthetic=row["synthetic"],
        reset=reset,
    )
