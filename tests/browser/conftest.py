"""One chromium for all browser tests; services and dashboards per test where they must die."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))

from browser.fake_explained import explain
from browser.fake_rollouts import Story
from browser.fake_services import TOKEN, Switchboard, collector_app, controller_app, served
from browser.pages import chromium, streamlit
from browser.real_stack import Real, real_stack
from playwright.sync_api import Browser, expect

# Playwright's own 5 s are little for a page of Streamlit beside other work.
expect.set_options(timeout=30_000)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def story() -> Story:
    """Hostile where it can be: every name a span may carry is markup."""
    story = explain(Story(("verl", "heddle"), trajectories=32, hostile=True))
    for row in story.rows["rollouts"]:
        row["makespan_s"] = 725.0
    return story


@pytest.fixture(scope="session")
def board() -> Switchboard:
    return Switchboard()


@pytest.fixture(scope="session")
def dashboard(story: Story, board: Switchboard) -> Iterator[str]:
    """The address of a dashboard with both services behind it."""
    with (
        served(collector_app(story)) as collector,
        served(controller_app(board)) as controller,
        streamlit(collector, controller, TOKEN) as url,
    ):
        yield url


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """One for every test that needs the services themselves."""
    with real_stack(tmp_path_factory.mktemp("stack")) as real:
        yield real
