"""How do readers run SQL, and operators seal and delete, over the query port?

POST with a JSON body and the token of that door; a browser page of another site can send neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import duckdb
import orjson
import pyarrow as pa
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from heddle.collector import retention, sealing
from heddle.collector.client import TOTAL_HEADER, TRUNCATED_HEADER
from heddle.collector.errors import CollectorError, QueryRefused
from heddle.collector.queries.sql import Limits, select
from heddle.collector.security import Tokens, bearer, is_loopback, is_own_name
from heddle.collector.store import Store

ARROW: Final = "application/vnd.apache.arrow.stream"
_TABLES: Final = (
    "SELECT table_name, column_name, data_type FROM duckdb_columns()"
    " WHERE schema_name = 'main' AND NOT internal ORDER BY table_name, column_index"
)
_MOST_BYTES: Final = 1 << 20
_LONGEST_S: Final = 1_000_000_000
_WHOSE: Final = ("run", "rollout")
Answering = Callable[[dict[str, Any]], Response]


class OwnNames:
    """On loopback, refuses requests whose Host is the name of another site."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app, self._host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_loopback(self._host):
            named = Headers(scope=scope).get("host", "")
            if not is_own_name(named, self._host):
                message = f"host {named!r} is not this collector's; ask localhost or 127.0.0.1"
                return await error(403, message)(scope, receive, send)
        return await self._app(scope, receive, send)


def open_doors(app: FastAPI, store: Store, tokens: Tokens, limits: Limits, host: str) -> None:
    """Add /v1/sql, /v1/tables, /v1/seal and /v1/delete."""

    @app.get("/v1/tables")
    def tables(request: Request) -> Response:
        return _guarded(request, tokens.sql, "SQL") or JSONResponse(_tables(store))

    @app.post("/v1/sql")
    async def sql(request: Request) -> Response:
        refused = _guarded(request, tokens.sql, "SQL")
        return refused or await _run(request, lambda asked: _select(store, asked, limits))

    async def administer(request: Request, what: Answering) -> Response:
        if not tokens.admin and not is_loopback(host):
            return error(403, "sealing and deleting need an admin token; this collector has none")
        refused = _guarded(request, tokens.admin, "admin")
        return refused or await _run(request, what)

    @app.post("/v1/seal")
    async def seal(request: Request) -> Response:
        return await administer(request, lambda asked: _seal(store, asked))

    @app.post("/v1/delete")
    async def delete(request: Request) -> Response:
        return await administer(request, lambda asked: _delete(store, asked))

    _ = (tables, sql, seal, delete)


def error(status: int, sentence: str) -> JSONResponse:
    """Every refusal has this body."""
    return JSONResponse({"error": sentence}, status)


def arrow(table: Any, headers: dict[str, str]) -> Response:
    """A table as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return Response(sink.getvalue().to_pybytes(), media_type=ARROW, headers=headers)


def _guarded(request: Request, token: str | None, what: str) -> Response | None:
    if bearer(request.headers.get("authorization", ""), token):
        return None
    return error(401, f"the {what} token is missing or wrong: Authorization: Bearer TOKEN")


async def _run(request: Request, what: Answering) -> Response:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return error(415, "send a JSON body with content type application/json")
    held = b""
    async for part in request.stream():
        held += part
        if len(held) > _MOST_BYTES:
            return error(413, f"the body is longer than {_MOST_BYTES:,} bytes")
    try:
        asked = orjson.loads(held)
    except orjson.JSONDecodeError:
        return error(400, "the body is not JSON")
    if not isinstance(asked, dict):
        return error(400, "the body is no JSON object")
    try:
        return await run_in_threadpool(what, asked)
    except QueryRefused as refused:
        return error(400, str(refused))
    except CollectorError as failed:
        return error(503, str(failed))
    except duckdb.Error as failed:
        return error(503, f"the store failed: {str(failed).splitlines()[0]}")


def _select(store: Store, asked: dict[str, Any], limits: Limits) -> Response:
    with store.reading(fresh=False) as cursor:
        found = select(cursor, _text(asked, "sql"), limits)
    headers = {TOTAL_HEADER: str(found.table.num_rows)}
    if found.truncated:
        headers = {TRUNCATED_HEADER: found.truncated}
    return arrow(found.table, headers)


def _tables(store: Store) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    with store.reading(fresh=False) as cursor:
        for table, column, kind in cursor.execute(_TABLES).fetchall():
            found.setdefault(table, {})[column] = kind
    return found


def _seal(store: Store, asked: dict[str, Any]) -> Response:
    quiet_s = asked.get("quiet_s", 0)
    if not isinstance(quiet_s, int | float) or not 0 <= quiet_s <= _LONGEST_S:
        message = f"quiet_s is no number of seconds up to {_LONGEST_S:,}"
        raise QueryRefused(message)
    of = {name: None if asked.get(name) is None else _text(asked, name) for name in _WHOSE}
    chosen = sealing.ready(store, quiet_s, **of)
    if not chosen and not sealing.holds(store, **of):
        named = " ".join(f"{name} {value!r}" for name, value in of.items() if value)
        message = f"this collector holds no span of {named}; the query `runs` lists what it holds"
        raise QueryRefused(message)
    made = [sealing.seal(store, run, rollout) for run, rollout in chosen]
    files = [
        {
            "run_id": f.run_id,
            "rollout_id": f.rollout_id,
            "url": f.url,
            "spans": f.rows,
            "bytes": f.bytes,
        }
        for f in made
        if f is not None
    ]
    return JSONResponse({"sealed": files})


def _delete(store: Store, asked: dict[str, Any]) -> Response:
    run, trajectory = _text(asked, "run"), _text(asked, "trajectory")
    gone = retention.delete_trajectory(store, run, trajectory)
    return JSONResponse({"spans": gone.spans, "files_rewritten": gone.files})


def _text(asked: dict[str, Any], name: str) -> str:
    value = asked.get(name)
    if isinstance(value, str) and value:
        return value
    message = f"the body has no text {name!r}"
    raise QueryRefused(message)
