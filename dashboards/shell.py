"""What surrounds every page: the sidebar with the run and rollout, and the guards around a page.

A page is a function of a Scope; it is called only when there is something to show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.collector.errors import CollectorError, CollectorUnreachable
from heddle.collector.states import is_told
from heddle.dashboards import below, cards, client, facts, nav, presence, scope, theme

ZONES: Final = (
    "UTC",
    "America/Los_Angeles",
    "America/New_York",
    "Europe/London",
    "Europe/Berlin",
    "Asia/Shanghai",
    "Asia/Tokyo",
)


# Streamlit leaves 96 px above and 80 beside a page; the figures need them at 1280.
# Its metrics cut what does not fit: `12 min 05 s` must be read whole in a sixth of the page.
_SPACE: Final = (
    ".stMainBlockContainer{padding:2.6rem 2.6rem 3rem}"
    "[data-testid=stMetricValue]{font-size:1.45rem;line-height:1.3}"
    ".st-key-presence,[class*=st-key-below_]{display:none}"
    "[data-testid=stMetricValue],[data-testid=stMetricValue] *"
    "{white-space:normal;overflow:visible;text-overflow:clip}"
    # A sheet would run its cells that begin with = or @; the pages' own exports are safe.
    "[data-testid=stElementToolbar] [aria-label='Download as CSV']{display:none}"
)
_FOCUSED: Final = ("a", "[data-testid=stMain]", "[data-testid=data-grid-canvas]", "summary")
"""What Streamlit leaves without a ring, or with a shade of grey, when a key leads to it."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The chosen run and rollout, all rollouts of the run (newest first), and how to say times."""

    run: str
    rollout: dict[str, Any]
    rollouts: pl.DataFrame
    zone: str
    live: bool
    """Wanted, and seen by somebody."""

    @property
    def rollout_id(self) -> str:
        return str(self.rollout["rollout_id"])

    @property
    def is_running(self) -> bool:
        return self.rollout["state"] == "running"

    def ask(self, name: str, **filters: str | int | None) -> pl.DataFrame:
        """The named query about the chosen rollout."""
        settled = not self.is_running
        return client.ask(name, settled=settled, run=self.run, rollout=self.rollout_id, **filters)

    def untold(self, states: Mapping[str, int]) -> str | None:
        """Why its GPU time (state to GPU-ns) shows nothing, where it does not; as of now."""
        if is_told(states):
            return None
        seen = self.ask("trajectories", limit=1)
        return facts.untold(states, has_begun=not seen.is_empty())

    @property
    def before(self) -> dict[str, Any] | None:
        """The rollout before the chosen one in the same run, if any."""
        ids = self.rollouts["rollout_id"].to_list()
        later = ids.index(self.rollout_id) + 1
        return self.rollouts.row(later, named=True) if later < len(ids) else None


def opened(title: str) -> None:
    """What stands on top of every page; turns to another page first if a click asked for it."""
    nav.follow()
    below.opened(title)
    st.html(f"<style>{_SPACE}{_ring()}</style>")
    st.title(title, anchor=False)
    cards.pulse()


def _ring() -> str:
    """Around what has the focus: inside, where nothing cuts it off."""
    focused = ",".join(f"{one}:focus-visible" for one in _FOCUSED)
    colour = theme.INK[cards.mode()].accent
    return f"{focused}{{outline:2px solid {colour} !important;outline-offset:-2px}}"


def framed(title: str, body: Callable[[Scope], None]) -> None:
    """Title, heartbeat, selection, then the page; or the one empty state that applies."""
    opened(title)

    def whole() -> None:
        chosen = _choose()
        if chosen is not None:
            cards.fleet_time(chosen.rollouts["clock_speed"])
            body(chosen)

    _guarded(whole)


def _guarded(what: Callable[[], None]) -> None:
    try:
        what()
    except CollectorUnreachable:
        cards.unreachable("collector", client.places().collector, client.START_COLLECTOR)
    except CollectorError as refused:
        st.error(cards.plain(refused))


def later(key: str, *parts: Callable[[], None]) -> None:
    """*parts*, below each other, once the browser shows what stands above them."""

    def all_of_them() -> None:
        for part in parts:
            part()

    below.draw(key, partial(_alone, all_of_them))


def apart(part: Callable[..., None], *given: Any) -> None:
    """*part* as a fragment of its own: a choice made in it draws nothing else anew."""
    st.fragment(_alone)(partial(part, *given))


def _alone(what: Callable[[], None]) -> None:
    """In a fragment: it may run long after its page did."""
    # A click turns to another page: one that came out of a fragment is followed from there.
    if nav.asked():
        st.rerun(scope="app")
    _guarded(what)


def quietly() -> Scope | None:
    """The selection for a page that does without one: no empty state, None where there is none."""
    try:
        runs = client.ask("runs")
        asked = scope.get("run")
        if runs.is_empty() or (asked and asked not in facts.recorded_runs(runs)):
            return None
        rollouts = client.ask("rollouts", run=asked or facts.recorded_runs(runs)[0])
        known = rollouts["rollout_id"].to_list()
        if not known or (scope.get("rollout") and scope.get("rollout") not in known):
            return None
        return _choose()
    except CollectorError:
        return None


def _choose() -> Scope | None:
    runs = client.ask("runs")
    with st.sidebar:
        st.caption("Selection")
        if runs.is_empty():
            st.text("no runs yet")
    if runs.is_empty():
        cards.no_data(
            "No rollout has been recorded yet.",
            "Point a trainer at the collector, or run: heddle demo",
        )
        return None
    known = facts.recorded_runs(runs)
    with st.sidebar:
        run = scope.choose("run", "Run", known, default=known[0])
    missing = _missing("run", known)
    rollouts = client.ask("rollouts", run=run)
    if missing or rollouts.is_empty():
        _nothing(missing or f"Run {run} has no rollout yet.")
        return None
    return _rollout(run, rollouts)


def _rollout(run: str, rollouts: pl.DataFrame) -> Scope | None:
    rows = {str(row["rollout_id"]): row for row in rollouts.iter_rows(named=True)}
    with st.sidebar:
        chosen = scope.choose(
            "rollout",
            "Rollout",
            list(rows),
            default=next(iter(rows)),
            said=lambda one: facts.label(rows[one]),
        )
        zone = scope.choose("tz", "Times in", ZONES, default="UTC")
        live = scope.flag("live", "Refresh while it runs", default=True)
    missing = _missing("rollout", list(rows))
    if missing:
        _nothing(missing)
        return None
    return Scope(run, rows[chosen], rollouts, zone, live and not presence.is_hidden())


def _missing(name: str, known: list[str]) -> str | None:
    asked = scope.get(name)
    return f"There is no {name} {asked} here." if asked and asked not in known else None


def _nothing(what: str) -> None:
    cards.nothing_matches(what, ["run", "rollout", "group", "trajectory"])
