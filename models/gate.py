"""Has this candidate earned the place of what serves?

It must beat group history and the serving version, paired on held-out groups (that version on
rollouts it has not learned from): clearly on pinball loss or on Spearman of the remaining tokens,
worse on neither. A refusal says by which number.
History winning is a fair outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from heddle.models.evaluate import OVERALL

SPEARMAN_SLACK: Final = 0.02
"""A candidate may rank worse than a baseline by this much at a step, and no more."""
EARLY: Final = 4
"""Up to this step nearly every trajectory still runs and the difference itself is held to the
slack; later, where few are left, only one that is clear of it counts."""
COVERAGE: Final = (0.70, 0.90)
"""Where the share inside the 80 % interval must lie, over all steps."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Accepted or not, the sentence that says why, and the numbers behind it."""

    accepted: bool
    because: str
    table: pl.DataFrame
    """As `evaluate.compare`, with the baseline's name in `against`."""


def judge(tables: Mapping[str, pl.DataFrame]) -> Verdict:
    """The verdict over one comparison a baseline, by the baseline's name."""
    table = pl.concat([t.with_columns(against=pl.lit(name)) for name, t in tables.items()])
    if table.is_empty():
        return Verdict(False, "refused: too few held-out trajectories to compare on", table)
    faults = list(dict.fromkeys(f for n, one in tables.items() if (f := _fault(n, one))))
    if faults:
        return Verdict(False, "refused: " + "; ".join(faults), table)
    wins = "; ".join(_win(name, one) for name, one in tables.items())
    return Verdict(True, f"accepted: {wins}", table)


def _fault(name: str, table: pl.DataFrame) -> str:
    """Why the candidate does not beat this baseline; empty when it does."""
    covered = _cell(table, "coverage80")["candidate"]
    if not COVERAGE[0] <= covered <= COVERAGE[1]:
        return f"its 80 % interval holds {covered:.0%} of the held-out truths"
    held_to = pl.when(pl.col("k") <= EARLY).then("difference").otherwise("high")
    worse = table.filter(
        pl.col("metric") == "spearman", pl.col("k") != OVERALL, held_to < -SPEARMAN_SLACK
    )
    if not worse.is_empty():
        worst = worse.sort("difference").row(0, named=True)
        return f"Spearman {worst['difference']:+.3f} against {name} at k = {worst['k']}"
    pinball, rank = _cell(table, "pinball"), _cell(table, "spearman")
    if pinball["difference"] > 0:
        return f"pinball loss {pinball['difference']:+.4f} against {name}"
    if pinball["high"] >= 0 and rank["low"] <= 0:
        return (
            f"not clearly better than {name}: pinball {_interval(pinball)}, "
            f"Spearman {_interval(rank)}"
        )
    return ""


def _win(name: str, table: pl.DataFrame) -> str:
    pinball, rank = _cell(table, "pinball"), _cell(table, "spearman")
    return f"pinball {_interval(pinball)}, Spearman {_interval(rank)} against {name}"


def _cell(table: pl.DataFrame, metric: str) -> dict[str, float]:
    return table.filter(pl.col("metric") == metric, pl.col("k") == OVERALL).row(0, named=True)


def _interval(cell: Mapping[str, float]) -> str:
    return f"{cell['difference']:+.4f} [{cell['low']:+.4f}, {cell['high']:+.4f}]"
