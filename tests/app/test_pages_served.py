"""Streamlit's files come from memory, unchanged, and its index names what the pages need next."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import streamlit
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from heddle.app.light_plotly import light
from heddle.app.pages import EAGER, EAGER_MARK, RUN_SOON, Pages, announced
from heddle.dashboards import nav, presence

STATIC = Path(streamlit.__file__).parent / "static"
SCRIPTS = STATIC / "static/js"
INDEX = (STATIC / "index.html").read_text()


def _client() -> TestClient:
    def rest(_request: object) -> PlainTextResponse:
        return PlainTextResponse("Streamlit's own")

    routes = [Route("/{path:path}", rest, methods=["GET", "POST"])]
    return TestClient(Starlette(routes=routes, middleware=[Middleware(Pages, static=STATIC)]))


@pytest.mark.parametrize("part", ["DataFrame", "react-dom", "index"])
def test_a_script_is_the_bytes_on_the_disk_and_kept_by_browsers(part: str) -> None:
    script = next(SCRIPTS.glob(f"{part}.*.js"))
    mark = EAGER_MARK if part in EAGER else b""
    for _ in range(2):
        answer = _client().get(f"/static/js/{script.name}")
        assert answer.content == mark + script.read_bytes()
        assert "javascript" in answer.headers["content-type"]
        assert "immutable" in answer.headers["cache-control"]


def test_plotly_comes_with_our_kinds_alone_and_is_marked() -> None:
    script = next(SCRIPTS.glob("PlotlyChart.*.js"))
    sent = _client().get(f"/static/js/{script.name}").content
    assert sent == EAGER_MARK + light(script.read_text()).encode()


def test_every_page_gets_the_index_and_never_an_old_one() -> None:
    client = _client()
    for page in nav.PAGES:
        answer = client.get(f"/{nav.path(page)}?run=r1")
        assert answer.text == announced(INDEX, SCRIPTS)
        assert answer.headers["cache-control"] == "no-cache"


def test_what_is_not_a_file_of_streamlits_is_left_to_streamlit() -> None:
    client = _client()
    for path in ("_stcore/health", "static/js/none.js", "static/../../secret", "nowhere"):
        assert client.get(f"/{path}").text == "Streamlit's own"
    assert client.post("/idle").text == "Streamlit's own"


def test_each_announced_script_exists_is_new_and_the_heavy_ones_are_marked() -> None:
    added = announced(INDEX, SCRIPTS).replace(INDEX.partition("</head>")[0], "")
    names = re.findall(r"static/js/([^\"]+)", added)
    assert len(names) == len(set(names)) > len(RUN_SOON)
    assert all((SCRIPTS / name).is_file() and name not in INDEX for name in names)
    marked = re.findall(rf'static/js/(\w+)[^"]*" {presence.RUN_MARK}>', added)
    assert sorted(marked) == sorted(RUN_SOON)
    assert f"link[{presence.RUN_MARK}]" in presence._SCRIPT
