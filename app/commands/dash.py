"""`heddle dash`: the pages in a browser."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from heddle.app.commands import options

TYPER = options.help_with(
    "heddle dash", "heddle dash --collector http://host:4319 --controller http://host:8600"
)


def run(
    port: Annotated[int | None, typer.Option(help="Port of the pages.")] = None,
    host: options.Host = None,
    collector: options.Collector = None,
    controller: options.Controller = None,
    data: options.Data = None,
    token_file: options.TokenFile = None,
) -> None:
    """Serve the dashboard."""
    from heddle.app import checks
    from heddle.app.collecting import tokens
    from heddle.app.errors import PortInUse
    from heddle.app.settings import load, token
    from heddle.app.supervise import is_free

    flags = {"collector": collector, "controller": controller, "token_file": token_file}
    settings = load({"ports.dashboard": port, "host": host, "data": data, **flags})
    checks.host(settings.host)
    port = settings.ports.dashboard
    if not is_free(port, settings.host):
        raise PortInUse(port, "dashboard", "choose another with --port")
    os.environ["HEDDLE_COLLECTOR"] = settings.query_url
    os.environ["HEDDLE_CONTROLLER"] = settings.controller_url
    os.environ["HEDDLE_TOKEN"] = token(settings)
    os.environ["HEDDLE_SAVED"] = str(settings.data / "queries.json")
    held = tokens(settings.collect)
    for door, secret in (("QUERY", held.query), ("SQL", held.sql)):
        os.environ[f"HEDDLE_{door}_TOKEN"] = secret or ""
    _serve(Path(__file__).parents[1] / "dashboard.py", settings.host, port)


def _serve(script: Path, host: str, port: int) -> None:
    """Streamlit in this process, so that it ends when its parent does."""
    import gc

    import streamlit
    from starlette.middleware import Middleware

    from heddle.app.pages import Pages
    from heddle.dashboards import nav, theme
    from heddle.dashboards.figures import makespan

    # Or the first visitor waits for them: 4.7 s of CPU. Plotly imports with the first figure.
    for module in (*map(nav.module, nav.PAGES), "pandas"):
        import_module(module)
    makespan.comparison([makespan.Bar("", 1.0, 1.0)], "light")
    # What was imported stays; looking through it for garbage takes 0.15 s, and all tabs wait.
    gc.freeze()
    options = {
        "server.headless": True,
        "server.address": host,
        "server.port": port,
        "server.fileWatcherType": "none",
        "browser.gatherUsageStats": False,
        "client.toolbarMode": "minimal",
        "client.showErrorDetails": "type",
        **theme.PAGES,
        # After every run of a script or fragment: a third of this process's time.
        "runner.postScriptGC": False,
    }
    static = Path(streamlit.__file__).parent / "static"
    streamlit.App(script, middleware=[Middleware(Pages, static=static)]).run(config=options)
