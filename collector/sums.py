"""What do a trajectory's steps come to: prefixes lost, spans missing, decode by the law?

One row per trajectory from its own steps alone: when these change, only its row is made again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from heddle.collector.prefixes import prefixes

CUT_OFF: Final = ("engine_lost", "engine_died")
"""What the controller calls an attempt whose engine died under it."""


@dataclass(frozen=True, slots=True)
class Law:
    """Decode time of one degree: a, b and c of a + b*B + c*B*context, in ns per output token."""

    base_ns_per_token: float
    request_ns_per_token: float = 0.0
    context_ns_per_token: float = 0.0
    """Per output token and token of context."""


def sums(steps: pl.DataFrame, laws: Mapping[int, Law]) -> pl.DataFrame:
    """By trajectory_id: base_ns, context_ns, unsplit_ns (decode by the law, before caps),
    recompute_ns, rewritten_ns (of prefill), prefilled, lost_moved, lost_here, moved_steps, hits
    (tokens and steps), missing (spans), timeouts, refused steps and their longest prompt, steps cut
    off by an engine that died and their time."""
    rows = _timed(prefixes(steps), laws)
    moved = pl.col("moved")
    told = pl.col("input_tokens").is_not_null() & pl.col("cached_tokens").is_not_null()
    said = pl.col("error_type").str.to_lowercase().str.contains("timed?[ _-]?out")
    refused = pl.col("error_type").str.contains(r"^(http_)?(400|413|422)$").fill_null(value=False)
    cut = pl.col("error_type").is_in(CUT_OFF).fill_null(value=False)
    index, came = pl.col("step_index"), pl.col("state").ne_missing("abandoned")
    return rows.group_by("trajectory_id").agg(
        pl.col("base_ns", "context_ns", "unsplit_ns", "recompute_ns", "rewritten_ns").sum(),
        prefilled=pl.col("uncached").sum(),
        lost_moved=pl.col("lost").filter(moved).sum(),
        lost_here=pl.col("lost").filter(~moved).sum(),
        moves=moved.sum(),
        moved_steps=(moved & told).sum(),
        hits=pl.col("cached_tokens").filter(told).sum(),
        # Indices it skips, and steps announced whose span never came. One carried over from an
        # earlier rollout rightly begins later than 0.
        missing=(
            index.max() - index.min() + 1 - index.filter(came & index.is_not_null()).n_unique()
        ).fill_null(0),
        timeouts=said.sum(),
        refused=refused.sum(),
        refused_tokens=pl.col("input_tokens").filter(refused).max().fill_null(0),
        cut=cut.sum(),
        cut_ns=(pl.col("end_ns") - pl.col("start_ns")).filter(cut).sum(),
    )


def _timed(rows: pl.DataFrame, laws: Mapping[int, Law]) -> pl.DataFrame:
    """Each step's decode by the law of its degree, and its prefill by what was prefilled."""
    per_token = {d: law.base_ns_per_token + law.request_ns_per_token for d, law in laws.items()}
    context = {d: law.context_ns_per_token for d, law in laws.items()}
    decode, uncached = pl.col("decode_ns").fill_null(0).clip(0), pl.col("uncached")
    tokens, prompt = pl.col("output_tokens").fill_null(0), pl.col("input_tokens").fill_null(0)
    prefill = pl.col("prefill_ns").fill_null(0).clip(0)
    return rows.with_columns(
        base_ns=pl.min_horizontal(_rounded(tokens * _law(per_token)), decode),
        wish=_rounded(tokens * _law(context) * (prompt + tokens / 2)),
        unsplit_ns=pl.when(pl.col("degree").fill_null(0).is_in(list(laws)))
        .then(0)
        .otherwise(decode),
        recompute_ns=pl.when(uncached > 0).then(prefill * pl.col("lost") // uncached),
        rewritten_ns=pl.when(uncached > 0).then(prefill * pl.col("rewritten") // uncached),
    ).with_columns(context_ns=pl.min_horizontal("wish", decode - pl.col("base_ns")))


def _law(numbers: Mapping[int, float]) -> pl.Expr:
    """The number of each row's degree; 0 without one."""
    degree = pl.col("degree").fill_null(0)
    if not numbers:
        return pl.lit(0.0)
    return degree.replace_strict(dict(numbers), default=0.0, return_dtype=pl.Float64)


def _rounded(ns: pl.Expr) -> pl.Expr:
    return ns.round().cast(pl.Int64)
