"""Regenerates docs/screenshots/*.png, light and dark.

`.venv/bin/python tests/browser/screenshots.py [page ...]`
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import Browser

sys.path.append(str(Path(__file__).resolve().parents[1]))
from browser.fake_rollouts import RUN, Story
from browser.fake_services import TOKEN, Switchboard, collector_app, controller_app, served
from browser.pages import ROOT, chromium, settle, streamlit

from heddle.dashboards.reports.trajectory import trajectory_report

SHOTS = ROOT / "docs" / "screenshots"
HEIGHTS = {"overview": 1700, "tail": 2000, "trajectory": 1250, "compare": 1350, "policies": 1250}


def main(widths: tuple[int, ...] = (1280,)) -> None:
    """Every page at every width and theme, and the report as a browser shows it."""
    story = Story()
    longest = story.query("trajectories", rollout="rollout-4").sort("end_ns")["trajectory_id"][-1]
    with (
        served(collector_app(story)) as collector,
        served(controller_app(Switchboard())) as controller,
        streamlit(collector, controller, TOKEN) as url,
        chromium() as browser,
    ):
        for theme in ("light", "dark"):
            for width in widths:
                for page in sys.argv[1:] or HEIGHTS:
                    path = "" if page == "overview" else page
                    address = f"{url}/{path}?run={RUN}&trajectory={longest}"
                    _shoot(browser, address, page, theme, width)
            report = trajectory_report(story, RUN, longest).to_html()  # type: ignore[arg-type]
            _shoot_report(browser, report, theme)


def _shoot(browser: Browser, address: str, name: str, theme: str, width: int) -> None:
    size = {"width": width, "height": HEIGHTS[name]}
    page = browser.new_page(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
    page.goto(address, timeout=120_000)
    settle(page)
    suffix = "" if width == 1280 else f"-{width}"
    page.screenshot(path=SHOTS / f"{name}-{theme}{suffix}.png")
    page.close()


def _shoot_report(browser: Browser, html: str, theme: str) -> None:
    size = {"width": 1080, "height": 1100}
    page = browser.new_page(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
    page.set_content(html)
    page.screenshot(path=SHOTS / f"report-{theme}.png", full_page=True)
    page.close()


if __name__ == "__main__":
    main()
