"""Two policies side by side on one rollout's trajectories, and which choice made the difference?

Paired replay: the same trajectories, tools, seed and emulated engines under every policy, so that
what differs is the policy. The ablation takes one choice at a time back to the other preset's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.dashboards import cards, client, control, facts, scope, shell
from heddle.dashboards.figures import paired, tail
from heddle.dashboards.views import replayed

SPENT: Final = {
    "decode_gpu_s": "decoding",
    "prefill_gpu_s": "prefilling",
    "idle_gpu_s": "idle",
}
_COLUMN = st.column_config
DIFFERENCE: Final[dict[str, Any]] = {
    "state": _COLUMN.TextColumn("GPUs were", width="medium"),
    "this": _COLUMN.NumberColumn("this (GPU-s)", format="%.1f"),
    "other": _COLUMN.NumberColumn("other (GPU-s)", format="%.1f"),
    "more": _COLUMN.NumberColumn("this minus other (GPU-s)", format="%+.1f"),
}


def panels(chosen: shell.Scope) -> None:
    """Choose two presets, replay, and read what each choice brought."""
    if chosen.is_running:
        cards.empty("This rollout still runs.", "A replay needs all of its trajectories.")
        return
    now, refused = client.attempt(lambda: control.switches(chosen.run))
    if now is None:
        cards.unreachable("controller", client.places().controller, control.START)
        st.text(refused or "")
        return
    presets = now["presets"]
    this_at, other_at = st.columns(2)
    with this_at:
        this = scope.choose("this", "Policy", list(presets), default=_first(presets, "heddle"))
    rest = [name for name in presets if name != this]
    with other_at:
        other = scope.choose("base", "Against", rest, default=_first(rest, "verl"))
    policies = replayed.ablation(presets, this, other)
    told = replayed.job(
        replayed.command(chosen.rollout, policies),
        f"Replay {len(policies)} policies",
        "compare_replay",
    )
    if told:
        _results(told, this, other)


def _first(names: Any, wanted: str) -> str:
    return wanted if wanted in names else next(iter(names))


def _results(told: Mapping[str, Any], this: str, other: str) -> None:
    replayed.table(told, "compare_ablation")
    rows = {row["policy"]: row for row in told["rows"]}
    mine, theirs = rows[this], rows[other]
    st.subheader("GPU time", anchor=False)
    cards.table(spent(mine, theirs), "compare_spent", columns=DIFFERENCE)
    left, right = st.columns(2, gap="medium")
    with left:
        st.subheader("Seconds of a trajectory", anchor=False)
        samples = {this: mine["lengths_s"], other: theirs["lengths_s"]}
        drawn = tail.ccdf(samples, cards.mode(), unit="duration (s)")
        cards.figure(drawn, "compare_replayed_ccdf", "Share of trajectories longer than x")
    with right:
        st.subheader("Group by group", anchor=False)
        sooner, both = paired.won(mine["group_s"], theirs["group_s"])
        st.caption(f"When its last sample ended; {sooner} of {both} sooner under {this}.")
        drawn = paired.scatter(
            mine["group_s"], theirs["group_s"], cards.mode(), names=(this, other), unit="end (s)"
        )
        cards.figure(drawn, "compare_replayed_groups", "End of each group under both policies")
    if layout := mine.get("layout"):
        st.caption(f"Layout under {this}: {facts.layout(layout)}; {other}: "
                   f"{facts.layout(theirs['layout'])}.")  # fmt: skip


def spent(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> pl.DataFrame:
    """What the GPUs did under both, the largest difference first."""
    rows = [
        {
            "state": said,
            "this": float(mine[name]),
            "other": float(theirs[name]),
            "more": float(mine[name] - theirs[name]),
        }
        for name, said in SPENT.items()
    ]
    return pl.DataFrame(sorted(rows, key=lambda row: -abs(float(row["more"]))))
