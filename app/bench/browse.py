"""How does a bench look at the pages: a real chromium, with a clock and a count of bytes?"""

from __future__ import annotations

import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.request import urlopen

from heddle.app.errors import fail

FLAGS: Final = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip
NUMBER: Final = '[data-testid="stMetricValue"]'
FIGURE: Final = ".js-plotly-plot .main-svg"
TABLE: Final = '[data-testid="stDataFrame"]'
FORM: Final = '[data-testid="stMain"] [data-testid="stSelectbox"]'
"""What Policies and Predictor are for is to be filled in."""
USEFUL: Final = {
    "compare": (FIGURE,),
    "predictor": (FORM,),
    "policies": (FORM,),
    "fleet": (f"{NUMBER}, {TABLE}",),
    "ask": (TABLE,),
}
"""What a page must show to be of use; the others a number and a figure."""
STILL: Final = '[data-testid="stApp"][data-test-script-state="notRunning"]'
SHOWN: Final = """selectors => selectors.every(one =>
  [...document.querySelectorAll(one)].some(found => found.getClientRects().length > 0))"""
DRAWN: Final = """() => document.querySelector('[data-testid="stSkeleton"]') === null &&
  [...document.querySelectorAll('[data-testid="stPlotlyChart"]')].every(
    one => one.querySelector('.main-svg') !== null)"""
WHOLE: Final = """() => document.querySelector('[class*="st-key-below_"]') === null"""
"""Nothing waits any more for the first screen to be shown."""
MARKS: Final = """() => Math.max(0, ...[...document.querySelectorAll('.js-plotly-plot')].map(
  figure => (figure.data || []).reduce((sum, trace) => sum + ((trace.x || []).length), 0)))"""
PATIENCE_MS: Final = 120_000
WATCH: Final = """() => {
  const app = document.querySelector('[data-testid="stApp"]')
  const name = 'data-test-script-state'
  window.heddleRan = app.getAttribute(name) === 'running'
  window.heddleWatch?.disconnect()
  window.heddleWatch = new MutationObserver(seen => {
    const states = [app.getAttribute(name), ...seen.map(one => one.oldValue)]
    window.heddleRan ||= states.includes('running')
  })
  window.heddleWatch.observe(app, { attributeFilter: [name], attributeOldValue: true })
}"""
"""A run may be over before anybody looks: then the page's next refresh was taken for it."""
RAN: Final = "() => window.heddleRan"
BEGIN_MS: Final = 2_000
"""A click that changes nothing starts no run; it is not waited for longer."""


@dataclass(frozen=True, slots=True)
class Opened:
    """One page from the address bar to standing still."""

    paint_s: float
    settled_s: float
    payload_bytes: int
    marks: int


class Tab:
    """One browser with one page in front."""

    def __init__(self, browser: Any, url: str) -> None:
        self._browser = browser
        self._url = url
        self._page: Any = None

    def opened(self, address: str) -> Opened:
        """A new page in a profile that was never here, as somebody with a link opens it."""
        if self._page is not None:
            self._page.context.close()
        size = {"width": 1280, "height": 1200}
        self._page = page = self._browser.new_context(viewport=size).new_page()
        received = [0]
        page.on("websocket", lambda socket: socket.on("framereceived", _counting(received)))
        useful = USEFUL.get(address.partition("?")[0], (NUMBER, FIGURE))
        began = time.perf_counter()
        page.goto(f"{self._url}/{address}", timeout=PATIENCE_MS)
        page.wait_for_function(SHOWN, arg=list(useful), timeout=PATIENCE_MS)
        paint_s = time.perf_counter() - began
        self._stands()
        page.wait_for_function(WHOLE, timeout=PATIENCE_MS)
        self._stands()
        settled_s = time.perf_counter() - began
        page.wait_for_timeout(500)
        return Opened(paint_s, settled_s, received[0], int(page.evaluate(MARKS)))

    def _stands(self) -> None:
        self._page.wait_for_selector(STILL, timeout=PATIENCE_MS)
        self._page.wait_for_function(DRAWN, timeout=PATIENCE_MS)

    def segment(self, word: str) -> float:
        """Click one of a row of choices; seconds until the page stands."""
        main = self._page.get_by_test_id("stMain")
        # Streamlit draws one that can be taken back as a button and one that cannot as a radio.
        found = main.locator('[role="radio"], button').filter(has_text=word)
        return self._clicked(found.last)

    def link(self, word: str) -> float:
        """Go to another page by the sidebar."""
        return self._clicked(self._page.get_by_test_id("stSidebar").get_by_role("link", name=word))

    def panel(self, word: str) -> float:
        """Open one of the tabs on the page."""
        return self._clicked(self._page.get_by_role("tab", name=word))

    def _clicked(self, target: Any) -> float:
        page: Any = self._page
        target.scroll_into_view_if_needed(timeout=PATIENCE_MS)
        page.evaluate(WATCH)
        began = time.perf_counter()
        target.click(timeout=PATIENCE_MS)
        clicked_s = time.perf_counter() - began
        with suppress(self._timeout):
            page.wait_for_function(RAN, timeout=BEGIN_MS)
            self._stands()
            return time.perf_counter() - began
        return clicked_s

    @property
    def _timeout(self) -> Any:
        from playwright.sync_api import TimeoutError as TimedOut

        return TimedOut


def _counting(received: list[int]) -> Any:
    def count(frame: bytes | str) -> None:
        received[0] += len(frame)

    return count


@contextmanager
def browsing(url: str) -> Generator[Tab]:
    """A chromium in front of the dashboard at *url*, once that answers."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        fail("this bench drives a browser: install playwright (make setup does)")
    path = shutil.which("chromium")
    if path is None:
        fail("this bench drives chromium; on Debian: apt-get install chromium")
    _wait(url)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        yield Tab(browser, url)
        browser.close()


def _wait(url: str, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with urlopen(f"{url}/_stcore/health", timeout=2):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
