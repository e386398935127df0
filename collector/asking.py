"""How do others ask the collector: named queries as Arrow IPC, and is it well?"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import duckdb
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from heddle.collector.client import NEXT_HEADER, TOTAL_HEADER
from heddle.collector.doors import OwnNames, arrow, error, open_doors
from heddle.collector.errors import CollectorError, QueryRefused
from heddle.collector.exposition import MEDIA
from heddle.collector.ingest import Ingest
from heddle.collector.metrics import render
from heddle.collector.queries.catalog import UnknownQuery, described, find
from heddle.collector.queries.query import Answer
from heddle.collector.queries.sql import Limits
from heddle.collector.security import Tokens, bearer
from heddle.collector.store import Store

_PROBE_S: Final = 2.0


def create_app(
    store: Store,
    ingest: Ingest,
    tokens: Tokens = Tokens(),  # noqa: B008 (frozen)
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    host: str = "127.0.0.1",
) -> FastAPI:
    """The application of the query port."""
    # FastAPI would trace its own requests into a global provider, and so into this collector.
    app = FastAPI(
        title="Heddle collector",
        telemetry={"tracing": False, "metrics": False, "logs": False},
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(OwnNames, host=host)

    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        report = await health(store, ingest)
        return JSONResponse(report, 200 if report["ok"] else 503)

    @app.get("/metrics")
    def metrics(request: Request) -> Response:
        if not bearer(request.headers.get("authorization", ""), tokens.query):
            return error(401, "the query token is missing or wrong: Authorization: Bearer TOKEN")
        return Response(render(store, ingest), media_type=MEDIA)

    @app.get("/v1/q/{name}")
    def query(name: str, request: Request) -> Response:
        if not bearer(request.headers.get("authorization", ""), tokens.query):
            message = "the query token is missing or wrong: Authorization: Bearer TOKEN"
            return error(401, message)
        return _answer(store, name, request)

    @app.get("/v1/q")
    def catalog() -> JSONResponse:
        return JSONResponse({"queries": described()})

    _ = (healthz, metrics, query, catalog)
    open_doors(app, store, tokens, limits, host)
    return app


async def health(store: Store, ingest: Ingest) -> dict[str, Any]:
    """Whether a write reaches the disk now, and what was counted so far."""
    trouble = store.trouble
    try:
        await asyncio.wait_for(asyncio.wrap_future(store.probe()), _PROBE_S)
    except TimeoutError:
        trouble = f"no commit within {_PROBE_S:g} s"
    except CollectorError as error:
        trouble = str(error)
    return {
        "ok": not trouble,
        "error": trouble,
        "notice": store.notice,
        "waiting_bytes": store.waiting_bytes,
        "bound_bytes": store.bound_bytes,
        "stored": store.stored,
        "duplicates": store.duplicates,
        "failed_commits": store.failures,
        **ingest.report(),
    }


def _answer(store: Store, name: str, request: Request) -> Response:
    params = request.query_params
    filters = {key: params.getlist(key) for key in params}
    try:
        asked = find(name)
        with store.reading(fresh=False) as cursor:
            return _arrow(asked.answer(cursor, filters))
    except UnknownQuery as unknown:
        return error(404, str(unknown))
    except QueryRefused as refused:
        return error(400, str(refused))
    except duckdb.Error as failed:
        return error(503, f"the query {name} failed: {str(failed).splitlines()[0]}")


def _arrow(answer: Answer) -> Response:
    headers = {TOTAL_HEADER: str(answer.total)}
    if answer.next is not None:
        headers[NEXT_HEADER] = answer.next
    return arrow(answer.table, headers)
