"""Does anybody see this tab? What refreshes by itself rests while nobody does.

A browser runs the timers of a hidden tab on, if seldom; only the page can say that it is hidden.
"""

from __future__ import annotations

from typing import Final

import streamlit as st
from streamlit.components import v2

KEY: Final = "presence"
RUN_MARK: Final = "data-heddle-run"
"""Of a link to a script that takes long to begin; a browser has the time while Python asks."""
_SCRIPT: Final = """
export default function ({ setStateValue }) {
  for (const link of document.querySelectorAll("link[data-heddle-run]")) import(link.href);
  const tell = () => setStateValue("hidden", document.hidden);
  document.addEventListener("visibilitychange", tell);
  return () => document.removeEventListener("visibilitychange", tell);
}
"""
_mount = v2.component("heddle_presence", js=_SCRIPT)


def watch() -> None:
    """Once a run: the script runs again when the tab is hidden, and when it is seen again."""
    _mount(key=KEY, default={"hidden": False}, on_hidden_change=lambda: None)


def is_hidden() -> bool:
    """Whether the tab said that nobody sees it."""
    state = st.session_state.get(KEY)
    return bool(state is not None and state.get("hidden"))


def every(seconds: float) -> float | None:
    """How often a fragment runs again by itself."""
    return None if is_hidden() else seconds
