"""How do Streamlit's own scripts reach a browser, and run there, before the page needs them?

A page takes 129 files of Streamlit's, 9 MB. Streamlit reads each from the disk at every visit, in
pieces of 64 kB (0.25 s of CPU), and a browser hears of plotly's 4.7 MB only when the first figure
arrives. Here they are served from memory, and the page names them while Python still asks the
collector. Of plotly only what our figures need is sent (light_plotly.py), and the scripts that all
runs at once begin with the line that says so; nothing else of theirs is changed, and what is not
known here is left to Streamlit.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from heddle.app import light_plotly
from heddle.dashboards import nav, presence

SOON: Final = ("PlotlyChart", "DataFrame", "Metric", "Html", "Selectbox", "ButtonGroup", "Tabs")
"""Parts of Streamlit's that our pages show first, heaviest first."""
RUN_SOON: Final = ("PlotlyChart", "DataFrame")
"""Those that take long to begin: dashboards.presence runs them while Python asks the collector."""
PLOTLY: Final = "PlotlyChart"
EAGER: Final = (PLOTLY, "index", "react-dom", "protobuf")
"""Scripts of which a page calls most: Chromium (136 on) compiles these whole, beside the page's own
thread, where it would compile each function when it is called (0.2 of 1.5 s of that thread)."""
EAGER_MARK: Final = b"//# allFunctionsCalledOnLoad\n"
_FOREVER: Final = {"cache-control": "public, immutable, max-age=31536000"}
_ANEW: Final = {"cache-control": "no-cache"}
_IMPORTS: Final = re.compile(r"""(?:from|import)\s*["'`]\./([\w.-]+\.js)["'`]""")
_HEAD_CHARS: Final = 8_000
"""A script names what it imports at its beginning."""


class Pages:
    """Middleware before Streamlit: its static files from memory, its index with more announced."""

    def __init__(self, app: ASGIApp, static: Path) -> None:
        self._app = app
        files = [one for one in (static / "static").rglob("*") if one.is_file()]
        self._files = {f"/{one.relative_to(static).as_posix()}": one for one in files}
        self._held: dict[str, Response] = {}
        index = announced((static / "index.html").read_text(), static / "static/js")
        page = Response(index, media_type="text/html", headers=_ANEW)
        self._held |= {f"/{nav.path(name)}": page for name in nav.PAGES}
        for path, file in self._files.items():
            if _part(file) == PLOTLY:  # or the first visitor waits 0.2 s for it
                self._found(path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what is ours to answer, and hand the rest on."""
        found = self._found(scope["path"]) if _is_read(scope) else None
        await (found or self._app)(scope, receive, send)

    def _found(self, path: str) -> Response | None:
        if path not in self._held and path in self._files:
            file = self._files[path]
            kind = mimetypes.guess_type(file.name)[0]
            self._held[path] = Response(_sent(file), media_type=kind, headers=_FOREVER)
        return self._held.get(path)


def _part(file: Path) -> str:
    """What of Streamlit's it holds: scripts are called part.hash.js."""
    return file.name.split(".")[0] if file.suffix == ".js" else ""


def _sent(file: Path) -> bytes:
    part = _part(file)
    body = light_plotly.light(file.read_text()).encode() if part == PLOTLY else file.read_bytes()
    return EAGER_MARK + body if part in EAGER else body


def _is_read(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["method"] == "GET"


def announced(index: str, scripts: Path) -> str:
    """*index* that names the scripts of SOON, and marks those to be run before they are needed."""
    chosen = [file for part in SOON for file in scripts.glob(f"{part}.*.js")]
    runs = {one.name for one in chosen if _part(one) in RUN_SOON}
    lines = [_line(name, is_run=name in runs) for name in _needed(chosen) if name not in index]
    return index.replace("</head>", "\n".join([*lines, "</head>"]))


def _line(name: str, *, is_run: bool) -> str:
    mark = f" {presence.RUN_MARK}" if is_run else ""
    return f'<link rel="modulepreload" crossorigin href="./static/js/{name}"{mark}>'


def _needed(chosen: Iterable[Path]) -> list[str]:
    """Names of these scripts and of all that they import, each once."""
    seen: dict[str, None] = {}
    waiting = list(chosen)
    while waiting:
        file = waiting.pop(0)
        if file.name in seen or not file.is_file():
            continue
        seen[file.name] = None
        head = file.read_text()[:_HEAD_CHARS]
        waiting += [file.parent / name for name in _IMPORTS.findall(head)]
    return list(seen)
