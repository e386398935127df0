"""What would a plan for such lengths look like, and what would other presets have done?

The two questions of the Policies page that take a moment: both are heddle commands on the last
finished rollout of the run, run beside the pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.collector.errors import CollectorError
from heddle.dashboards import cards, client, facts, scope, theme
from heddle.dashboards.views import replayed

_COLUMN = st.column_config
ALTERNATIVES: Final[dict[str, Any]] = {
    "allocation": _COLUMN.TextColumn("allocation"),
    "layout": _COLUMN.TextColumn("layout"),
    "predicted_makespan_s": _COLUMN.NumberColumn("makespan expected (s)", format="%.1f"),
    "because": _COLUMN.TextColumn("because", width="large"),
}


def panels(run: str | None, presets: Sequence[str]) -> None:
    """Plan preview and what-if of the last finished rollout; a sentence where there is none."""
    last = _last(run)
    st.subheader("What a plan for such lengths would be", anchor=False)
    if last is None:
        st.caption("No rollout has finished yet; both questions are asked of the last one.")
        return
    st.caption(
        f"For the lengths of {cards.plain(facts.label(last))} on {theme.gpus(last['gpus'] or 8)}, "
        "as if they were known: every allocation's layout, the quickest first."
    )
    _preview(last)
    st.subheader("What other presets would have done", anchor=False)
    _what_if(last, presets)


def _last(run: str | None) -> Mapping[str, Any] | None:
    """The rollout of the address where it has finished, else the newest finished one."""
    try:
        rollouts = client.ask("rollouts", run=run).filter(pl.col("state") == "finished")
    except CollectorError:
        return None
    asked = rollouts.filter(pl.col("rollout_id") == scope.get("rollout"))
    found = rollouts if asked.is_empty() else asked
    return None if found.is_empty() else found.row(0, named=True)


def _preview(last: Mapping[str, Any]) -> None:
    whose = f"{last['run_id']}/{last['rollout_id']}"
    words = ["plan", "--rollout", whose, "--gpus", str(last["gpus"] or 8), "--json"]
    words += ["--collector", client.places().collector]
    told = replayed.job(words, "Preview the plan", "policies_preview")
    if not told:
        return
    best = told[0]
    cards.numbers(
        [
            cards.Number("Layout", facts.layout(best["layout"]), f"By {best['allocation']}"),
            cards.Number("Makespan", theme.seconds(best["predicted_makespan_s"]), "Expected"),
        ]
    )
    shown = pl.DataFrame(told).with_columns(
        layout=pl.Series([facts.layout(row["layout"]) for row in told], dtype=pl.String)
    )
    cards.table(shown, "policies_alternatives", columns=ALTERNATIVES)


def _what_if(last: Mapping[str, Any], presets: Sequence[str]) -> None:
    policies = scope.several("whatif", "Presets to replay", presets, default=list(presets))
    if not policies:
        st.caption("Choose one preset at least.")
        return
    told = replayed.job(
        replayed.command(last, policies),
        f"Replay under {len(policies)} presets",
        "policies_whatif",
    )
    if told:
        replayed.table(told, "policies_whatif")
