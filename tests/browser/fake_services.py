"""The two services over real HTTP on ephemeral ports, answering from a Story."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import polars as pl
import uvicorn
from browser.fake_rollouts import START_NS, Story
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from heddle.collector import records

TOKEN = "let-me-in"
HEALTH = {
    **dict.fromkeys(("workers", "alive", "trajectories", "held", "decision_failures"), 0),
    **{"ok": True, "last_failure": "", "spans_dropped": 0},
    **{"clock_origin_ns": START_NS, "clock_speed": 20.0},
}
FCFS = {
    "order": "fcfs",
    "admission": "none",
    "placement": "sticky",
    "migration": "off",
    "allocation": "fixed-1",
    "prediction": "none",
}
HEDDLE = {
    "order": "longest-first",
    "admission": "hold-kv",
    "placement": "mix",
    "migration": "rebalance",
    "allocation": "simulated",
    "prediction": "group-history",
}


class Switchboard:
    """What the controller would hold: switches, presets, audit."""

    def __init__(self) -> None:
        self.switches = dict(FCFS)
        self.audit: list[dict[str, Any]] = [
            {
                "version": index,
                "run": "",
                "at_ns": START_NS + index * 1_000_000_000,
                "choice": choice,
                "before": FCFS[choice],
                "after": after,
                "who": "mira",
                "why": "the tail bubble was 28 % of GPU time",
            }
            for index, (choice, after) in enumerate(list(HEDDLE.items())[:3])
        ]

    def read(self) -> dict[str, Any]:
        presets = {"verl": FCFS, "heddle": HEDDLE}
        named = [name for name, policies in presets.items() if policies == self.switches]
        known = {choice: sorted({FCFS[choice], HEDDLE[choice]}) for choice in FCFS}
        return {
            "run": "",
            "preset": named[0] if named else None,
            "switches": self.switches,
            "known": known,
            "presets": presets,
        }

    def change(self, asked: dict[str, Any]) -> dict[str, Any]:
        wanted = {"verl": FCFS, "heddle": HEDDLE}.get(asked.get("preset") or "", {})
        wanted = {**wanted, **{c: asked[c] for c in FCFS if asked.get(c)}}
        for choice, after in wanted.items():
            if after != self.switches[choice]:
                row = {
                    "version": len(self.audit),
                    "run": "",
                    "at_ns": START_NS,
                    "choice": choice,
                    "before": self.switches[choice],
                }
                row |= {"after": after, "who": asked["who"], "why": asked["why"]}
                self.audit.append(row)
        self.switches.update(wanted)
        return self.read()


def collector_app(story: Story) -> Starlette:
    async def named(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in records.FRAMES:
            return JSONResponse({"error": f"no query called {name!r}"}, 404)
        frame = story.query(name, **dict(request.query_params))
        return _arrow(frame)

    async def tables(_: Request) -> Response:
        return JSONResponse(story.tables())

    async def sql(request: Request) -> Response:
        return _arrow(story.sql_page((await request.json())["sql"])[0])

    async def health(_: Request) -> Response:
        return JSONResponse(story.health())

    return Starlette(
        routes=[
            Route("/healthz", health),
            Route("/v1/q/{name}", named),
            Route("/v1/tables", tables),
            Route("/v1/sql", sql, methods=["POST"]),
        ]
    )


def _arrow(frame: pl.DataFrame) -> Response:
    body = io.BytesIO()
    frame.write_ipc_stream(body)
    return Response(body.getvalue(), headers={"X-Heddle-Total": str(frame.height)})


def controller_app(board: Switchboard) -> Starlette:
    async def switches(request: Request) -> Response:
        if request.method == "GET":
            return JSONResponse(board.read())
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return JSONResponse({"error": "the token is missing or wrong"}, 401)
        return JSONResponse(board.change(await request.json()))

    async def audit(_: Request) -> Response:
        return JSONResponse(board.audit)

    async def health(_: Request) -> Response:
        return JSONResponse(HEALTH)

    return Starlette(
        routes=[
            Route("/healthz", health),
            Route("/heddle/v1/healthz", health),
            Route("/heddle/v1/switches", switches, methods=["GET", "POST"]),
            Route("/heddle/v1/switches/audit", audit),
        ]
    )


@contextmanager
def served(app: Starlette, port: int = 0) -> Generator[str]:
    """*app* on loopback until the block ends; its address."""
    listener = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()
