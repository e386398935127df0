"""The dashboard's entry: which pages are there, in which order? `heddle dash` runs this file.

Settings come from the environment: HEDDLE_COLLECTOR, HEDDLE_CONTROLLER, HEDDLE_TOKEN,
HEDDLE_QUERY_TOKEN, HEDDLE_SQL_TOKEN, HEDDLE_SAVED.
"""

from __future__ import annotations

import streamlit as st

from heddle.dashboards import nav, presence
from heddle.dashboards.views import (
    ask,
    compare,
    fleet,
    idle,
    overview,
    policies,
    predictor,
    tail,
    trajectory,
)


def main() -> None:
    """Lay out the sidebar and run the page the address names."""
    st.set_page_config(page_title="Heddle", page_icon="🧵", layout="wide")
    pages = {
        "overview": st.Page(overview.page, title="Overview", url_path="overview", default=True),
        "idle": st.Page(idle.page, title="GPUs idle", url_path="idle"),
        "tail": st.Page(tail.page, title="Long tail", url_path="tail"),
        "trajectory": st.Page(trajectory.page, title="Trajectory", url_path="trajectory"),
        "compare": st.Page(compare.page, title="Compare", url_path="compare"),
        "predictor": st.Page(predictor.page, title="Predictor", url_path="predictor"),
        "policies": st.Page(policies.page, title="Policies", url_path="policies"),
        "fleet": st.Page(fleet.page, title="Fleet", url_path="fleet"),
        "ask": st.Page(ask.page, title="Ask", url_path="ask"),
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
