"""How does `heddle up` stand in front of engines for a test?"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest
from engine_processes import HEDDLE, free_port, running

from heddle.collector.client import CollectorClient


@dataclass(frozen=True)
class Stack:
    """A controller and a collector in front of engines."""

    controller: str
    spans: str
    queries: str
    token: str

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.token}"}
        url = f"{self.controller}/heddle/v1{path}"
        reply = httpx.post(url, json=body, headers=headers, timeout=120.0)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def get(self, path: str) -> Any:
        reply = httpx.get(f"{self.controller}/heddle/v1{path}", timeout=60.0)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def rows(
        self, query: str, enough: Callable[[pl.DataFrame], bool], **where: str
    ) -> pl.DataFrame:
        """The rows once there are enough and all have ended: spans travel in batches, what still
        runs is a row too."""
        deadline = time.monotonic() + 60
        with CollectorClient(self.queries) as client:
            while True:
                frame = client.query(query, limit=1000, **where)
                ended = "state" not in frame.columns or set(frame["state"]) == {"finished"}
                if frame.height and enough(frame) and ended:
                    return frame
                assert time.monotonic() < deadline, frame
                time.sleep(0.2)


@contextmanager
def stack_of(urls: list[str], data: Path) -> Generator[Stack]:
    """As long as the block lasts."""
    names = ("CONTROLLER", "OTLP_HTTP", "OTLP_GRPC", "QUERIES")
    ports = {name: free_port() for name in names}
    environment = {f"HEDDLE_PORTS__{name}": str(port) for name, port in ports.items()}
    workers = [word for url in urls for word in ("--worker", url)]
    command = [HEDDLE, "up", *workers, "--data", data, "--no-dashboard"]
    controller = f"http://127.0.0.1:{ports['CONTROLLER']}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setitem(os.environ, name, value)
        with running(command, f"{controller}/heddle/v1/healthz", data / "up.log"):
            yield Stack(
                controller=controller,
                spans=f"http://127.0.0.1:{ports['OTLP_HTTP']}",
                queries=f"http://127.0.0.1:{ports['QUERIES']}",
                token=(data / "token").read_text().strip(),
            )
