"""Issue 9's first number: on real grouped traces what the gate chose ranks as the siblings do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from heddle.models.candidates import sibling_means
from heddle.models.crossfit import crossfit
from heddle.models.dataset import from_traces
from heddle.models.evaluate import Held, compare, spearman
from heddle.models.gate import judge
from heddle.models.train import Args

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
SLACK = 0.02


@pytest.mark.parametrize("name", ["tau_bench", "tau2_whissle"])
def test_what_the_gate_chose_ranks_no_worse_than_the_sibling_mean(name):
    rows = from_traces(pl.read_parquet(DATA / f"{name}.parquet")).rows
    args = Args(epochs=30)
    fitted = crossfit(rows, "group", 5, args.fit(), lambda _part, _sentence: None)
    table = compare(fitted.learned, fitted.history, Held.from_rows(fitted.rows), rounds=60)
    chosen = fitted.learned if judge({"group history": table}).accepted else fitted.history
    siblings, left = sibling_means(rows), rows["remaining_tokens"].cast(pl.Float64).to_numpy()
    for k in (0, 4):
        at = np.flatnonzero(rows["steps_so_far"].to_numpy() == k)
        ours, theirs = spearman(chosen[at, 1], left[at]), spearman(siblings[at], left[at])
        assert ours >= theirs - SLACK, (name, k, ours, theirs)
