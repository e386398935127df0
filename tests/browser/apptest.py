"""A page without a browser: run it, fail on an exception box, read what it says."""

from __future__ import annotations

from typing import Any

from streamlit.testing.v1 import AppTest

from heddle.collector.errors import CollectorUnreachable


class Gone:
    """A collector that does not answer."""

    def query(self, name: str, **filters: Any) -> Any:
        message = "no collector answers at http://127.0.0.1:4319"
        raise CollectorUnreachable(message)

    def health(self) -> Any:
        return self.query("healthz")

    def tables(self) -> Any:
        return self.query("tables")

    def sql_page(self, text: str) -> Any:
        return self.query(text)


def _app(page: str) -> None:
    import importlib

    importlib.import_module(f"heddle.dashboards.views.{page}").page()


def opened(page: str, **address: str) -> AppTest:
    """The page after its first run, at the address with these selections."""
    at = AppTest.from_function(_app, args=(page,), default_timeout=60)
    for name, value in address.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception, at.exception[0].value
    return at


def said(at: AppTest) -> str:
    """All prose of the page."""
    return "\n".join(block.value for block in [*at.markdown, *at.text, *at.caption])
