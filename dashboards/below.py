"""What stands below the first screen waits until the browser shows what stands above it.

A browser needs as long for six figures and three tables as Python and collector together; drawn in
one go, nothing of a page can be read before all of it. Where no browser runs scripts (tests, a
session without one) all is drawn at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import streamlit as st
from streamlit.components import v2

WAITS: Final = "below"
"""Keys of what still waits begin like this: `.st-key-below_...` on the page."""
_SHOWN: Final = "below_shown"
_TITLE: Final = "below_title"
# A figure without a drawing, or a skeleton, is not shown yet; after 20 s whatever is missing there
# shall not keep the rest back. It is told again with another number until the rest has come: told
# once, the rest stayed away in 2 of 12 page loads under load, for a cause that was not found.
_SCRIPT: Final = """
export default function ({ setStateValue }) {
  const until = performance.now() + 20000;
  const empty = (one) => !one.querySelector(".main-svg");
  const isMissing = () =>
    document.querySelector('[data-testid="stSkeleton"]') !== null ||
    [...document.querySelectorAll('[data-testid="stPlotlyChart"]')].some(empty);
  let timer = 0;
  const tell = () => {
    setStateValue("painted", performance.now());
    timer = setTimeout(tell, 2000);
  };
  const look = () => {
    const isSoon = isMissing() && performance.now() < until;
    timer = isSoon ? setTimeout(look, 30) : setTimeout(tell, 30);
  };
  timer = setTimeout(look, 0);
  return () => clearTimeout(timer);
}
"""
_mount = v2.component("heddle_below", js=_SCRIPT)


def opened(title: str) -> None:
    """A page begins; what another one has shown does not count here."""
    if st.session_state.get(_TITLE) != title:
        st.session_state[_TITLE] = title
        st.session_state[_SHOWN] = set[str]()


def has_browser() -> bool:
    """Whether the session is a browser's, which says that it is a Mozilla."""
    return "Mozilla" in (st.context.headers.get("User-Agent") or "")


def may_draw(key: str) -> bool:
    """Whether *key*'s turn has come; else it is waited for, and the fragment runs again then."""
    shown: set[str] = st.session_state.setdefault(_SHOWN, set[str]())
    if key in shown or not has_browser():
        return True
    told = _mount(key=f"{WAITS}_{key}", default={"painted": 0}, on_painted_change=lambda: None)
    if not told.get("painted"):
        return False
    shown.add(key)
    return True


def draw(key: str, what: Callable[[], None]) -> None:
    """A fragment of its own: *what*, as soon as it may."""
    st.fragment(_draw)(key, what)


def _draw(key: str, what: Callable[[], None]) -> None:
    if may_draw(key):
        what()
