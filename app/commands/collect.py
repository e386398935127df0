"""`heddle collect`: the collector by itself."""

from __future__ import annotations

from typing import Annotated

import typer

from heddle.app.commands import options

TYPER = options.help_with("heddle collect", "heddle collect --data /var/lib/heddle --host 0.0.0.0")


def run(
    data: options.Data = None,
    host: options.Host = None,
    http_port: Annotated[int | None, typer.Option(help="OTLP over HTTP.")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="OTLP over gRPC.")] = None,
    query_port: Annotated[int | None, typer.Option(help="Queries.")] = None,
) -> None:
    """Keep spans in DuckDB, answer queries."""
    from heddle.app.settings import load
    from heddle.collector.service import serve
    from heddle.collector.settings import CollectorSettings

    flags = {"ports.otlp_http": http_port, "ports.otlp_grpc": grpc_port}
    settings = load({"data": data, "host": host, "ports.queries": query_port, **flags})
    serve(
        CollectorSettings(
            data_dir=settings.data,
            host=settings.host,
            http_port=settings.ports.otlp_http,
            grpc_port=settings.ports.otlp_grpc,
            query_port=settings.ports.queries,
        )
    )
