"""How do normalised trace sets (one row a step, Parquet) become trajectories, steps and tools?

Times that a set does not have are laid one after the other and marked synthetic: durations a set
does not know are zero, never invented. Token counts are the set's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from heddle.collector import conventions as c
from heddle.collector import ids
from heddle.collector.importers.documents import Document, Found, ImportRefused, Source, span

_NEEDED: Final = ("source", "group_id", "trajectory_id", "step_index", "output_tokens")
_EPOCH_S: Final = 1_700_000_000.0
"""Where sets without absolute times begin."""


def read(source: Source) -> Iterator[Found]:
    """Trajectories in the order of the file."""
    try:
        rows = pl.read_parquet(source.path)
    except (OSError, pl.exceptions.PolarsError) as error:
        first = str(error).splitlines()[0]
        raise ImportRefused(source.path, "", f"is no Parquet file: {first}") from error
    missing = [name for name in _NEEDED if name not in rows.columns]
    if missing:
        raise ImportRefused(source.path, "", f"lacks the columns {', '.join(missing)}")
    first_row = 0
    for key, steps in rows.group_by("trajectory_id", maintain_order=True):
        place = f"row {first_row + 1}"
        if key[0] is None or steps["output_tokens"].null_count():
            raise ImportRefused(source.path, place, "has no trajectory_id or no output_tokens")
        first_row += steps.height
        yield Found(_trajectory(source, steps.to_dicts()), place, {}, "trace-set")


def _trajectory(source: Source, rows: list[Document]) -> list[Document]:
    first, last = rows[0], rows[-1]
    run = source.run or f"import-{first['source']}"
    trajectory = str(first["trajectory_id"])
    whose = {
        "heddle.run.id": run,
        "heddle.rollout.id": source.path.stem,
        "heddle.group.id": first["group_id"],
        "heddle.task": str(first["group_id"]).partition("/")[0],
        "gen_ai.conversation.id": trajectory,
        "heddle.sample.index": first.get("sample_index"),
        "gen_ai.request.model": first.get("model"),
    }
    trace, root = ids.trace_id(run, trajectory), ids.trajectory_span_id(run, trajectory)
    parts: list[Document] = []
    at_s = start_s = float(first.get("start_time") or _EPOCH_S + (first.get("start_offset_s") or 0))
    for row in rows:
        at_s = max(at_s, _recorded(row, first, start_s))
        made, at_s = _step(row, at_s, (run, trajectory, trace, root), whose)
        parts += made
    ends = {
        "gen_ai.operation.name": c.INVOKE_AGENT,
        "heddle.reward": last.get("reward"),
        "heddle.truncated": last.get("truncated"),
        "heddle.outcome": last.get("outcome"),
    }
    whole = span(trace, root, c.INVOKE_AGENT, _ns(start_s), _ns(at_s), {**whose, **ends})
    return [whole, *parts]


def _recorded(row: Document, first: Document, start_s: float) -> float:
    """When the set says the step began, or the trajectory's start."""
    if row.get("start_time") is not None:
        return float(row["start_time"])
    began = row.get("start_offset_s")
    return start_s if began is None else start_s + began - (first.get("start_offset_s") or 0)


def _step(
    row: Document, at_s: float, at: tuple[str, str, str, str], whose: dict[str, Any]
) -> tuple[list[Document], float]:
    run, trajectory, trace, root = at
    index, end_s = int(row["step_index"]), at_s + float(row.get("llm_seconds") or 0)
    step = {
        "gen_ai.operation.name": c.CHAT,
        "heddle.step.index": index,
        "gen_ai.usage.input_tokens": row.get("input_tokens"),
        "gen_ai.usage.output_tokens": row["output_tokens"],
        "gen_ai.usage.cache_read.input_tokens": row.get("cached_tokens"),
        "heddle.synthetic": True if row.get("llm_seconds") is None else None,
    }
    step_id = ids.step_span_id(run, trajectory, index)
    spans = [span(trace, step_id, c.CHAT, _ns(at_s), _ns(end_s), {**whose, **step}, parent=root)]
    if row.get("tool_name") is None:
        return spans, end_s
    waited_s = row.get("tool_seconds")
    tool = {
        "gen_ai.operation.name": c.EXECUTE_TOOL,
        "gen_ai.tool.name": row["tool_name"],
        "heddle.step.index": index,
        "heddle.synthetic": True if waited_s is None else None,
        "error.type": "error" if row.get("error_flag") else None,
    }
    tool_id = ids.tool_span_id(run, trajectory, index)
    until_s = end_s + float(waited_s or 0)
    name = f"{c.EXECUTE_TOOL} {row['tool_name']}"
    made = span(trace, tool_id, name, _ns(end_s), _ns(until_s), {**whose, **tool}, parent=root)
    return [*spans, made], until_s


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
