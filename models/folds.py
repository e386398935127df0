"""Which rows stay together when some are held out: groups, task families, whole rollouts?"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from heddle.models.errors import DatasetError

Split = Literal["group", "task", "rollout", "time"]
SPLIT_COLUMN: Final[dict[Split, str]] = {
    "group": "group_id",
    "task": "task",
    "rollout": "rollout_id",
    "time": "rollout_id",
}
"""By time whole rollouts stay together too, in the order they began."""


def folds_of(rows: pl.DataFrame, split: Split, folds: int, seed: int) -> NDArray[np.int64]:
    """Which fold each row belongs to; whole groups (tasks, rollouts) stay together."""
    names = rows[SPLIT_COLUMN[split]].fill_null("").to_numpy()
    kinds, inverse = np.unique(names.astype(str), return_inverse=True)
    if len(kinds) < 3:
        message = f"{len(kinds)} {split}s cannot make 3 folds; record more, or split by group"
        raise DatasetError(message)
    if split == "time":
        return _in_order(rows, names.astype(str), kinds, folds)[inverse]
    places = np.random.default_rng(seed).permutation(len(kinds)) % min(folds, len(kinds))
    return places[inverse]


def _in_order(
    rows: pl.DataFrame, names: NDArray[np.str_], kinds: NDArray[np.str_], folds: int
) -> NDArray[np.int64]:
    """The fold of each rollout: the earliest in fold 0, equally many in each."""
    began = rows["start_ns"].fill_null(0).to_numpy()
    firsts = np.array([began[names == kind].min() for kind in kinds])
    place = np.argsort(np.argsort(firsts, kind="stable"), kind="stable")
    return place * min(folds, len(kinds)) // len(kinds)


def known_to(
    split: Split, fold: NDArray[np.int64], f: int, count: int
) -> tuple[int, NDArray[np.bool_]]:
    """The fold that stops the training of network f, and the rows it is fitted on.

    By time only the past is known: the fold before stops it, those before that teach it. The first
    two have too little past to be scored on.
    """
    if split == "time":
        return f - 1, fold < f - 1
    stop = (f + 1) % count
    return stop, (fold != f) & (fold != stop)


def scored(split: Split, fold: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whose predictions are held out."""
    return fold >= 2 if split == "time" else np.ones(len(fold), dtype=bool)
