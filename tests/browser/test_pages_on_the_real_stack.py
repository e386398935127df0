"""The pages in a real browser on a real stack: collector, controller and an emulated fleet."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from browser import screenshots
from browser.pages import settle, streamlit
from playwright.sync_api import Browser, Page, expect

from heddle.app import compose
from heddle.app.demo import Bar, DemoOptions, run_demo
from heddle.app.rollouts import Session
from heddle.app.settings import load
from heddle.app.supervise import Supervisor

RUN = "browser"


@dataclass(frozen=True)
class Real:
    """A stack that has played a small demo, and the dashboard in front of it."""

    stack: compose.Stack
    supervisor: Supervisor
    dashboard: str


def _play(session: Session) -> None:
    """In a thread of its own: playwright's event loop runs in this one."""
    silent: Bar = lambda *_: nullcontext(lambda _: None)  # noqa: E731
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run_demo, session, DemoOptions(trajectories=8), silent).result()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    data = tmp_path_factory.mktemp("stack")
    settings = load({"data": data, "fleet.gpus": 2, "fleet.speed": 60.0})
    with Supervisor(data / "logs") as supervisor:
        stack = compose.launch(supervisor, settings, strict=False, dashboard=False)
        with Session(stack, RUN, watch=supervisor.check) as session:
            _play(session)
        with streamlit(stack.query_url, stack.controller_url, stack.token) as url:
            yield Real(stack, supervisor, url)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    opened = browser.new_page(viewport={"width": 1280, "height": 1600})
    yield opened
    opened.close()


def _open(page: Page, real: Real, path: str) -> None:
    page.goto(f"{real.dashboard}/{path}?run={RUN}")
    settle(page)
    assert page.locator('[data-testid="stException"]').count() == 0


@pytest.mark.parametrize("path", ["", "idle", "tail", "trajectory", "compare", "policies"])
def test_every_page_shows_a_real_rollout_and_says_whose_time_it_is(
    page: Page, real: Real, path: str
) -> None:
    _open(page, real, path)
    expect(page.get_by_text("emulated fleet, x60: times are fleet time")).to_be_visible()
    if path != "policies":
        assert page.get_by_test_id("stPlotlyChart").count() >= 1


def test_a_switch_made_in_the_page_is_in_force_in_the_real_controller(
    page: Page, real: Real
) -> None:
    _open(page, real, "policies")
    page.get_by_role("button", name="slime", exact=True).click()
    settle(page)
    page.get_by_label("Who", exact=True).fill("ada")
    page.get_by_label("Why", exact=True).fill("long tail")
    page.get_by_label("Why", exact=True).press("Tab")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("The choices above are the ones in force.")).to_be_visible()
    from heddle.controller.client import ControllerClient

    with ControllerClient(real.stack.controller_url) as controller:
        assert controller.switches(RUN).preset == "slime"
        change = max(controller.audit(), key=lambda entry: entry.version)
    assert (change.who, change.why) == ("ada", "long tail")


def test_screenshots_can_be_taken_of_a_running_stack(
    real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: Browser
) -> None:
    monkeypatch.setattr(screenshots, "chromium", lambda: nullcontext(browser))
    there: list[Any] = ["--dashboard", real.dashboard, "--collector", real.stack.query_url]
    screenshots.main([*there, "--to", str(tmp_path), "idle"])
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == ["idle-dark.png", "idle-light.png", "report-dark.png", "report-light.png"]
