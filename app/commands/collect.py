"""`heddle collect`: the collector by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from heddle.app.commands import options

TYPER = options.help_with(
    "heddle collect --data /var/lib/heddle",
    "heddle collect --host 0.0.0.0 --tls-certificate cert.pem --tls-key key.pem",
)


def run(
    data: options.Data = None,
    host: options.Host = None,
    http_port: Annotated[int | None, typer.Option(help="OTLP over HTTP.")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="OTLP over gRPC.")] = None,
    query_port: Annotated[int | None, typer.Option(help="Queries.")] = None,
    sealed: Annotated[
        str | None, typer.Option(help="Where sealed rollouts go: a folder or an fsspec URL.")
    ] = None,
    seal_after_s: Annotated[
        float | None, typer.Option(help="Seal a finished rollout this long after its last span.")
    ] = None,
    keep_days: Annotated[
        float | None, typer.Option(help="Remove what was received longer ago.")
    ] = None,
    keep_gb: Annotated[
        float | None, typer.Option(help="Above this much disk, remove the oldest sealed rollouts.")
    ] = None,
    capture: Annotated[
        str | None, typer.Option(help="Of messages and tool arguments: drop, hash or keep.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="PEM file.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file.")] = None,
) -> None:
    """Keep spans in DuckDB, answer queries.

    Tokens come from HEDDLE_COLLECT__INGEST_TOKEN, __QUERY_TOKEN, __SQL_TOKEN and __ADMIN_TOKEN, or
    from files named by the same with _FILE at the end.
    """
    flags = {
        "data": data,
        "host": host,
        "ports.otlp_http": http_port,
        "ports.otlp_grpc": grpc_port,
        "ports.queries": query_port,
        "collect.sealed": sealed,
        "collect.seal_after_s": seal_after_s,
        "collect.keep_days": keep_days,
        "collect.keep_gb": keep_gb,
        "collect.capture": capture,
        "collect.tls_certificate": tls_certificate,
        "collect.tls_key": tls_key,
    }
    _serve(flags)


def _serve(flags: dict[str, Any]) -> None:
    from heddle.app import checks
    from heddle.app.collecting import collector_settings
    from heddle.app.settings import load
    from heddle.collector.service import serve

    settings = load(flags)
    checks.host(settings.host)
    checks.data(settings.data)
    serve(collector_settings(settings))
