"""What is selected, and how does it survive in the address bar?

The URL is the truth: widgets are set from it before they are drawn and write back to it when they
change, so that a link is a finding. Widget state alone never decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import streamlit as st

CARRIED: Final = ("run", "rollout", "tz", "live", "theme")
"""Selections that go along from page to page; the others belong to their page."""


def get(name: str, default: str = "") -> str:
    """The selection called *name*, as text."""
    return st.query_params.get(name, default)


def put(name: str, value: str | None) -> None:
    """Select; None takes the name out of the address."""
    if value is None:
        st.query_params.pop(name, None)
    else:
        st.query_params[name] = value


def carried(**more: str) -> dict[str, str]:
    """The selections a link to another page takes along."""
    kept = {name: st.query_params[name] for name in CARRIED if name in st.query_params}
    return kept | more


def _write(name: str, key: str) -> None:
    put(name, st.session_state[key])


def choose(
    name: str,
    label: str,
    options: Sequence[str],
    *,
    default: str,
    said: Callable[[str], str] = str,
    widget: Callable[..., Any] = st.selectbox,
    **look: Any,
) -> str:
    """One of *options*, kept in the URL under *name*; *default* where the URL has none."""
    now = get(name, default)
    key = f"choose_{name}"
    st.session_state[key] = now if now in options else default
    widget(label, options, key=key, format_func=said, on_change=_write, args=(name, key), **look)
    return st.session_state[key] or default


def several(name: str, label: str, options: Sequence[str], *, default: list[str]) -> list[str]:
    """Any of *options*, in their order, kept in the URL with commas; the default is left out."""
    asked = get(name)
    now = [one for one in options if one in asked.split(",")] if asked else default
    key = f"several_{name}"
    st.session_state[key] = now

    def write() -> None:
        kept = [one for one in options if one in st.session_state[key]]
        put(name, None if kept == default else ",".join(kept))

    st.multiselect(label, options, key=key, on_change=write)
    return [one for one in options if one in st.session_state[key]]


def flag(name: str, label: str, *, default: bool, **look: Any) -> bool:
    """A toggle kept in the URL as `1` or `0`."""
    key = f"flag_{name}"
    st.session_state[key] = get(name, "1" if default else "0") == "1"

    def write() -> None:
        put(name, "1" if st.session_state[key] else "0")

    return st.toggle(label, key=key, on_change=write, **look)


def tabs(name: str, labels: Sequence[str]) -> Sequence[Any]:
    """Tabs whose open one is kept in the URL; what is in one that is not `.open` can wait."""
    key = f"tabs_{name}"
    st.session_state[key] = get(name) if get(name) in labels else labels[0]
    return st.tabs(labels, key=key, on_change=_write, args=(name, key))
