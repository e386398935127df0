"""How does a file get into a running collector, and how does one know what became of it?

Through the same door as any sender: OTLP over HTTP, acknowledged after the commit. Ids come from
the file, so a file sent twice is stored once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Final

import httpx

from heddle.collector.errors import CollectorError, CollectorUnreachable, remedy
from heddle.collector.importers.documents import Found, Source, chunks, request

FORMATS: Final = {
    "otlp-json": ("otlp", "read", "OTLP/JSON, whole or one request a line"),
    "tempo": ("otlp", "read_tempo", "Grafana Tempo's JSON with `batches`"),
    "jaeger-json": ("jaeger", "read", "Jaeger's JSON"),
    "sglang-metrics": ("sglang", "read", "SGLang --export-metrics-to-file, JSON lines"),
    "slime": ("slime", "read", "slime debug rollout dump, .pt"),
    "verl": ("verl", "read", "verl's step metrics: the file or the console logger's lines"),
    "dcgm": ("dcgm", "read", "DCGM SM-active samples: CSV, or Prometheus query_range JSON"),
    "parquet": ("trace_sets", "read", "normalised trace set, one row a step"),
}
"""Module and function of each format, and what it is."""
AT_ONCE: Final = 2_000
_TRIES: Final = 20


@dataclass(slots=True)
class Sent:
    """What became of a file so far."""

    spans: int = 0
    rejected: int = 0
    first_rejection: str = ""


def reader(name: str) -> Callable[[Source], Iterator[Found]]:
    """The importer of a format."""
    if name not in FORMATS:
        message = f"no format called {name!r}; choose one of {', '.join(FORMATS)}"
        raise CollectorError(message)
    module, function, _ = FORMATS[name]
    return getattr(import_module(f"heddle.collector.importers.{module}"), function)


def send(
    name: str,
    source: Source,
    url: str,
    *,
    token: str | None = None,
    seen: Callable[[Sent], None] = lambda _: None,
) -> Sent:
    """Send every span of the file to the OTLP port at *url*; *seen* hears of the progress."""
    read = reader(name)
    headers = {"content-type": "application/json"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    told = Sent()
    with httpx.Client(base_url=url, headers=headers, timeout=60) as http:
        for part, count in chunks(read(source), AT_ONCE):
            _post(http, part, told)
            told.spans += count
            seen(told)
    return told


def _post(http: httpx.Client, part: list[Found], told: Sent) -> None:
    body = request(part)
    reply = _reply(http, body)
    for _ in range(_TRIES):
        if reply.status_code not in (429, 503):
            break
        time.sleep(float(reply.headers.get("retry-after", "1")))
        reply = _reply(http, body)
    if reply.status_code != 200:
        message = f"the collector refused {part[0].place or 'the file'}: {_why(reply)}"
        raise CollectorError(message)
    partial = reply.json().get("partialSuccess") or {}
    rejected = int(partial.get("rejectedSpans", 0))
    if rejected and not told.first_rejection:
        told.first_rejection = f"{part[0].place}: {partial.get('errorMessage', '')}".lstrip(": ")
    told.rejected += rejected


def _reply(http: httpx.Client, body: bytes) -> httpx.Response:
    try:
        return http.post("/v1/traces", content=body)
    except httpx.HTTPError as error:
        way = remedy(error, "--otlp")
        message = f"no collector answers at {http.base_url} ({error}); {way}"
        raise CollectorUnreachable(message) from error


def _why(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {reply.status_code}"
