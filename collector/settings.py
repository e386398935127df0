"""What can an operator set of the collector?"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from heddle.collector.content import Capture
from heddle.collector.ingest import MAX_BODY_BYTES
from heddle.collector.queries.sql import Limits
from heddle.collector.security import Tokens
from heddle.collector.store import BOUND_BYTES
from heddle.collector.store_file import SILENT_S
from heddle.collector.upkeep import Keeping


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSettings:
    """Where to keep, where to listen, how much to hold; port 0 takes any free one."""

    data_dir: Path
    host: str = "127.0.0.1"
    http_port: int = 4318
    """OTLP over HTTP."""
    grpc_port: int = 4317
    """OTLP over gRPC."""
    query_port: int = 4319
    """Named queries and /healthz."""
    tokens: Tokens = field(default_factory=Tokens)
    """Without them every door is open, and only loopback may be listened on."""
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    """PEM files; with both, all three ports speak TLS."""
    sender_bytes_per_s: float | None = None
    """Of one peer address; above it 429 or UNAVAILABLE with when to come back."""
    sql: Limits = field(default_factory=Limits)
    """What one SELECT may take."""
    sealed_url: str | None = None
    """Where sealed rollouts go: a folder or any fsspec URL; DATA/sealed when not given."""
    keeping: Keeping = field(default_factory=Keeping)
    silent_s: float = SILENT_S
    """A trajectory with no end is abandoned when nothing of it came for that long."""
    memory_limit: str = "1GB"
    """DuckDB's; a commit or query that needs more spills or fails, the process lives."""
    threads: int = 2
    bound_bytes: int = BOUND_BYTES
    """Spans waiting for the disk beyond this are refused with 429 or UNAVAILABLE."""
    capture: Capture = "drop"
    """Of messages, prompts, tool arguments and results: drop, hash or keep."""
    decoders: int = 1
    """Processes that decode; one keeps up with 30,000 spans/s. 0 decodes in threads."""
    max_body_bytes: int = MAX_BODY_BYTES
    """Of one request, after decompression."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports in fact bound."""

    http: int
    grpc: int
    query: int
