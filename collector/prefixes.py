"""Which prompt tokens of a step had been in an engine before, and why were they not there now?

lost       tokens of the trajectory's prompt before, not found in the cache: evicted, or the step
           went to a worker that never had them
rewritten  tokens that were or may have been there in another form: the output before (agents drop
           reasoning and write tool calls anew), and everything of a prompt that got shorter, since
           then the agent compacted it; at most this much more was lost
A step says it only with prompt and cached tokens of its own and of the step before.
"""

from __future__ import annotations

import polars as pl


def prefixes(steps: pl.DataFrame, *whose: str) -> pl.DataFrame:
    """Steps that have a trajectory, in order of it, start and index, with `uncached`, `lost`,
    `rewritten`, and `moved`: whether the worker is another one than before."""
    whose = whose or ("trajectory_id",)
    prompt, cached = pl.col("input_tokens"), pl.col("cached_tokens")
    worker, before = pl.col("worker_id"), pl.col("seen_prompt").fill_null(0)
    output = pl.col("output_tokens").fill_null(0)
    rows = (
        steps.filter(pl.col("trajectory_id").is_not_null())
        .sort(*whose, "start_ns", "step_index", "span_id")
        .with_columns(
            # A step that says nothing of its prompt leaves the one before it in force.
            seen_prompt=prompt.forward_fill().shift(1).over(whose),
            seen_output=output.shift(1).over(whose).fill_null(0),
            seen_worker=worker.forward_fill().shift(1).over(whose),
        )
    )
    grew = prompt >= before
    there = pl.min_horizontal(before + pl.col("seen_output"), prompt)
    lost = pl.when(grew).then((before - cached).clip(0)).otherwise(0)
    return rows.with_columns(
        uncached=(prompt - cached).clip(0),
        lost=lost,
        rewritten=((there - cached).clip(0) - lost).clip(0),
        moved=(worker.is_not_null() & (worker != pl.col("seen_worker"))).fill_null(value=False),
    )
