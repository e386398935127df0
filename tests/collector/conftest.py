"""A collector that listens on real ports, and spans to send it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import polars as pl
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from heddle.collector.client import CollectorClient
from heddle.collector.service import running
from heddle.collector.settings import CollectorSettings, Ports
from heddle.collector.tracing import Emitter

RUN = {"heddle.run.id": "run", "heddle.rollout.id": "ro"}


@dataclass
class Running:
    """One collector and everything a test needs to talk to it."""

    ports: Ports
    client: CollectorClient
    http: httpx.Client
    data_dir: Path
    emitters: list[Emitter] = field(default_factory=list)

    @property
    def traces(self) -> str:
        return f"http://127.0.0.1:{self.ports.http}/v1/traces"

    def emitter(self) -> Emitter:
        made = Emitter(f"http://127.0.0.1:{self.ports.http}", service="test")
        self.emitters.append(made)
        return made

    def post(self, body: bytes, media: str = "application/x-protobuf", **headers: str):
        sent = {"content-type": media, **{k.replace("_", "-"): v for k, v in headers.items()}}
        return self.http.post(self.traces, content=body, headers=sent)

    def query(self, name: str, **filters) -> pl.DataFrame:
        return self.client.query(name, **filters)


@contextmanager
def collector_in(data_dir: Path) -> Generator[Running, None, None]:
    """A collector over that folder for as long as the block lasts."""
    settings = CollectorSettings(data_dir=data_dir, http_port=0, grpc_port=0, query_port=0)
    with running(settings) as ports:
        url = f"http://127.0.0.1:{ports.query}"
        with CollectorClient(url) as client, httpx.Client(timeout=60) as http:
            made = Running(ports, client, http, data_dir)
            yield made
            for emitter in made.emitters:
                emitter.close()


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Running]:
    with collector_in(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def shared_collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One for a whole module; its tests keep apart by trace id."""
    with collector_in(tmp_path_factory.mktemp("collector")) as made:
        yield made


@pytest.fixture
def request_of():
    """Builds a request from (trace id, span id) pairs given in hex."""

    def build(*ids: tuple[str, str], name: str = "s") -> ExportTraceServiceRequest:
        request = ExportTraceServiceRequest()
        spans = request.resource_spans.add().scope_spans.add().spans
        for trace, span in ids:
            spans.add(
                trace_id=bytes.fromhex(trace),
                span_id=bytes.fromhex(span),
                name=name,
                start_time_unix_nano=1_000,
                end_time_unix_nano=2_000,
            )
        return request

    return build
