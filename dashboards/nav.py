"""Which pages are there, and how does one reach another with its selection?

Links carry the selection in their address; Streamlit clears the address when a page changes, so
every link names what it keeps.
"""

from __future__ import annotations

from typing import Any, Final

import streamlit as st

from heddle.dashboards import scope

PAGES: Final = {
    "overview": "Overview",
    "idle": "GPUs idle",
    "tail": "Long tail",
    "trajectory": "Trajectory",
    "compare": "Compare",
    "predictor": "Predictor",
    "policies": "Policies",
    "fleet": "Fleet",
    "ask": "Ask",
}
"""Module of views, which is its address too, to what the sidebar calls it; the first one is what
the bare address shows."""
_PAGES: Final = "nav_pages"
_GOTO: Final = "nav_goto"


def path(page: str) -> str:
    """Its address below the dashboard's."""
    return "" if page == next(iter(PAGES)) else page


def module(page: str) -> str:
    """Where it is written."""
    return f"heddle.dashboards.views.{page}"


def register(pages: dict[str, Any]) -> None:
    """The entry's st.Page objects by url path, for this session."""
    st.session_state[_PAGES] = pages


def go(page: str, **selection: str) -> None:
    """Ask for another page; `follow` turns to it. Safe in a widget's callback."""
    st.session_state[_GOTO] = (page, scope.carried(**selection))


def follow() -> None:
    """Turn to the page a callback asked for, if one did."""
    asked = st.session_state.pop(_GOTO, None)
    pages = st.session_state.get(_PAGES, {})
    if asked and asked[0] in pages:
        st.switch_page(pages[asked[0]], query_params=asked[1])


def asked() -> bool:
    """Whether a callback asked for another page that `follow` has not turned to yet."""
    return _GOTO in st.session_state


def link(page: str, label: str, icon: str | None = None, **selection: str) -> None:
    """A link that keeps the selection; plain text where the page is not registered."""
    found = st.session_state.get(_PAGES, {}).get(page)
    if found is None:
        st.text(label)
    else:
        st.page_link(found, label=label, icon=icon, query_params=scope.carried(**selection))
