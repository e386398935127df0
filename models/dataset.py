"""Which questions does recorded history answer: after k steps, how much was still to come?

From the collector's `trajectories`, `steps` and `tool_calls` frames, or from normalised trace files
(one row a step). One row a trajectory and k < its steps, with what was known then and the remaining
output tokens. Truncated trajectories stay, marked: their remaining is a lower bound. One that names
no group is a group of its own, as the controller takes it: nobody knows its siblings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import polars as pl

from heddle.collector.client import CollectorClient
from heddle.models.errors import DatasetError
from heddle.models.features import tool_bucket

KEY: Final = ("run_id", "trajectory_id")
STEP_COLUMNS: Final = {
    "run_id": pl.String,
    "rollout_id": pl.String,
    "task": pl.String,
    "group_id": pl.String,
    "trajectory_id": pl.String,
    "step_index": pl.Int64,
    "start_ns": pl.Int64,
    "input_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    "tool_name": pl.String,
    "tool_s": pl.Float64,
    "tool_calls": pl.Int64,
    "tool_errors": pl.Int64,
    "truncated": pl.Boolean,
}
"""The step frame both sources are brought to; tool columns are of the calls after the step."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Questions with their answers; `rows` as `ask` makes them."""

    rows: pl.DataFrame
    fingerprint: str
    ungrouped: int = 0
    """Trajectories that named no group."""

    @property
    def trajectories(self) -> int:
        """How many trajectories the rows come from."""
        return self.rows.select(pl.struct(*KEY).n_unique()).item()


def from_collector(
    trajectories: pl.DataFrame, steps: pl.DataFrame, tool_calls: pl.DataFrame
) -> Dataset:
    """From the collector's frames; only finished trajectories, failed steps' tokens included."""
    _need(trajectories, "trajectories", (*KEY, "task", "truncated", "state", "output_tokens"))
    _need(steps, "steps", (*KEY, "step_index", "start_ns", "input_tokens", "output_tokens"))
    finished = trajectories.filter(pl.col("state") == "finished").select(*KEY, "task", "truncated")
    tools = (
        tool_calls.sort("start_ns")
        .group_by(*KEY, "step_index", maintain_order=True)
        .agg(
            tool_name=pl.col("tool_name").last(),
            tool_s=pl.col("duration_s").sum(),
            tool_calls=pl.len().cast(pl.Int64),
            tool_errors=pl.col("error_type").is_not_null().sum().cast(pl.Int64),
        )
    )
    frame = steps.join(finished, on=KEY, nulls_equal=True)
    frame = frame.join(tools, on=[*KEY, "step_index"], how="left", nulls_equal=True)
    return ask(frame.with_columns(pl.col("truncated").fill_null(value=False)))


def from_store(client: CollectorClient, run: str | None, rollout: str | None = None) -> Dataset:
    """Every finished trajectory of a run and rollout: all of them where none is named."""
    names = ("trajectories", "steps", "tool_calls")
    return from_collector(*(client.query(name, run=run, rollout=rollout) for name in names))


def from_traces(traces: pl.DataFrame, *, task: str | None = None) -> Dataset:
    """From a normalised trace file; the task family is what stands before the group's slash.

    Without a slash it is the source. Step order stands for time; a truncated flag of null means
    not truncated.
    """
    _need(traces, "traces", ("source", "group_id", "trajectory_id", "step_index", "output_tokens"))
    group = pl.col("group_id")
    family = pl.when(group.str.contains("/")).then(group.str.split("/").list.first())
    called = pl.col("tool_name").is_not_null()
    failed = called & pl.col("error_flag").fill_null(value=False)
    return ask(
        traces.with_columns(
            run_id=pl.col("source"),
            rollout_id=pl.lit("traces"),
            task=pl.lit(task) if task else family.otherwise(pl.col("source")),
            start_ns=pl.col("step_index"),
            tool_s=pl.col("tool_seconds"),
            tool_calls=called.cast(pl.Int64),
            tool_errors=failed.cast(pl.Int64),
            truncated=pl.col("truncated").fill_null(value=False),
        )
    )


def ask(steps: pl.DataFrame) -> Dataset:
    """Row k of a trajectory: what was known once step k - 1 had called its tool; k = 0 first."""
    frame = steps.select(_cleaned(name, kind) for name, kind in STEP_COLUMNS.items())
    frame = frame.drop_nulls(["trajectory_id", "output_tokens"]).sort(
        *KEY, "step_index", "start_ns"
    )
    if frame.is_empty():
        message = (
            "no finished trajectory with output tokens in these frames; record a rollout first"
        )
        raise DatasetError(message)
    alone = frame.filter(pl.col("group_id").is_null()).select(pl.struct(*KEY).n_unique()).item()
    rows = frame.with_columns(_own_group()).with_columns(_known()).with_columns(_answers())
    buckets = {n: tool_bucket(n) for n in rows["last_tool"].unique().to_list() if n is not None}
    bucket = pl.col("last_tool").replace_strict(buckets, default=-1, return_dtype=pl.Int64)
    return Dataset(rows.with_columns(tool_bucket=bucket), fingerprint_of(frame), alone)


def _cleaned(name: str, kind: type[pl.DataType]) -> pl.Expr:
    """The column in its type; NaN and the empty text are null, a run is never null, and nothing
    counts below zero."""
    column = pl.col(name)
    if kind.is_numeric():
        column = column.cast(pl.Float64).fill_nan(None).clip(lower_bound=0)
    column = column.cast(kind)
    if kind == pl.String:
        column = pl.when(column != "").then(column)
    if kind == pl.Boolean:
        column = column.fill_null(value=False)
    # Runs are part of the key, and nulls of two frames do not join.
    return (column.fill_null("") if name == "run_id" else column).alias(name)


def _own_group() -> pl.Expr:
    """Every trajectory's group: its own where it named none, which no client can name."""
    alone = pl.concat_str(pl.lit("\x00alone"), *KEY, separator="\x00")
    return pl.coalesce("group_id", alone).alias("group_id")


ROLLOUT: Final = pl.concat_str("run_id", pl.col("rollout_id").fill_null(""), separator="/")
"""A row's rollout, as `rollouts_of` names it."""


def rollouts_of(rows: pl.DataFrame) -> list[str]:
    """The rollouts the rows come from, each as run/rollout."""
    return sorted(rows.select(ROLLOUT).to_series().unique().to_list())


def fingerprint_of(frame: pl.DataFrame) -> str:
    """16 hex digits of every value of the step frame."""
    return hashlib.sha256(frame.write_csv().encode()).hexdigest()[:16]


def _known() -> list[pl.Expr]:
    """Columns named as a Query's fields, of steps before k and tools that ended before then."""
    output, seen = pl.col("output_tokens"), pl.col("input_tokens").fill_null(0)
    context = seen + output
    grown = (seen - context.shift(1).over(KEY)).clip(lower_bound=0)
    columns = {
        "prompt_tokens": seen.first(),
        "tokens_so_far": output.cum_sum().shift(1),
        "steps_so_far": pl.int_range(pl.len()),
        "last_output_tokens": output.shift(1),
        "max_output_tokens": output.cum_max().shift(1),
        "context_tokens": pl.coalesce(context.shift(1), seen.first()),
        "last_observation_tokens": grown.shift(1),
        # The call after step k - 1 still runs when the question is asked: two steps back.
        "tool_calls_so_far": pl.col("tool_calls").fill_null(0).cum_sum().shift(2),
        "tool_s_so_far": pl.col("tool_s").fill_null(0.0).cum_sum().shift(2),
        "last_tool_s": pl.col("tool_s").shift(2),
        "errors_so_far": pl.col("tool_errors").fill_null(0).cum_sum().shift(2),
        "last_error": (pl.col("tool_errors").fill_null(0).shift(2) > 0).cast(pl.Int64),
    }
    known = [expr.over(KEY).fill_null(0).alias(name) for name, expr in columns.items()]
    return [*known, pl.col("tool_name").shift(1).over(KEY).alias("last_tool")]


def _answers() -> list[pl.Expr]:
    total = pl.col("output_tokens").sum().over(KEY)
    steps = pl.len().over(KEY)
    return [
        total.alias("total_tokens"),
        (total - pl.col("tokens_so_far")).alias("remaining_tokens"),
        steps.alias("total_steps"),
        # Of the call under way when the question is asked; null at admission.
        pl.col("tool_s").shift(1).over(KEY).alias("running_tool_s"),
    ]


def _need(frame: pl.DataFrame, name: str, columns: Iterable[str]) -> None:
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        message = f"the {name} frame lacks {', '.join(missing)}; take it from the collector's query"
        raise DatasetError(message)
