"""Which settings of the collector do the settings of the product mean?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from heddle.app.settings import CollectSettings, Settings
from heddle.collector.security import Tokens, secret

# A client needs the tokens alone, and DuckDB and Arrow take a second to import.
if TYPE_CHECKING:
    from heddle.collector.settings import CollectorSettings

DAY_S = 86_400.0


def tokens(collect: CollectSettings) -> Tokens:
    """As given, else from their files."""
    c = collect
    return Tokens(
        ingest=secret(c.ingest_token, c.ingest_token_file, "ingest"),
        query=secret(c.query_token, c.query_token_file, "query"),
        sql=secret(c.sql_token, c.sql_token_file, "SQL"),
        admin=secret(c.admin_token, c.admin_token_file, "admin"),
    )


def collector_settings(settings: Settings) -> CollectorSettings:
    """Everything `heddle collect` runs with."""
    from heddle.collector.queries.sql import Limits
    from heddle.collector.settings import CollectorSettings
    from heddle.collector.upkeep import Keeping

    c, ports = settings.collect, settings.ports
    return CollectorSettings(
        data_dir=Path(settings.data),
        host=settings.host,
        http_port=ports.otlp_http,
        grpc_port=ports.otlp_grpc,
        query_port=ports.queries,
        tokens=tokens(c),
        tls_certificate=c.tls_certificate,
        tls_key=c.tls_key,
        sender_bytes_per_s=c.sender_bytes_per_s,
        sql=Limits(seconds=c.sql_seconds, rows=c.sql_rows),
        sealed_url=c.sealed,
        keeping=Keeping(
            seal_after_s=c.seal_after_s,
            keep_s=None if c.keep_days is None else c.keep_days * DAY_S,
            keep_bytes=None if c.keep_gb is None else int(c.keep_gb * 1e9),
        ),
        silent_s=c.silent_s,
        memory_limit=c.memory_limit,
        decoders=c.decoders,
        capture=c.capture,
    )
