"""Regenerates docs/screenshots/*.png, light and dark.

`.venv/bin/python tests/browser/screenshots.py [page ...]` draws a made-up story;
`... --dashboard URL --collector URL [page ...]` takes them from a running stack, as `heddle demo`
prints it: its latest run, last rollout (or --rollout), last trajectory to finish. Pictures keep
256 colours: a third of the bytes, and the same to the eye.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Browser

sys.path.append(str(Path(__file__).resolve().parents[1]))
from browser.fake_explained import explain
from browser.fake_rollouts import Story
from browser.fake_services import TOKEN, Switchboard, collector_app, controller_app, served
from browser.pages import ROOT, chromium, settle, streamlit

from heddle.collector.client import CollectorClient
from heddle.dashboards import nav
from heddle.dashboards.facts import recorded_runs
from heddle.dashboards.reports.trajectory import trajectory_report
from heddle.dashboards.views.ask import EXAMPLES

SHOTS = ROOT / "docs" / "screenshots"
PAGES: dict[str, dict[str, str]] = {name: {} for name in nav.PAGES} | {
    "ask": {"sql": EXAMPLES["Tail by task"]}
}
"""Page to what else is in its address."""
LEAST = 900


@dataclass(frozen=True)
class Scene:
    """A dashboard, what to select on it, and the collector behind it."""

    dashboard: str
    store: Any
    run: str
    rollout: str
    trajectory: str

    def address(self, page: str) -> str:
        """The page with the selection."""
        chosen = {"run": self.run, "rollout": self.rollout, "trajectory": self.trajectory}
        chosen |= PAGES[page]
        return f"{self.dashboard.rstrip('/')}/{nav.path(page)}?{urlencode(chosen)}"


def main(words: Sequence[str] | None = None) -> None:
    """Every page at every width and theme, and the report as a browser shows it."""
    asked = _asked(words)
    taken = (
        _running(asked.dashboard, asked.collector, asked.rollout) if asked.dashboard else _made_up()
    )
    with taken as scene, chromium() as browser:
        asked.to.mkdir(parents=True, exist_ok=True)
        for theme in ("light", "dark"):
            for width in asked.widths:
                for page in asked.pages or PAGES:
                    suffix = "" if width == 1280 else f"-{width}"
                    path = asked.to / f"{page}-{theme}{suffix}.png"
                    _shoot(browser, scene.address(page), path, theme, width)
            report = trajectory_report(scene.store, scene.run, scene.trajectory).to_html()
            _shoot_report(browser, report, asked.to / f"report-{theme}.png", theme)


def _asked(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", help=f"of {', '.join(PAGES)}; all when none is named")
    parser.add_argument("--dashboard", help="address of a running dashboard")
    parser.add_argument("--collector", default="http://127.0.0.1:4319", help="its collector")
    parser.add_argument("--rollout", help="of the latest run; its last one where none is named")
    parser.add_argument("--to", type=Path, default=SHOTS, help="the folder they are written to")
    parser.add_argument("--widths", type=int, nargs="+", default=[1280, 1920])
    asked = parser.parse_args(words)
    if unknown := set(asked.pages) - PAGES.keys():
        parser.error(f"no page called {', '.join(sorted(unknown))}; choose of {', '.join(PAGES)}")
    return asked


@contextmanager
def _made_up() -> Generator[Scene]:
    story = explain(Story())
    with (
        served(collector_app(story)) as collector,
        served(controller_app(Switchboard())) as controller,
        streamlit(collector, controller, TOKEN) as url,
    ):
        yield scene_of(url, story)


@contextmanager
def _running(dashboard: str, collector: str, rollout: str | None) -> Generator[Scene]:
    with CollectorClient(collector) as client:
        yield scene_of(dashboard, client, rollout)


def scene_of(dashboard: str, store: Any, rollout: str | None = None) -> Scene:
    """The latest run's last rollout or the named one, and the trajectory it waited for."""
    runs = recorded_runs(store.query("runs"))
    rollouts = store.query("rollouts", run=runs[0]) if runs else store.query("rollouts")
    if rollouts.is_empty():
        sys.exit("the collector holds no rollout; run heddle demo first")
    rollout = rollout or str(rollouts["rollout_id"][0])
    ended = store.query("trajectories", run=runs[0], rollout=rollout).drop_nulls("end_ns")
    if ended.is_empty():
        sys.exit(f"no trajectory of rollout {rollout} has ended yet; wait for the first")
    last = ended.sort("end_ns", "trajectory_id")["trajectory_id"][-1]
    return Scene(dashboard, store, runs[0], rollout, last)


def _shoot(browser: Browser, address: str, path: Path, theme: str, width: int) -> None:
    """As tall as the page: Streamlit scrolls inside, so that a full-page picture would be cut."""
    page = browser.new_page(
        viewport={"width": width, "height": LEAST},
        color_scheme=theme,  # type: ignore[arg-type]
    )
    page.goto(address, timeout=120_000)
    settle(page)
    tall = page.evaluate("document.querySelector('[data-testid=\"stMain\"]').scrollHeight")
    page.set_viewport_size({"width": width, "height": max(LEAST, int(tall))})
    settle(page)
    page.screenshot(path=path)
    page.close()
    _shrink(path)


def _shoot_report(browser: Browser, html: str, path: Path, theme: str) -> None:
    size = {"width": 1080, "height": 1100}
    page = browser.new_page(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
    page.set_content(html)
    page.screenshot(path=path, full_page=True)
    page.close()
    _shrink(path)


def _shrink(path: Path) -> None:
    with Image.open(path) as taken:
        taken.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
