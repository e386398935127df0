"""How many spans a second does the collector keep, and how soon are they acknowledged?

A collector as `heddle collect` starts it, with millions of spans in its file, and senders in
processes of their own on the same cores. CPU seconds a span are told beside the wall clock: on a
busy machine only they mean anything.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import httpx
import orjson
import psutil

from heddle.app.bench.figures import Figure, Say
from heddle.app.bench.ingest_load import Requests
from heddle.app.compose import answers
from heddle.app.errors import fail
from heddle.app.supervise import free_port
from heddle.collector.client import CollectorClient
from heddle.collector.store import FILE_NAME, Store

SPANS: Final = 5_000_000
QUICK_SPANS: Final = 200_000
SECONDS: Final = 15.0
QUICK_SECONDS: Final = 3.0
START_S: Final = 300.0
WARM_S: Final = 6.0
_FILL: Final = """
INSERT INTO spans BY NAME SELECT
    md5(concat('t', i // 40)) AS trace_id, substr(md5(concat('s', i)), 1, 16) AS span_id,
    'chat m' AS name, 'bench' AS service, 'chat' AS op, 'past' AS run_id,
    concat('r', i // 500000) AS rollout_id, concat('t', i // 40) AS trajectory_id,
    concat('g', i // 640) AS group_id, concat('w', i % 8) AS worker_id, i % 40 AS step_index,
    1700000000000000000 + i * 1000000 AS start_ns, 1700000000000000000 + i * 1000000 + 5 AS end_ns,
    0 AS received_ns, 1000 AS input_tokens, 100 AS output_tokens, 'unset' AS status,
    '{{"gen_ai.operation.name":"chat","heddle.step.index":1}}'::JSON::VARIANT AS attrs
FROM range({first}, {last}) AS r(i)
"""


# The made rollouts came at instant 0: they would be sealed at once, which is another figure.
_COLLECT: Final = (sys.executable, "-m", "heddle.app.cli", "collect", "--seal-after-s", "5e9")


@dataclass(frozen=True, slots=True)
class Load:
    """One phase: how many senders send what."""

    spans: int
    senders: int
    connections: int
    rate: float = 0.0
    """Requests a second of each sender; 0 is as fast as they are answered."""


PACED: Final = Load(50, senders=1, connections=8, rate=40.0)
"""2,000 spans a second."""


def run(*, quick: bool, say: Say) -> dict[str, Figure]:
    """All figures of one collector; --quick has fewer spans there and shorter phases."""
    spans, seconds = (QUICK_SPANS, QUICK_SECONDS) if quick else (SPANS, SECONDS)
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as data:
        say(f"{spans:,} spans into the file")
        fill(Path(data), spans)
        with Collector(Path(data)) as collector:
            note = f"{spans / 1e6:g} million spans there; a tenth sent twice"
            figures = _figures(collector, seconds, say, note) | _sealing(collector, seconds, say)
        return figures | _killed(Path(data) / "killed", seconds, say)


def fill(data: Path, spans: int) -> None:
    """A file with so many spans, made by DuckDB itself."""
    path = data / FILE_NAME
    Store(path).close()
    with closing(duckdb.connect(str(path))) as connection:
        for first in range(0, spans, 500_000):
            connection.execute(_FILL.format(first=first, last=min(first + 500_000, spans)))


def _figures(collector: Collector, seconds: float, say: Say, note: str) -> dict[str, Figure]:
    figures: dict[str, Figure] = {
        "reopen_s": Figure(collector.started_s, "s", 15, "lower", f"process start; {note}")
    }
    # The decoding process begins with the first large request, and takes 3 s to import.
    say("warming up")
    collector.load("http", Load(512, senders=1, connections=1), WARM_S)
    for door in ("http", "grpc"):
        say(f"512 spans a request over {door}")
        seen = collector.load(door, Load(512, senders=2, connections=4), seconds)
        figures[f"{door}_spans_per_s"] = Figure(
            seen["spans_per_s"], "spans/s", 12_000, "higher", note
        )
        figures[f"{door}_cpu_us_per_span"] = Figure(
            seen["cpu_us"], "us", 120, "lower", "collector's CPU a span sent, repeats included"
        )
    say("one span a request")
    seen = collector.load("http", Load(1, senders=2, connections=32), seconds)
    figures["single_requests_per_s"] = Figure(seen["requests_per_s"], "1/s", 800, "higher", note)
    figures["single_cpu_us"] = Figure(seen["cpu_us"], "us", 1_200, "lower", "CPU a request")
    say("2,000 spans a second")
    seen = collector.load("http", PACED, seconds)
    figures["ack_p99_ms"] = Figure(seen["p99_ms"], "ms", 250, "lower", "at 2,000 spans/s")
    figures["queryable_s"] = Figure(collector.queryable_s(), "s", 1, "lower", "sent to found")
    figures["memory_mb"] = Figure(collector.memory_mb, "MB", 1_000, "lower", "RSS at the end")
    return figures


def _sealing(collector: Collector, seconds: float, say: Say) -> dict[str, Figure]:
    """Acknowledgements while the longest of what upkeep does by itself goes on."""
    say("2,000 spans a second while a rollout is sealed")
    p99_ms, sealed = collector.sealing_p99_ms(seconds)
    note = f"at 2,000 spans/s while a rollout of {sealed:,} spans is sealed"
    return {"sealing_ack_p99_ms": Figure(p99_ms, "ms", 250, "lower", note)}


def _killed(data: Path, seconds: float, say: Say) -> dict[str, Figure]:
    """How long a file takes to open whose collector was killed before it could tidy up."""
    say("kill -9 after spans as fast as they are taken")
    data.mkdir()
    Store(data / "other.duckdb").close()  # imports are no part of it
    with Collector(data) as collector:
        collector.load("http", Load(512, senders=1, connections=4), seconds)
        collector.kill()
    began = time.monotonic()
    with closing(Store(data / FILE_NAME)) as store:
        took_s = time.monotonic() - began
        with store.reading() as cursor:
            spans = cursor.execute("SELECT count(*) FROM spans").fetchall()[0][0]
    note = f"the file, after kill -9 with {spans:,} spans in it"
    return {"reopen_after_kill_s": Figure(took_s, "s", 1, "lower", note)}


class Collector:
    """One collector process."""

    def __init__(self, data: Path) -> None:
        self._ports = [free_port() for _ in range(3)]
        http, rpc, query = map(str, self._ports)
        began = time.monotonic()
        ports = ["--http-port", http, "--grpc-port", rpc, "--query-port", query]
        self._process = subprocess.Popen(
            [*_COLLECT, "--data", str(data), *ports],
            stderr=(data / "stderr").open("wb"),
        )
        self._watched = psutil.Process(self._process.pid)
        while not answers(f"{self.query_url}/healthz"):
            if self._process.poll() is not None or time.monotonic() - began > START_S:
                self._process.kill()
                fail(f"the collector did not start: {(data / 'stderr').read_text()[-500:]}")
            time.sleep(0.05)
        self.started_s = time.monotonic() - began

    @property
    def query_url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._ports[2]}"

    @property
    def memory_mb(self) -> float:
        """Resident, with the process that decodes."""
        return sum(each.memory_info().rss for each in self._family) / 1e6

    @property
    def _family(self) -> list[psutil.Process]:
        return [self._watched, *self._watched.children(recursive=True)]

    @property
    def _cpu_s(self) -> float:
        return sum(sum(each.cpu_times()[:2]) for each in self._family)

    def load(self, door: str, load: Load, seconds: float) -> dict[str, float]:
        """Run one phase; what the senders saw together, and the collector's CPU."""
        target = f"127.0.0.1:{self._ports[1]}"
        if door == "http":
            target = f"http://127.0.0.1:{self._ports[0]}"
        before_s = self._cpu_s
        told = _senders(target, load, seconds)
        cpu_s = self._cpu_s - before_s
        sent = sum(t["acknowledged"] + t["repeated"] for t in told)
        waits = sorted(wait for t in told for wait in t["waits_s"])
        longest = max(t["seconds"] for t in told)
        return {
            "spans_per_s": sum(t["acknowledged"] for t in told) / longest,
            "requests_per_s": sent / load.spans / longest,
            "cpu_us": 1e6 * cpu_s / max(sent, 1),
            "p99_ms": 1e3 * waits[int(0.99 * (len(waits) - 1))] if waits else float("inf"),
        }

    def sealing_p99_ms(self, seconds: float) -> tuple[float, int]:
        """The slowest acknowledgements while the oldest rollout is sealed, and its spans."""
        with (
            ThreadPoolExecutor(1) as pool,
            CollectorClient(self.query_url, timeout_s=600) as client,
        ):
            sealed = pool.submit(client.seal, run="past", rollout="r0")
            seen = self.load("http", PACED, seconds)
            told = sealed.result()["sealed"]
        return seen["p99_ms"], sum(file["spans"] for file in told)

    def queryable_s(self) -> float:
        """From sending a span until a query finds it."""
        body = Requests(1, 9).next()
        began = time.monotonic()
        headers = {"content-type": "application/x-protobuf"}
        url = f"http://127.0.0.1:{self._ports[0]}/v1/traces"
        httpx.post(url, content=body, headers=headers, timeout=30)
        with CollectorClient(self.query_url) as client:
            while not client.query("spans", trajectory="t0", run="bench", limit=1).height:
                time.sleep(0.01)
        return time.monotonic() - began

    def __enter__(self) -> Collector:
        return self

    def kill(self) -> None:
        """As the kernel does it."""
        self._process.kill()
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


def _senders(target: str, load: Load, seconds: float) -> Sequence[dict[str, Any]]:
    command = [sys.executable, "-m", "heddle.app.bench.ingest_load", target]
    command += ["--spans", str(load.spans), "--seconds", str(seconds), "--rate", str(load.rate)]
    command += ["--connections", str(load.connections)]
    running = [
        subprocess.Popen([*command, "--sender", str(number)], stdout=subprocess.PIPE)
        for number in range(1, load.senders + 1)
    ]
    told = [process.communicate()[0] for process in running]
    return [orjson.loads(line) for line in told]
