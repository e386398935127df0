"""Were the run's predictions right once the lengths were known, and do they drift?

Held against what came, rollout by rollout and version by version, by the collector.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.collector.errors import CollectorError
from heddle.dashboards import cards, client, shell, theme
from heddle.dashboards.figures import predictor as drawn

_COLUMN = st.column_config
ROWS: Final[dict[str, Any]] = {
    "rollout_id": _COLUMN.TextColumn("rollout"),
    "predictor_version": _COLUMN.TextColumn("version", width="medium"),
    "steps": _COLUMN.NumberColumn("predictions"),
    "covered": _COLUMN.NumberColumn("in p10-p90", format=theme.PERCENT, help="80 % is calibrated"),
    "below": _COLUMN.NumberColumn("below p10", format=theme.PERCENT),
    "above": _COLUMN.NumberColumn("above p90", format=theme.PERCENT),
    "bias": _COLUMN.NumberColumn("truth / p50", format="%.2f", help="Above 1 it says too little"),
    "median_log_error": _COLUMN.NumberColumn("log error", format="%.2f"),
    "mae_tokens": _COLUMN.NumberColumn("off by (tokens)", format="%.0f"),
    "log_correlation": _COLUMN.NumberColumn("correlation", format="%.2f"),
}


def panel(chosen: shell.Scope) -> None:
    """Coverage and bias of each rollout of the run, the last one first."""
    st.subheader("Predictions against what came", anchor=False)
    try:
        found = client.ask("calibration", run=chosen.run)
    except CollectorError as refused:
        st.caption(cards.plain(refused))
        return
    if found.is_empty():
        st.caption("No finished step of this run was predicted yet.")
        return
    order = {name: place for place, name in enumerate(chosen.rollouts["rollout_id"])}
    rows = found.sort(
        pl.col("rollout_id").replace_strict(order, default=len(order), return_dtype=pl.Int64),
        "predictor_version",
    )
    last = rows.row(0, named=True)
    # As it is read: 85.0 % lies within 5 points of 80 %.
    calm = round(abs((last["covered"] or 0) - drawn.COVERED), 3) <= drawn.SLACK
    verdict = "As it should be." if calm else "They drift: retrain, or look at what changed."
    st.markdown(
        f"{theme.percent(last['covered'])} of the lengths of {cards.plain(last['rollout_id'])} lay "
        f"between p10 and p90, where 80 % should. {verdict}"
    )
    if rows.height > 1:
        figure = drawn.coverage(rows.reverse(), cards.mode())
        cards.figure(figure, "predictor_drift", "Coverage of each rollout")
    shown = rows.head(cards.ROWS).with_columns(pl.col("covered", "below", "above") * 100)
    cards.table(shown, "predictor_calibration", columns=ROWS)
