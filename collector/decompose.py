"""Where did each trajectory's own time go, to the nanosecond?

held + queued + base + interference + context + prefill + recompute + tool + move + orchestrator
(+ unknown + unsplit) = its duration, first activity to last. Decode time is split with the latency
law of the step's degree, decode(B, context) = a + b*B + c*B*context per token:
  base         tokens x (a + b): alone on its engine, empty context; at most the decode time
  context      tokens x c x mean context: what its own context adds; at most the rest
  interference what remains: the others in its batch (and anything else the law does not know)
  unsplit      decode of steps whose degree has no law
Prefill is recompute in proportion to the tokens of the prompt before that were not found in the
prefix cache: they had been there, and were lost. `rewritten_ns` is no part but an "of prefill":
tokens that were or may have been there in another form, the trajectory's own output (agents drop
reasoning and write calls anew) and prompts that got shorter; so recompute is at least its own and
at most both. Without cache counts neither is known. `unknown` is what telemetry does not cover.
Laws come in as numbers: this room knows no models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl

from heddle.collector.activities import Ints
from heddle.collector.doings import Doings
from heddle.collector.facts import Facts
from heddle.collector.sums import Law, sums
from heddle.collector.timeline import RANKED

PARTS: Final = (
    "held_ns", "queued_ns", "base_ns", "interference_ns", "context_ns", "prefill_ns",
    "recompute_ns", "tool_ns", "move_ns", "orchestrator_ns", "unknown_ns", "unsplit_ns",
)  # fmt: skip
"""Columns whose sum is `duration_ns`."""
REWRITTEN: Final = "rewritten_ns"
_WANTED: Final = ("base_ns", "context_ns", "unsplit_ns")
_SCHEMA: Final = {
    "trajectory_id": pl.String(),
    "group_id": pl.String(),
    "duration_ns": pl.Int64(),
    **{part: pl.Int64() for part in (*PARTS, REWRITTEN)},
}


def decompose(
    facts: Facts, steps: pl.DataFrame, laws: Mapping[int, Law], doings: Doings | None = None
) -> pl.DataFrame:
    """The rows of parts() straight from steps."""
    return parts(facts, sums(steps, laws), doings)


def parts(facts: Facts, of_steps: pl.DataFrame, doings: Doings | None = None) -> pl.DataFrame:
    """One row per trajectory, by id: trajectory_id, group_id, duration_ns, the PARTS, REWRITTEN.

    *of_steps* are the rows of sums(); *doings* those of the facts' activities, if at hand.
    """
    if doings is None:
        doings = Doings().updated(facts.activities)
    seen, duration, spent = doings.totals(facts.window.end_ns)
    names = facts.tables.trajectories.names
    whose = pl.Series("trajectory_id", [names[code] for code in seen.tolist()], pl.String)
    told = pl.DataFrame(whose)
    wanted = told.join(of_steps, on="trajectory_id", how="left", maintain_order="left")
    want = {
        name: wanted[name].fill_null(0).to_numpy() for name in (*_WANTED, "recompute_ns", REWRITTEN)
    }
    split = _parts(dict(zip(RANKED.values(), spent.T, strict=True)), duration, want)
    groups = [facts.groups.get(name, "") for name in told["trajectory_id"]]
    columns = {"group_id": groups, "duration_ns": duration, **split}
    found = told.with_columns(**{k: pl.Series(v, dtype=_SCHEMA[k]) for k, v in columns.items()})
    return found.select(_SCHEMA.keys()).sort("trajectory_id")


def _parts(spent: Mapping[str, Ints], duration: Ints, want: Mapping[str, Ints]) -> dict[str, Ints]:
    """The trajectories' time with decode and prefill split; every cap keeps the sum."""
    row = {f"{doing}_ns": ns for doing, ns in spent.items()}
    covered = np.sum([*spent.values()], axis=0) if spent else duration
    # A hole between two activities is covered by none: nobody knows what happened there.
    row["unknown_ns"] = row["unknown_ns"] + duration - covered
    prefill = row["prefill_ns"]
    row["recompute_ns"] = np.minimum(want["recompute_ns"], prefill)
    row["prefill_ns"] = prefill - row["recompute_ns"]
    row[REWRITTEN] = np.minimum(want[REWRITTEN], row["prefill_ns"])
    left = row.pop("decode_ns")
    for part in _WANTED:
        row[part] = np.minimum(want[part], left)
        left = left - row[part]
    row["interference_ns"] = left
    return row
