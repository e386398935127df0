"""What is wrong with the chosen rollout, which knob helps, and whom did the idle GPUs wait for?

The collector's findings and blame: asked last, since both need the rollout's whole account.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.collector.errors import CollectorError
from heddle.dashboards import cards, evidence, nav, shell, theme

TOP: Final = 8
NOBODY: Final = "nobody answers for it"
_COLUMN = st.column_config
BLAME: Final[dict[str, Any]] = {
    "key": _COLUMN.TextColumn("who the GPUs waited for", width="medium"),
    "gpu_s": _COLUMN.NumberColumn("idle (GPU-s)", format="%.1f"),
    "percent": _COLUMN.NumberColumn("of the idle time", format=theme.PERCENT),
}


def panel(chosen: shell.Scope, states: Mapping[str, int]) -> None:
    """Findings with their knobs; a page stands without them where they are refused.

    *states* is the rollout's GPU time: of none, no rule can say that nothing is wrong.
    """
    try:
        sentences(chosen.ask("findings"), chosen.untold(states))
    except CollectorError as refused:
        st.caption(f"No findings: {cards.plain(refused)}")


def blamed(chosen: shell.Scope) -> None:
    """The trajectories that most idle time is blamed on."""
    try:
        found = chosen.ask("blame", by="trajectory")
    except CollectorError:
        return
    if not found.is_empty():
        st.subheader("Whom idle GPUs waited for", anchor=False)
        blame(found, "overview_blame", opens=True)


def sentences(found: pl.DataFrame, untold: str | None) -> None:
    """Two lines a finding: the sentence; what to change, and what shows it."""
    st.subheader("Findings", anchor=False)
    if untold is not None:
        st.caption(f"{cards.plain(untold)} Most rules cannot judge without.")
    elif found.is_empty():
        st.caption("No rule found anything wrong with this rollout.")
    for row in found.iter_rows(named=True):
        lost = f" ({row['lost_share']:.0%} of GPU time at most)" if row["lost_share"] else ""
        mark = ":material/priority_high:" if row["severity"] == "high" else ":material/info:"
        st.markdown(f"{mark} {cards.plain(row['title'])}{cards.plain(lost)}")
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            if row["knob"]:
                st.caption(f"Change: {cards.plain(row['knob'])}", width="content")
            _links(row["evidence"] or "")


def _links(shown_by: str) -> None:
    """To the rows a finding rests on, and to the trajectory it is about."""
    if evidence.read(shown_by):
        nav.link("ask", "Evidence", ":material/table_view:", named=shown_by)
    if whose := evidence.trajectory(shown_by):
        label = f"Open {cards.plain(whose)}"
        nav.link("trajectory", label, ":material/arrow_forward:", trajectory=whose)


def blame(blamed: pl.DataFrame, key: str, *, opens: bool = False) -> None:
    """The TOP of them; `opens`: they are trajectories, and a row opens its own."""
    top = blamed.sort("gpu_ns", "key", descending=[True, False]).head(TOP)
    shown = top.with_columns(
        pl.col("key").fill_null(NOBODY),
        gpu_s=pl.col("gpu_ns") / 1e9,
        percent=100 * pl.col("share"),
    )
    if opens:
        cards.table(shown, key, columns=BLAME, pick="key", on_pick=_open)
    else:
        cards.table(shown, key, columns=BLAME)
    rest = sum(blamed["gpu_ns"].to_list()) - sum(top["gpu_ns"].to_list())
    if rest:
        st.caption(f"{blamed.height - top.height} more share {theme.gpu_seconds(rest)}.")


def _open(trajectory: str) -> None:
    if trajectory != NOBODY:
        nav.go("trajectory", trajectory=trajectory)
