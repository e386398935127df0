"""On which trajectories is the length predictor measured, and by which numbers?

Generated workloads, whose latents an oracle knows; real sets from a folder of normalised traces.
Every prediction that is scored is of a network that saw nothing of the trajectory's group (or task
family), with the siblings' lengths as an earlier epoch left them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import torch

from heddle.controller.emulator.workload import TrajectorySpec, generate
from heddle.models.candidates import guesses, sibling_means
from heddle.models.crossfit import Crossfit, crossfit
from heddle.models.dataset import STEP_COLUMNS, ask, from_traces
from heddle.models.evaluate import Held, compare, coverage, recall, spearman
from heddle.models.features import Floats
from heddle.models.folds import Split
from heddle.models.gate import judge
from heddle.models.train import Args

KS: Final = (0, 1, 2, 4, 8)
FEWEST: Final = 100
"""Trajectories at a step below which its top 20 % are too few to rank by."""
REAL: Final = ("tau_bench", "tau2_whissle", "intercode")
APART: Final = "kv_cache_tester"
CAPPED: Final = 10
"""Turns at which intercode cuts off; 54 % of its trajectories, left out whole."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One set: what the gate chose, and everything it is held against."""

    fitted: Crossfit
    chosen: Floats
    accepted: bool

    @property
    def truth(self) -> Floats:
        """Remaining tokens."""
        return self.fitted.rows["remaining_tokens"].cast(pl.Float64).to_numpy()

    def at(self, k: int, least_steps: int = 0) -> Any:
        """The rows after k steps of trajectories that were not cut off."""
        rows = self.fitted.rows
        took = (pl.col("steps_so_far") == k) & ~pl.col("truncated")
        return np.flatnonzero(rows.select(took & (pl.col("total_steps") > least_steps)).to_series())


def judged(rows: pl.DataFrame, split: Split, args: Args) -> Judged:
    """Fit, predict held out, and choose as the gate does: history where it is not beaten."""
    torch.set_num_threads(1)
    fitted = crossfit(rows, split, args.folds, args.fit(), lambda _part, _sentence: None)
    table = compare(fitted.learned, fitted.history, Held.from_rows(rows), rounds=args.rounds)
    accepted = judge({"group history": table}).accepted
    return Judged(fitted, fitted.learned if accepted else fitted.history, accepted)


def steps_of(specs: Sequence[TrajectorySpec]) -> pl.DataFrame:
    """What the collector would hold of them, as `models.dataset.ask` takes it."""
    rows: list[tuple[Any, ...]] = []
    for t in specs:
        context = 0
        for i, s in enumerate(t.steps):
            context = (t.prompt_tokens if s.reset else context) + s.observation_tokens
            called = s.tool_name is not None
            whose = ("run", "rollout", t.task, t.group_id, t.trajectory_id, i, i)
            tool = (s.tool_name, s.tool_s if called else None, int(called), 0, t.truncated)
            rows.append((*whose, context, s.output_tokens, *tool))
            context += s.output_tokens
    return pl.DataFrame(rows, schema=STEP_COLUMNS, orient="row")


def generated(preset: str, groups: int) -> Judged:
    """Sixteen samples a group, of the frozen generator."""
    return judged(ask(steps_of(generate(preset, groups=groups))).rows, "group", Args())


def prompt_only(found: Judged) -> Floats:
    """The prompt's length alone."""
    return guesses(found.fitted.rows, found.fitted.fold)["prompt length"]


def ranks(log_q: Floats, truth: Floats) -> tuple[float, float, float]:
    """Spearman, recall of the longest fifth, and coverage."""
    middle = log_q[:, 1]
    return spearman(middle, truth), recall(middle, truth, 0.2), coverage(log_q, truth)


def real(folder: Path, name: str, split: Split = "group") -> Judged:
    """One file of normalised traces; of a capped one what the cap left whole."""
    traces = pl.read_parquet(folder / f"{name}.parquet")
    if name == "intercode":
        traces = traces.filter(pl.col("n_steps") < CAPPED)
    return judged(from_traces(traces).rows, split, Args(epochs=30, rounds=60))


def families(folder: Path) -> Judged:
    """All of REAL as one set, whole task families held out."""
    rows = [from_traces(pl.read_parquet(folder / f"{name}.parquet")).rows for name in REAL[:2]]
    code = pl.read_parquet(folder / "intercode.parquet").filter(pl.col("n_steps") < CAPPED)
    return judged(pl.concat([*rows, from_traces(code).rows]), "task", Args(epochs=30, rounds=60))


def against_siblings(found: Judged, k: int) -> float:
    """Spearman on remaining tokens beyond that of the siblings' untrained geometric mean."""
    at, siblings = found.at(k), sibling_means(found.fitted.rows)
    ours = spearman(found.chosen[at, 1], found.truth[at])
    return ours - spearman(siblings[at], found.truth[at])
