"""Which rows stay together when some are held out: groups, task families, whole rollouts?"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from heddle.models.errors import DatasetError

Split = Literal["group", "task", "rollout"]
SPLIT_COLUMN: Final[dict[Split, str]] = {
    "group": "group_id",
    "task": "task",
    "rollout": "rollout_id",
}


def folds_of(rows: pl.DataFrame, split: Split, folds: int, seed: int) -> NDArray[np.int64]:
    """Which fold each row belongs to; whole groups (tasks, rollouts) stay together."""
    names = rows[SPLIT_COLUMN[split]].fill_null("").to_numpy()
    kinds, inverse = np.unique(names.astype(str), return_inverse=True)
    if len(kinds) < 3:
        message = f"{len(kinds)} {split}s cannot make 3 folds; record more, or split by group"
        raise DatasetError(message)
    places = np.random.default_rng(seed).permutation(len(kinds)) % min(folds, len(kinds))
    return places[inverse]
