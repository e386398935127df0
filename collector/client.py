"""How does everyone else ask the collector: named queries in, polars frames out, over HTTP?

Synchronous, one connection pool a client, safe to share between threads. Every failure is a
CollectorError with one sentence; an unreachable collector is CollectorUnreachable.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final

import httpx
import polars as pl

from heddle.collector.errors import CollectorError, CollectorUnreachable, QueryRefused, remedy

TOTAL_HEADER: Final = "X-Heddle-Total"
NEXT_HEADER: Final = "X-Heddle-Next"
TRUNCATED_HEADER: Final = "X-Heddle-Truncated"
Filter = str | int | float | bool | Sequence[str] | None


class CollectorClient:
    """Asks the collector's query port, by default http://127.0.0.1:4319."""

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 30.0) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = url.rstrip("/")
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s)

    def query(self, name: str, **filters: Filter) -> pl.DataFrame:
        """The rows of a named query (`records.FRAMES` lists them and their columns)."""
        return self.page(name, **filters)[0]

    def page(self, name: str, **filters: Filter) -> tuple[pl.DataFrame, int]:
        """The rows and how many there are without `limit`: the N and M of "N of M"."""
        reply = self._named(name, filters)
        frame = pl.read_ipc_stream(reply.content)
        return frame, int(reply.headers.get(TOTAL_HEADER, frame.height))

    def pages(self, name: str, *, limit: int = 10_000, **filters: Filter) -> Iterator[pl.DataFrame]:
        """All rows, a page at a time; rows that arrive meanwhile shift nothing."""
        after: str | None = None
        while True:
            reply = self._named(name, {**filters, "limit": limit, "after": after})
            yield pl.read_ipc_stream(reply.content)
            after = reply.headers.get(NEXT_HEADER)
            if after is None:
                return

    def sql(self, text: str) -> pl.DataFrame:
        """The rows of one SELECT of yours; QueryRefused names what it may not do."""
        return self.sql_page(text)[0]

    def sql_page(self, text: str) -> tuple[pl.DataFrame, str]:
        """The rows, and the sentence that says so when the collector cut them; else empty."""
        reply = self._post("/v1/sql", {"sql": text})
        return pl.read_ipc_stream(reply.content), reply.headers.get(TRUNCATED_HEADER, "")

    def tables(self) -> dict[str, dict[str, str]]:
        """Table to column to type: what a SELECT may name."""
        reply = self._get("/v1/tables", {})
        if reply.status_code != 200:
            raise QueryRefused(_sentence(reply))
        return dict(self._json(reply))

    def seal(self, **asked: Filter) -> dict[str, Any]:
        """Seal finished rollouts now; what was written."""
        return self._told("/v1/seal", asked)

    def delete(self, run: str, trajectory: str) -> dict[str, Any]:
        """Delete one trajectory everywhere, sealed files included; how many spans went."""
        return self._told("/v1/delete", {"run": run, "trajectory": trajectory})

    def _told(self, path: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        return self._json(self._post(path, asked))

    def _named(self, name: str, filters: Mapping[str, Filter]) -> httpx.Response:
        asked = {key: _param(value) for key, value in filters.items() if value is not None}
        reply = self._get(f"/v1/q/{name}", asked)
        if reply.status_code != 200:
            raise QueryRefused(_sentence(reply))
        return reply

    def health(self) -> dict[str, Any]:
        """What /healthz says, healthy or not."""
        body: Any = self._json(self._get("/healthz", {}))
        if not isinstance(body, dict):
            raise CollectorError(self._stranger())
        return {str(key): value for key, value in body.items()}

    def healthy(self) -> bool:
        """Whether the collector answers and can write."""
        try:
            return self.health().get("ok") is True
        except CollectorError:
            return False

    def wait_healthy(self, timeout_s: float = 30.0) -> None:
        """Return once it is healthy; CollectorUnreachable when that takes longer."""
        deadline = time.monotonic() + timeout_s
        while not self.healthy():
            if time.monotonic() > deadline:
                message = f"the collector at {self.url} was not healthy within {timeout_s:g} s"
                raise CollectorUnreachable(message)
            time.sleep(0.05)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> CollectorClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _get(self, path: str, params: dict[str, Any]) -> httpx.Response:
        return self._request("GET", path, params=params)

    def _post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        reply = self._request("POST", path, json=dict(body))
        if reply.status_code != 200:
            raise QueryRefused(_sentence(reply))
        return reply

    def _request(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **more)
        except httpx.TimeoutException as error:
            message = f"the collector at {self.url} did not answer {path} in time"
            raise CollectorUnreachable(message) from error
        except httpx.HTTPError as error:
            way = remedy(error, "--collector")
            message = f"no collector answers at {self.url} ({error}); {way}"
            raise CollectorUnreachable(message) from error

    def _json(self, reply: httpx.Response) -> Any:
        try:
            return reply.json()
        except ValueError as error:
            raise CollectorError(self._stranger()) from error

    def _stranger(self) -> str:
        return f"what answers at {self.url} is no Heddle collector: /healthz is not JSON"


def _param(value: Filter) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str | int | float) else list(value or ())


def _sentence(reply: httpx.Response) -> str:
    try:
        body: Any = reply.json()
        return str(body["error"])
    except (ValueError, KeyError, TypeError):
        return f"the collector answered {reply.status_code} to {reply.request.url}"
