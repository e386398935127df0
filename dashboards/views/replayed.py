"""What would other policies have made of a recorded rollout? `heddle replay`, from a page.

The real loop decides on emulated engines in virtual time, for every policy on the same
trajectories, tools and seed. It runs beside the pages (jobs.py); the page shows how far it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.dashboards import cards, client, theme
from heddle.dashboards.figures import makespan
from heddle.dashboards.jobs import Job, jobs

POLL_S: Final = 1.0
_COLUMN = st.column_config
ROWS: Final[dict[str, Any]] = {
    "policy": _COLUMN.TextColumn("policy", width="medium"),
    "makespan_s": _COLUMN.NumberColumn("makespan (s)", format="%.1f"),
    "speed_up": _COLUMN.NumberColumn("x faster than the first", format="%.2f"),
    "of_bound": _COLUMN.NumberColumn("of the lower bound", format="%.2f"),
    "tail_s": _COLUMN.NumberColumn("tail (s)", format="%.1f", help="After nine of ten had ended"),
    "idle_gpu_s": _COLUMN.NumberColumn("idle (GPU-s)", format="%.0f"),
    "held_s": _COLUMN.NumberColumn("held (s)", format="%.0f"),
    "moves": _COLUMN.NumberColumn("moves", format="%d"),
    "reprefilled_tokens": _COLUMN.NumberColumn("prefilled again", format="localized"),
}


def command(rollout: Mapping[str, Any], policies: Sequence[str]) -> list[str]:
    """`heddle replay` of that rollout under these policies, the first as the base."""
    whose = f"{rollout['run_id']}/{rollout['rollout_id']}"
    words = ["replay", "--policies", ",".join(policies), "--rollout", whose, "--json"]
    words += ["--gpus", str(rollout["gpus"] or 8)]
    return [*words, "--collector", client.places().collector]


def job(words: Sequence[str], label: str, key: str) -> Any:
    """A button that starts the command, its progress, and its result once there is one."""
    mine = jobs().find(words)
    busy = jobs().running(words[0])
    if mine is None or not mine.is_running:
        again = f"{label} again" if mine is not None and mine.result is not None else label
        if busy is not None:
            st.caption("Another one is running; this can start when it has ended.")
        if st.button(again, key=f"{key}_start", disabled=busy is not None, type="primary"):
            jobs().start(words)
            st.rerun()
    if mine is None:
        return None
    if mine.is_running:
        st.fragment(progress, run_every=POLL_S)(mine, key)
        return None
    if mine.failed:
        st.error(cards.plain(mine.failed))
    else:
        st.caption(f"Took {theme.seconds(mine.took_s)} of this machine.")
    return mine.result


def progress(mine: Job, key: str) -> None:
    """How far it is, and a button that ends it; the page runs again when it has ended."""
    if not mine.is_running:
        st.rerun(scope="app")
    so_far = f"{mine.done} of {mine.total}" if mine.total else "starting"
    st.progress(mine.share, f"{so_far}, {theme.seconds(mine.took_s)} so far")
    if st.button("Stop", key=f"{key}_stop"):
        mine.stop()


def table(told: Mapping[str, Any], key: str) -> None:
    """Policy by policy, with what is emulated said."""
    st.caption("Emulated engines in virtual time: a comparison, not a measurement of GPUs.")
    bars = [makespan.Bar(row["policy"], row["makespan_s"]) for row in told["summary"]]
    cards.figure(
        makespan.comparison(bars, cards.mode()), f"{key}_bars", "Replayed makespan of each policy"
    )
    cards.table(pl.DataFrame(told["summary"]), f"{key}_rows", columns=ROWS)


def ablation(presets: Mapping[str, Mapping[str, str]], full: str, base: str) -> list[str]:
    """*full*, then *full* with each choice that differs set as in *base*, then *base*."""
    theirs = presets[base]
    without = [
        f"{full}/{choice}={theirs[choice]}"
        for choice, policy in presets[full].items()
        if theirs.get(choice, policy) != policy
    ]
    return [full, *without, base]
