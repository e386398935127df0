"""Where did each trajectory's own time go, to the nanosecond?

held + queued + base + interference + context + prefill + recompute + tool + move + orchestrator
(+ unknown + unsplit) = its duration, first activity to last. Decode time is split with the latency
law of the step's degree, decode(B, context) = a + b*B + c*B*context per token:
  base         tokens x (a + b): alone on its engine, empty context; at most the decode time
  context      tokens x c x mean context: what its own context adds; at most the rest
  interference what remains: the others in its batch (and anything else the law does not know)
  unsplit      decode of steps whose degree has no law
Prefill is recompute in proportion to the tokens that an earlier step of the trajectory had already
brought and that were not found in the prefix cache; without cache counts none is called recompute.
`unknown` is what telemetry does not cover. Laws come in as numbers: this room knows no models.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import polars as pl

from heddle.collector.facts import Facts
from heddle.collector.timeline import by_trajectory, timeline, totals

PARTS: Final = (
    "held_ns", "queued_ns", "base_ns", "interference_ns", "context_ns", "prefill_ns",
    "recompute_ns", "tool_ns", "move_ns", "orchestrator_ns", "unknown_ns", "unsplit_ns",
)  # fmt: skip
"""Columns whose sum is `duration_ns`."""
_SCHEMA: Final = {
    "trajectory_id": pl.String(),
    "group_id": pl.String(),
    "duration_ns": pl.Int64(),
    **{part: pl.Int64() for part in PARTS},
}


@dataclass(frozen=True, slots=True)
class Law:
    """Decode time of one degree: a, b and c of a + b*B + c*B*context, in ns per output token."""

    base_ns_per_token: float
    request_ns_per_token: float = 0.0
    context_ns_per_token: float = 0.0
    """Per output token and token of context."""


class _Step(NamedTuple):
    trajectory_id: str
    degree: int | None
    prefill_ns: int | None
    decode_ns: int | None
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None


@dataclass(slots=True)
class _Wanted:
    """What the steps of one trajectory would take by the law, before caps."""

    base_ns: int = 0
    context_ns: int = 0
    unsplit_ns: int = 0
    recompute_ns: int = 0
    seen_tokens: int = 0
    """Context after the latest step."""


def decompose(facts: Facts, steps: pl.DataFrame, laws: Mapping[int, Law]) -> pl.DataFrame:
    """One row per trajectory, by id: trajectory_id, group_id, duration_ns and the PARTS."""
    wanted = _wanted(steps, laws)
    rows: list[dict[str, str | int]] = []
    for trajectory_id, mine in sorted(by_trajectory(facts.activities).items()):
        start_ns, end_ns = min(x.start_ns for x in mine), max(x.end_ns for x in mine)
        spent = {str(k): v for k, v in totals(timeline(mine, start_ns, end_ns)).items()}
        row = _parts(spent, wanted.get(trajectory_id, _Wanted()))
        whose = {"trajectory_id": trajectory_id, "group_id": facts.groups.get(trajectory_id, "")}
        rows.append(whose | {"duration_ns": end_ns - start_ns} | row)
    return pl.DataFrame(rows, schema=_SCHEMA)


def _wanted(steps: pl.DataFrame, laws: Mapping[int, Law]) -> dict[str, _Wanted]:
    found: dict[str, _Wanted] = defaultdict(_Wanted)
    known = steps.filter(pl.col("trajectory_id").is_not_null())
    for row in known.sort("start_ns", "step_index").select(_Step._fields).iter_rows():
        step = _Step(*row)
        _add(found[step.trajectory_id], step, laws)
    return found


def _add(wanted: _Wanted, step: _Step, laws: Mapping[int, Law]) -> None:
    """Count one step; base and context are capped by its own decode time."""
    decode_ns, tokens = max(step.decode_ns or 0, 0), step.output_tokens or 0
    law = laws.get(step.degree or 0)
    if law is None:
        wanted.unsplit_ns += decode_ns
    else:
        per_token = law.base_ns_per_token + law.request_ns_per_token
        base_ns = min(round(tokens * per_token), decode_ns)
        context = (step.input_tokens or 0) + tokens / 2
        context_ns = round(tokens * law.context_ns_per_token * context)
        wanted.base_ns += base_ns
        wanted.context_ns += min(context_ns, decode_ns - base_ns)
    wanted.recompute_ns += _recompute_ns(step, wanted.seen_tokens)
    wanted.seen_tokens = (step.input_tokens or 0) + tokens


def _recompute_ns(step: _Step, seen_tokens: int) -> int:
    """The share of prefill spent on tokens seen before and no longer cached."""
    if step.input_tokens is None or step.cached_tokens is None:
        return 0
    uncached = step.input_tokens - step.cached_tokens
    new = max(step.input_tokens - seen_tokens, 0)
    again = max(uncached - new, 0)
    return max(step.prefill_ns or 0, 0) * again // uncached if uncached > 0 else 0


def _parts(spent: Mapping[str, int], wanted: _Wanted) -> dict[str, int]:
    """The trajectory's seconds with decode and prefill split; every cap keeps the sum."""
    row = {part: spent.get(part.removesuffix("_ns"), 0) for part in PARTS}
    decode_ns, prefill_ns = spent.get("decode", 0), row["prefill_ns"]
    row["recompute_ns"] = min(wanted.recompute_ns, prefill_ns)
    row["prefill_ns"] = prefill_ns - row["recompute_ns"]
    for part, want_ns in (
        ("base_ns", wanted.base_ns),
        ("context_ns", wanted.context_ns),
        ("unsplit_ns", wanted.unsplit_ns),
    ):
        row[part] = min(want_ns, decode_ns)
        decode_ns -= row[part]
    row["interference_ns"] = decode_ns
    return row
