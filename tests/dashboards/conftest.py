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
