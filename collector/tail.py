"""How long is the tail of a rollout, who is in it, and what made it long?

Pure functions from rows of the named query `trajectories`; they count every row they are given, so
the caller filters (a running trajectory's numbers are what it has so far, a truncated one's are
censored). Quantiles interpolate linearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from heddle.collector import records

METRICS: Final = ("output_tokens", "steps", "duration_s", "tool_s")
CAUSES: Final = {
    "held": "held_s",
    "queued": "queue_s",
    "prefill": "prefill_s",
    "decode": "decode_s",
    "tool": "tool_s",
    "unknown": "unknown_s",
}
"""What a trajectory's time can be dominated by; what is left is the orchestrator's."""


class Spread(NamedTuple):
    """How alike the samples of one prompt are."""

    groups: pl.DataFrame
    """group_id, samples, median_tokens, max_tokens, max_over_median; widest first."""
    between_share: float | None
    """Share of the variance of ln(output tokens) that the prompt explains (intraclass correlation,
    0 to 1, corrected for group size); null with fewer than two groups or no second sample."""


def summarize(trajectories: pl.DataFrame) -> pl.DataFrame:
    """Rows of the named query `tail`: one per metric that has a value."""
    rows = [_row(metric, trajectories[metric].drop_nulls()) for metric in METRICS]
    return pl.DataFrame([row for row in rows if row], schema=records.schema("tail"))


def _row(metric: str, values: pl.Series) -> dict[str, float | str | None] | None:
    if values.is_empty():
        return None
    p50, p90, p99, most = np.quantile(values.to_numpy(), [0.5, 0.9, 0.99, 1.0]).tolist()
    row: dict[str, float | str | None] = {"metric": metric, "count": len(values)}
    return row | {
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": most,
        "max_over_median": most / p50 if p50 > 0 else None,
    }


def ccdf(values: pl.Series, marks: int = 2000) -> pl.DataFrame:
    """For a value, the share of trajectories at or above it: `value`, `share`, ascending.

    At most *marks* rows, spread evenly over ranks, of which the maximum and everything from p99 up
    are never thinned (above 100 x *marks* / 2 values p99+ itself is, its ends kept).
    """
    ordered = np.sort(values.drop_nulls().cast(pl.Float64).to_numpy())
    count = len(ordered)
    value, first = np.unique(ordered, return_index=True)
    share = (count - first) / max(count, 1)
    kept = _thin(len(value), int(np.searchsorted(first, count * 0.99)), marks)
    return pl.DataFrame({"value": value[kept], "share": share[kept]})


def _thin(count: int, tail_from: int, marks: int) -> list[int]:
    """Which of *count* ranks to draw: the tail whole while it fits in half of the marks."""
    if count <= marks:
        return list(range(count))
    tail = _even(tail_from, count, max(marks // 2, marks - tail_from))
    return _even(0, tail_from, marks - len(tail)) + tail


def _even(start: int, stop: int, marks: int) -> list[int]:
    """At most *marks* ranks of [start, stop), both ends among them."""
    if stop - start <= marks:
        return list(range(start, stop))
    return sorted({int(rank) for rank in np.linspace(start, stop - 1, marks).round()})


def stragglers(trajectories: pl.DataFrame, count: int = 10) -> pl.DataFrame:
    """The longest by duration (ties by id), with the cause that took most of their time.

    Columns trajectory_id, group_id, task, worker_id, duration_s, output_tokens, steps, cause,
    cause_s, cause_share (of its duration, or of what overlapping calls sum to). Equal causes: the
    first of held, queued, prefill, decode, tool, unknown, orchestrator.
    """
    longest = (
        trajectories.filter(pl.col("duration_s").is_not_null())
        .sort(["duration_s", "trajectory_id"], descending=[True, False])
        .head(count)
    )
    whose = ["trajectory_id", "group_id", "task", "worker_id"]
    sizes = ["duration_s", "output_tokens", "steps"]
    causes = [_cause(row) for row in longest.select("duration_s", *CAUSES.values()).iter_rows()]
    schema = {"cause": pl.String, "cause_s": pl.Float64, "cause_share": pl.Float64}
    return pl.concat(
        [longest.select(*whose, *sizes), pl.DataFrame(causes, schema=schema, orient="row")],
        how="horizontal",
    )


def _cause(row: Sequence[float | None]) -> tuple[str, float, float]:
    duration_s, *spent = (value or 0.0 for value in row)
    seconds = dict(zip(CAUSES, spent, strict=True))
    seconds["orchestrator"] = max(duration_s - sum(spent), 0.0)
    total_s = max(duration_s, sum(spent))
    cause = max(seconds, key=lambda name: seconds[name])
    return cause, seconds[cause], seconds[cause] / total_s if total_s > 0 else 0.0


def spread(trajectories: pl.DataFrame) -> Spread:
    """Within-group spread of output tokens; truncated trajectories are left out."""
    known = trajectories.filter(
        pl.col("group_id").is_not_null()
        & (pl.col("output_tokens") > 0)
        & ~pl.col("truncated").fill_null(value=False)
    )
    tokens = pl.col("output_tokens")
    groups = (
        known.group_by("group_id")
        .agg(
            samples=pl.len().cast(pl.Int64),
            median_tokens=tokens.median(),
            max_tokens=tokens.max(),
        )
        .with_columns(max_over_median=pl.col("max_tokens") / pl.col("median_tokens"))
        .sort(["max_over_median", "group_id"], descending=[True, False])
    )
    return Spread(groups, _between_share(known))


def _between_share(known: pl.DataFrame) -> float | None:
    """One-way random-effects intraclass correlation of ln(output tokens), cut to [0, 1]."""
    log = pl.col("output_tokens").log()
    by_group = known.group_by("group_id", maintain_order=True).agg(
        n=pl.len(), mean=log.mean(), within=((log - log.mean()) ** 2).sum()
    )
    n, mean, within = (by_group[name].to_numpy().astype(float) for name in ("n", "mean", "within"))
    groups, total = len(n), n.sum()
    if groups < 2 or total <= groups:
        return None
    between_ms = float((n * (mean - (n * mean).sum() / total) ** 2).sum()) / (groups - 1)
    within_ms = float(within.sum()) / (total - groups)
    size = (total - (n**2).sum() / total) / (groups - 1)
    scale = between_ms + (size - 1) * within_ms
    return None if scale <= 0 else min(max((between_ms - within_ms) / float(scale), 0.0), 1.0)


def truncated_share(trajectories: pl.DataFrame) -> float | None:
    """Of the finished trajectories, the share that ended by a limit; null when none finished."""
    finished = trajectories.filter(pl.col("state") == "finished")
    if finished.is_empty():
        return None
    return int(finished["truncated"].fill_null(value=False).sum()) / finished.height
