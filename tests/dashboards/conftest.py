"""The story of tests/browser for pages without a browser: clients replaced, caches empty."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import streamlit as st

from heddle.dashboards import client

sys.path.append(str(Path(__file__).resolve().parents[1]))


@pytest.fixture(autouse=True)
def nobody_at_the_usual_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever listens at the default ports of this machine is no part of these tests."""
    monkeypatch.setenv("HEDDLE_CONTROLLER", "http://127.0.0.1:9")
    monkeypatch.setenv("HEDDLE_COLLECTOR", "http://127.0.0.1:9")


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Put a collector behind the pages; call it again to replace it."""

    def put(collector: Any) -> None:
        for name in ("collector", "reader", "watcher"):
            monkeypatch.setattr(client, name, lambda: collector)
        client.forget()

    st.cache_data.clear()
    st.cache_resource.clear()
    return put
