"""The pages in a real browser: they load, show text as text, and outlive a service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import polars as pl
import pytest
from browser.fake_rollouts import HOSTILE, RUN, Story
from browser.fake_services import Switchboard, collector_app, served
from browser.pages import settle, streamlit
from playwright.sync_api import Browser, Page, expect

from heddle.dashboards import theme


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    opened = browser.new_page(viewport={"width": 1280, "height": 1600})
    yield opened
    opened.close()


def _open(page: Page, url: str, path: str = "", **address: str) -> list[str]:
    """The page, settled; the addresses outside this machine it asked for."""
    outside: list[str] = []

    def watch(request: Any) -> None:
        if not request.url.startswith((url, "data:", "blob:", url.replace("http", "ws"))):
            outside.append(request.url)

    page.on("request", watch)
    query = "&".join(f"{name}={quote(value)}" for name, value in address.items())
    page.goto(f"{url}/{path}?{query}")
    settle(page)
    return outside


def test_no_number_of_the_strip_is_cut_off(page: Page, dashboard: str) -> None:
    _open(page, dashboard, "", run=RUN, rollout="rollout-1")
    expect(page.get_by_text("12 min 05 s").first).to_be_visible()
    values = page.locator('[data-testid="stMetricValue"], [data-testid="stMetricValue"] *')
    cut_off = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText)"
    assert values.count() >= 6
    for width in (1280, 1400):
        page.set_viewport_size({"width": width, "height": 1600})
        page.wait_for_timeout(300)
        assert values.evaluate_all(cut_off) == []


def test_markup_in_span_text_is_shown_as_text(page: Page, browser: Browser) -> None:
    story = Story(("verl",), trajectories=8, hostile=True)
    for table in ("trajectories", "steps", "tool_calls", "moves", "spans"):
        for row in story.rows[table]:
            row["group_id"] = row["worker_id"] = row["because"] = HOSTILE
            if table == "spans":
                row["service"] = row["name"] = row["attrs"] = HOSTILE
    for table in ("strips", "partition"):
        for row in story.rows[table]:
            row["worker_id"] = HOSTILE + row["worker_id"]
    for row in story.rows["rollouts"]:
        row["preset"] = HOSTILE
    with served(collector_app(story)) as collector, streamlit(collector, collector) as url:
        for path in ("", "tail", "trajectory"):
            _open(page, url, path)
            assert page.locator('img[src="x"]').count() == 0
            assert page.locator('a[href^="javascript"]').count() == 0
            assert "owned" not in page.title()
        for tab in ("Decisions", "Tools and moves", "Spans"):
            page.get_by_role("tab", name=tab).click()
            page.wait_for_timeout(400)
        assert "owned" not in page.title()
        assert "<img src=x" in page.inner_text('[data-testid="stMain"]')


def test_a_deep_link_restores_the_view(page: Page, dashboard: str) -> None:
    name = "rollout-1-g01-s3"
    _open(page, dashboard, "trajectory", run=RUN, rollout="rollout-1", trajectory=name)
    chosen = page.locator("input[role=combobox]").evaluate_all("all => all.map(e => e.value)")
    assert [value for value in chosen if value.startswith(name)]
    assert "rollout-1 · verl" in chosen


def test_links_between_pages_keep_the_selection(page: Page, dashboard: str) -> None:
    _open(page, dashboard, "", run=RUN, rollout="rollout-1")
    page.get_by_test_id("stSidebar").get_by_role("link", name="Long tail").click()
    expect(page.get_by_role("heading", name="The long tail")).to_be_visible()
    assert "rollout=rollout-1" in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_look_the_same_from_whatever_folder_they_are_served(
    browser: Browser, dashboard: str, scheme: Any
) -> None:
    """Served from an empty one: a file of options beside the clone would not be found."""
    page = browser.new_page(color_scheme=scheme)
    _open(page, dashboard)
    look = "e => { const s = getComputedStyle(e); return [s.backgroundColor, s.fontSize]; }"
    behind, _ = page.get_by_test_id("stSidebar").evaluate(look)
    asked = theme.PAGES[f"theme.{scheme}.secondaryBackgroundColor"]
    red, green, blue = bytes.fromhex(asked.removeprefix("#"))
    assert behind == f"rgb({red}, {green}, {blue})"
    _, size = page.get_by_role("heading", level=1).evaluate(look)
    assert float(size.removesuffix("px")) == pytest.approx(1.7 * theme.PAGES["theme.baseFontSize"])
    page.close()


_FOCUSED = """() => {
    const it = document.activeElement, look = getComputedStyle(it);
    const rgb = /[0-9]+/g, light = c => c.match(rgb).slice(0, 3).reduce((a, b) => a + +b, 0) / 765;
    const ring = look.outlineStyle === 'none' ? 0 : parseFloat(look.outlineWidth);
    const sidebar = getComputedStyle(document.querySelector('[data-testid="stSidebar"]'));
    return {
        name: it.tagName === 'A' ? it.innerText.trim() : it.tagName,
        ring: ring, apart: Math.abs(light(look.outlineColor) - light(sidebar.backgroundColor)),
    };
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_link_and_table_that_a_key_leads_to_has_a_ring(
    browser: Browser, dashboard: str, scheme: Any
) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 1600}, color_scheme=scheme)
    _open(page, dashboard, "", run=RUN, rollout="rollout-1")
    seen: dict[str, dict[str, Any]] = {}
    for _ in range(40):
        page.keyboard.press("Tab")
        found = page.evaluate(_FOCUSED)
        seen.setdefault(found["name"], found)
    page.close()
    links = {"Overview", "GPUs idle", "Long tail", "Compare", "Policies", "Fleet", "Ask"}
    assert links | {"MAIN", "CANVAS"} <= seen.keys()
    for name in links | {"MAIN", "CANVAS"}:
        assert seen[name]["ring"] >= 2, name
        assert seen[name]["apart"] > 0.2, name


def test_a_row_opens_its_trajectory(page: Page, dashboard: str, story: Story) -> None:
    _open(page, dashboard, "", run=RUN, rollout="rollout-2")
    table = page.get_by_test_id("stDataFrame").first
    box = table.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 16, box["y"] + 52)
    expect(page.get_by_role("heading", name="Trajectory", exact=True)).to_be_visible()
    last = story.query("trajectories", rollout="rollout-2").sort("end_ns")["trajectory_id"][-1]
    page.wait_for_url(f"**trajectory={last}*")


def test_no_table_offers_a_download_whose_cells_a_sheet_would_run(
    page: Page, dashboard: str
) -> None:
    _open(page, dashboard, "", run=RUN, rollout="rollout-2")
    page.get_by_test_id("stDataFrame").first.hover()
    expect(page.get_by_role("button", name="Search").first).to_be_visible()
    expect(page.get_by_role("button", name="Download as CSV")).to_have_count(0)


@pytest.mark.parametrize("path", ["", "idle"])
def test_a_finding_opens_its_evidence_and_its_trajectory(
    page: Page, dashboard: str, story: Story, path: str
) -> None:
    _open(page, dashboard, path, run=RUN, rollout="rollout-1")
    last = story.query("trajectories", rollout="rollout-1").sort("end_ns")["trajectory_id"][-1]
    page.get_by_test_id("stMain").get_by_role("link", name="Evidence").click()
    expect(page.get_by_role("heading", name="The evidence of a finding")).to_be_visible()
    steps = story.query("steps", trajectory=last).height
    expect(page.get_by_text(f"{steps} row", exact=False).first).to_be_visible()
    page.get_by_role("link", name=f"Open {last}").click()
    expect(page.get_by_role("heading", name="Trajectory", exact=True)).to_be_visible()
    page.wait_for_url(f"**trajectory={last}*")


def test_a_switch_made_in_the_page_reaches_the_controller(
    page: Page, dashboard: str, board: Switchboard
) -> None:
    _open(page, dashboard, "policies", run=RUN)
    page.get_by_role("button", name="heddle", exact=True).click()
    page.get_by_label("Who", exact=True).fill("ada")
    page.get_by_label("Why", exact=True).fill("long tail")
    page.get_by_label("Why", exact=True).press("Tab")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("The choices above are the ones in force.")).to_be_visible()
    assert board.switches["order"] == "longest-first"
    assert (board.audit[-1]["who"], board.audit[-1]["why"]) == ("ada", "long tail")


def test_a_hidden_tab_asks_nobody_and_asks_again_when_it_is_seen(page: Page) -> None:
    asked: list[str] = []

    class Asked(Story):
        def query(self, name: str, **filters: Any) -> pl.DataFrame:
            asked.append(name)
            return super().query(name, **filters)

    story = Asked(("verl",), trajectories=6, running=True)
    with served(collector_app(story)) as collector, streamlit(collector, collector) as url:
        _open(page, url)
        for hidden in (True, False):
            page.evaluate(
                "hidden => { Object.defineProperty(document, 'hidden', {get: () => hidden,"
                " configurable: true}); document.dispatchEvent(new Event('visibilitychange')); }",
                hidden,
            )
            page.wait_for_timeout(1_500)
            settle(page)
            seen = len(asked)
            page.wait_for_timeout(7_000)
            assert (len(asked) == seen) is hidden
