"""A real Streamlit and a real chromium, shared by the browser tests and the screenshots."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


@contextmanager
def streamlit(collector: str, controller: str, token: str | None = None) -> Generator[str]:
    """`heddle dash` in a process and folder of its own on a free port; its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {**os.environ, "HEDDLE_TOKEN": token} if token else None
    dash = [sys.executable, "-m", "heddle.app.cli", "dash", "--port", str(port)]
    asked = ["--collector", collector, "--controller", controller]
    with tempfile.TemporaryDirectory(prefix="heddle-pages-") as data:
        command = [*dash, *asked, "--data", data]
        process = subprocess.Popen(command, cwd=data, env=env, stdout=subprocess.DEVNULL)
        try:
            _wait(f"http://127.0.0.1:{port}/_stcore/health")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=20)


def _wait(url: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with urlopen(url, timeout=2):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@contextmanager
def chromium() -> Generator[Browser]:
    """Debian's chromium; playwright downloads nothing."""
    path = shutil.which("chromium") or "/usr/bin/chromium"
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield browser
        browser.close()


def settle(page: Page, timeout_ms: float = 120_000) -> None:
    """Until nothing waits for the first screen, no script runs and every placeholder is filled."""
    still = '[data-testid="stApp"][data-test-script-state="notRunning"]'
    page.wait_for_selector(still, timeout=timeout_ms)
    page.wait_for_function(
        "document.querySelector('[class*=\"st-key-below_\"]') === null", timeout=timeout_ms
    )
    page.wait_for_selector(still, timeout=timeout_ms)
    page.wait_for_function(
        "document.querySelectorAll('[data-testid=\"stSkeleton\"]').length === 0", timeout=timeout_ms
    )
    page.wait_for_timeout(700)
