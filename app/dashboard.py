"""The dashboard's entry: which pages are there, in which order? `heddle dash` runs this file.

Settings come from the environment: HEDDLE_COLLECTOR, HEDDLE_CONTROLLER, HEDDLE_TOKEN,
HEDDLE_QUERY_TOKEN, HEDDLE_SQL_TOKEN, HEDDLE_SAVED.
"""

from __future__ import annotations

from importlib import import_module

import streamlit as st

from heddle.dashboards import nav, presence


def main() -> None:
    """Lay out the sidebar and run the page the address names."""
    st.set_page_config(page_title="Heddle", page_icon="🧵", layout="wide")
    pages = {
        name: st.Page(
            import_module(nav.module(name)).page,
            title=title,
            url_path=name,
            default=not nav.path(name),
        )
        for name, title in nav.PAGES.items()
    }
    nav.register(pages)
    chosen = st.navigation(list(pages.values()), position="hidden")
    with st.sidebar:
        st.subheader("Heddle", anchor=False)
        for name, page in pages.items():
            nav.link(name, page.title)
        presence.watch()
    chosen.run()


main()
