"""What should whoever promotes a version know about it? A model card in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from heddle.models.evaluate import NAMES, OVERALL
from heddle.models.features import documented
from heddle.models.registry import Draft

NOT_FOR = (
    "Rewards, filtering or stopping trajectories: it predicts lengths, not worth.",
    "Another policy, tokenizer or agent than the runs above: token counts shift with each.",
    "Lengths beyond the limits in force when it was trained: those ended censored.",
    "Comparing total lengths: it was scored on the tokens still to come.",
)


def write_card(draft: Draft, table: pl.DataFrame, standing: pl.DataFrame) -> str:
    """Fingerprint, splits, held-out metrics per step, features, and what it is not for."""
    trained = draft.trained
    args: dict[str, Any] = trained.get("args", {})
    facts = [
        f"- data {draft.fingerprint}: {trained.get('trajectories')} trajectories in "
        f"{trained.get('groups')} groups ({trained.get('ungrouped', 0)} trajectories name none and "
        f"count as one each), {trained.get('rows')} rows, "
        f"{trained.get('truncated_share', 0.0):.0%} of rows from truncated trajectories",
        f"- runs: {_listed(trained.get('runs', ()))}; tasks: {_listed(trained.get('tasks', ()))}",
        f"- split by {args.get('split')} into {args.get('folds')} folds, seed {args.get('seed')}; "
        "every metric is on folds the network never saw",
        f"- gate: {draft.because}",
    ]
    parts = [
        "Remaining output tokens of a trajectory, as p10, p50, p90 and mean: group history "
        "corrected by a small network; steps to come and the running tool's seconds beside them.",
        "\n".join(facts),
        "## Held-out metrics per step (difference with its 90 % interval)",
        markdown(table),
        "## All candidates, held out, means over the steps",
        candidates(standing),
        "## Steps and tool seconds (held out, mean error of the logarithm)",
        heads(draft.metrics),
        "## Features",
        documented(),
        "## Not for",
        "\n".join(f"- {sentence}" for sentence in NOT_FOR),
    ]
    return "\n\n".join(parts) + "\n"


def candidates(standing: pl.DataFrame) -> str:
    """One row a candidate, one column a metric."""
    wide = standing.pivot(on="metric", index="candidate", values="value", maintain_order=True)
    lines = [f"| candidate | {' | '.join(NAMES)} |", "|---" * (len(NAMES) + 1) + "|"]
    for row in wide.iter_rows(named=True):
        lines.append(f"| {row['candidate']} | {' | '.join(f'{row[n]:.4g}' for n in NAMES)} |")
    return "\n".join(lines)


def heads(metrics: Mapping[str, float]) -> str:
    """The further heads beside what is known without them."""
    lines = ["| head | without it | candidate | served |", "|---|---|---|---|"]
    names = {"steps_log_error": "steps to come", "tool_s_log_error": "seconds of the running tool"}
    for key, name in names.items():
        ours, simple = metrics.get(key), metrics.get(f"{key}_simple")
        if ours is None or simple is None:
            lines.append(f"| {name} | | | too few were recorded |")
            continue
        served = "learned" if ours < simple else "without it"
        lines.append(f"| {name} | {simple:.4f} | {ours:.4f} | {served} |")
    return "\n".join(lines)


def markdown(table: pl.DataFrame) -> str:
    """The gate's table: one row a baseline, step and metric."""
    lines = ["| against | k | n | metric | baseline | candidate | difference |", "|---" * 7 + "|"]
    for row in table.iter_rows(named=True):
        k = "all" if row["k"] == OVERALL else row["k"]
        interval = f"{row['difference']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]"
        lines.append(
            f"| {row['against']} | {k} | {row['n']} | {row['metric']} "
            f"| {row['baseline']:.4f} | {row['candidate']:.4f} | {interval} |"
        )
    return "\n".join(lines) + f"\n\nMetrics: {', '.join(NAMES)}."


def _listed(names: Any) -> str:
    names = [str(name) for name in names]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
