"""What did the gate compare? One row a baseline, step and metric, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.dashboards import cards
from heddle.dashboards.figures.predictor import OVERALL

_COLUMN = st.column_config
ROWS: Final[dict[str, Any]] = {
    "against": _COLUMN.TextColumn("against", width="small"),
    "k": _COLUMN.TextColumn("k", width="small"),
    "metric": _COLUMN.TextColumn("metric", width="small"),
    "candidate": _COLUMN.NumberColumn("candidate", format="%.4f"),
    "baseline": _COLUMN.NumberColumn("baseline", format="%.4f"),
    "difference": _COLUMN.NumberColumn("difference", format="%+.4f"),
    "low": _COLUMN.NumberColumn("90 % from", format="%+.4f"),
    "high": _COLUMN.NumberColumn("to", format="%+.4f"),
    "n": _COLUMN.NumberColumn("trajectories"),
}


def reason(because: str) -> str:
    """The gate's words without its verdict, where the sentence has said that already."""
    return because.removeprefix("refused: ").removeprefix("accepted: ")


def show(rows: Sequence[Mapping[str, Any]], key: str) -> None:
    """Means over the steps first."""
    overall = sorted(rows, key=lambda row: row["k"] != OVERALL)
    said = [{**row, "k": "all" if row["k"] == OVERALL else str(row["k"])} for row in overall]
    frame = pl.DataFrame(said, infer_schema_length=None)
    cards.table(frame, key, columns=ROWS)
