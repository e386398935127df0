"""What stands below the first screen is asked for when the first screen is drawn, and stays."""

from __future__ import annotations

import pytest
from browser.pages import settle
from playwright.sync_api import Browser

WAITS = '[class*="st-key-below_"]'
NOTED = """
window.noted = {};
const note = (name, selector) => {
  if (!(name in window.noted) && document.querySelector(selector))
    window.noted[name] = performance.now();
};
new MutationObserver(() => {
  note("figure", ".js-plotly-plot .main-svg");
  note("table", '[data-testid="stDataFrame"]');
}).observe(document, { childList: true, subtree: true });
"""


@pytest.mark.parametrize("page_name", ["", "tail"])
def test_a_figure_is_drawn_before_tables_are_sent(
    browser: Browser, dashboard: str, page_name: str
) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.add_init_script(NOTED)
    page.goto(f"{dashboard}/{page_name}")
    settle(page)
    noted = page.evaluate("window.noted")
    assert noted["figure"] < noted["table"]
    page.close()


def test_plotly_comes_with_the_kinds_that_figures_have(browser: Browser, dashboard: str) -> None:
    """What the tests look at is the lighter plotly that `heddle dash` sends, not Streamlit's."""
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    scripts: list[str] = []
    page.on("response", lambda answer: scripts.append(answer.url))
    page.goto(dashboard)
    settle(page)
    sent = next(url for url in scripts if "/PlotlyChart." in url)
    assert page.evaluate("async url => (await (await fetch(url)).text()).length", sent) < 2_500_000
    kinds = page.evaluate("Object.keys(Plotly.PlotSchema.get().traces).sort()")
    assert kinds == ["bar", "scatter"]
    page.close()


def test_a_choice_made_above_takes_nothing_below_away(browser: Browser, dashboard: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.goto(f"{dashboard}/tail")
    settle(page)
    tables = page.locator('[data-testid="stDataFrame"]').count()
    page.get_by_test_id("stMain").get_by_role("radio", name="steps").click()
    page.wait_for_url("**measure=steps**")
    assert page.locator(WAITS).count() == 0
    settle(page)
    assert page.locator('[data-testid="stDataFrame"]').count() == tables > 0
    page.close()
