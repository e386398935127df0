"""Real processes, hurt: killed while spans come, the disk full, a bomb, more than fits.

One process imports everything once and forks a collector whenever asked, so that twenty of them
cost seconds and not minutes.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest
from google.rpc import error_details_pb2, status_pb2
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from heddle.collector.store import FILE_NAME, Store

A = "a" * 32
MEDIA = {"content-type": "application/x-protobuf"}
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
NURSERY = """
import asyncio, json, os, signal, sys
from pathlib import Path
import pandas, pyarrow, polars
from heddle.collector.service import CollectorService
from heddle.collector.settings import CollectorSettings

async def main(given):
    free = dict(http_port=0, grpc_port=0, query_port=0)
    s = CollectorSettings(data_dir=Path(given.pop("data_dir")), **free, **given)
    service, ended = CollectorService(s), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    ports = await service.start()
    print(json.dumps([os.getpid(), ports.http, ports.grpc, ports.query]), flush=True)
    await ended.wait()
    await service.stop()

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        asyncio.run(main(json.loads(line)))
        os._exit(0)
"""


@dataclass
class Child:
    """A forked collector."""

    pid: int
    http: int
    grpc: int
    query: int

    @property
    def traces(self) -> str:
        return f"http://127.0.0.1:{self.http}/v1/traces"

    def kill(self, number: int = signal.SIGKILL) -> None:
        watched = psutil.Process(self.pid)
        os.kill(self.pid, number)
        watched.wait(60)

    def health(self, http: httpx.Client) -> dict[str, Any]:
        return http.get(f"http://127.0.0.1:{self.query}/healthz").json()


@pytest.fixture(scope="module")
def spawn():
    """Starts a collector over a folder; settings as keywords."""
    command = [sys.executable, "-W", "ignore", "-c", NURSERY]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        entry, answers = nursery.stdin, nursery.stdout
        children: list[Child] = []

        def start(data_dir: Path, **given: Any) -> Child:
            entry.write(json.dumps({"data_dir": str(data_dir), **given}) + "\n")
            entry.flush()
            children.append(Child(*json.loads(answers.readline())))
            return children[-1]

        yield start
        for child in children:
            if psutil.pid_exists(child.pid):
                child.kill()
        entry.close()


@pytest.fixture(scope="module")
def http():
    with httpx.Client(timeout=60) as made:
        yield made


def body_of(ids, size=0):
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for number in ids:
        span = spans.add(trace_id=bytes.fromhex(A), span_id=number.to_bytes(8, "big"), name="s")
        span.start_time_unix_nano, span.end_time_unix_nano = 1_000, 2_000
        if size:
            span.attributes.add(key="k").value.string_value = "x" * size
    return request.SerializeToString()


def post(http, child, body, **headers):
    return http.post(child.traces, content=body, headers={**MEDIA, **headers})


def stored(data_dir):
    with closing(Store(data_dir / FILE_NAME)) as store, store.reading() as cursor:
        rows = cursor.execute("SELECT span_id FROM spans").fetchall()
    return sorted(int(row[0], 16) for row in rows)


def sender(child, numbers, acknowledged, enough):
    """Posts three spans at a time until the collector dies; tells once some are acknowledged."""
    # Without certificates to load: four clients twenty times over would spend most of the test.
    with httpx.Client(timeout=60, verify=False) as http:
        while True:
            ids = list(itertools.islice(numbers, 3))
            try:
                if post(http, child, body_of(ids)).status_code == 200:
                    acknowledged.extend(ids)
            except httpx.HTTPError:
                return ids
            if len(acknowledged) >= 24:
                enough.set()


# Twenty starts: a minute on a quiet machine, more than the default limit on a busy one.
@pytest.mark.timeout(600)
def test_twenty_kills_lose_no_acknowledged_span_and_double_none(spawn, http, tmp_path):
    numbers = itertools.count(1)
    everything: list[int] = []
    unsure: list[list[int]] = []
    for _ in range(20):
        child = spawn(tmp_path)
        for ids in unsure:
            # As a sender does: what was not answered is sent again, stored or not.
            assert post(http, child, body_of(ids)).status_code == 200
            everything += ids
        acknowledged: list[int] = []
        enough = threading.Event()
        with ThreadPoolExecutor(4) as pool:
            going = [pool.submit(sender, child, numbers, acknowledged, enough) for _ in range(4)]
            assert enough.wait(60)
            child.kill()
            unsure = [each.result() for each in going]
        everything += acknowledged
    found = stored(tmp_path)
    assert len(found) == len(set(found))
    assert not set(everything) - set(found)


class FullDisk:
    """A small file system of its own where this process may mount one, else a limit on files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._ballast = folder, folder / "ballast"
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
        self.mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0

    def fill(self, child: Child) -> None:
        """Leave room for 50 kB."""
        if self.mounted:
            left = shutil.disk_usage(self.folder).free - 50_000
            self._ballast.write_bytes(bytes(left))
            return
        # No file may grow past what is there and a little: the same errors as from a full disk.
        room = max(p.stat().st_size for p in self.folder.iterdir() if p.is_file()) + 50_000
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))

    def free(self, child: Child) -> None:
        """Room again."""
        self._ballast.unlink(missing_ok=True)
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, unlimited)

    def unmount(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path):
    made = FullDisk(tmp_path / "disk")
    yield made
    made.unmount()


def test_a_full_disk_is_503_corrupts_nothing_and_recovers(spawn, http, disk):
    child = spawn(disk.folder)
    kept = list(range(1, 101))
    assert post(http, child, body_of(kept, 100)).status_code == 200
    disk.fill(child)
    codes = set()
    for first in range(1_000, 60_000, 1_000):
        ids = list(range(first, first + 100))
        reply = post(http, child, body_of(ids, 2_000))
        codes.add(reply.status_code)
        if reply.status_code == 200:
            kept += ids
        if reply.status_code == 503:
            break
    assert codes <= {200, 503}
    assert 503 in codes
    assert reply.headers["retry-after"] == "1"
    assert "cannot be written" in status_pb2.Status.FromString(reply.content).message
    disk.free(child)
    assert post(http, child, body_of(ids, 2_000)).status_code == 200
    assert child.health(http)["ok"]
    child.kill(signal.SIGTERM)
    assert stored(disk.folder) == sorted({*kept, *ids})


def peak_kb(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_of_300_mb_raises_memory_by_no_more_than_the_limit(spawn, http, tmp_path, encoding):
    child = spawn(tmp_path)
    assert post(http, child, body_of([1])).status_code == 200
    Path(f"/proc/{child.pid}/clear_refs").write_text("5")
    before = peak_kb(child.pid)
    reply = post(http, child, bomb(encoding), **{"content-encoding": encoding})
    assert reply.status_code == 413
    assert peak_kb(child.pid) - before <= 64 << 10
    assert post(http, child, body_of([2])).status_code == 200


def bomb(encoding):
    zeros = bytes(300 << 20)
    if encoding == "gzip":
        return gzip.compress(zeros, 1)
    return __import__("zstandard").ZstdCompressor(write_content_size=False).compress(zeros)


def test_above_the_bound_both_doors_say_when_to_come_back_and_it_stays_small(spawn, http, tmp_path):
    child = spawn(tmp_path, bound_bytes=3_000_000)
    numbers = itertools.count(1)
    bodies = [body_of(list(itertools.islice(numbers, 512)), 1_000) for _ in range(64)]
    with (
        ThreadPoolExecutor(16) as pool,
        grpc.insecure_channel(f"127.0.0.1:{child.grpc}") as channel,
    ):
        export = channel.unary_unary(EXPORT)
        over_http = [pool.submit(post, http, child, body) for body in bodies]
        over_grpc = [pool.submit(asked, export, body) for body in bodies]
        replies = [each.result() for each in over_http]
        errors = [each.result() for each in over_grpc]
    refused = [reply for reply in replies if reply.status_code == 429]
    assert {reply.status_code for reply in replies} <= {200, 429}
    assert refused
    assert all(1 <= int(reply.headers["retry-after"]) <= 3 for reply in refused)
    unavailable = [error for error in errors if error is not None]
    assert unavailable
    assert {error.code() for error in unavailable} == {grpc.StatusCode.UNAVAILABLE}
    assert all(1 <= retry_s(error) <= 3 for error in unavailable)
    assert peak_kb(child.pid) < 1_000_000
    assert post(http, child, bodies[0]).status_code == 200
    health = child.health(http)
    assert (health["ok"], health["waiting_bytes"]) == (True, 0)
    assert health["overloaded_requests"] == len(refused) + len(unavailable)


def asked(export, body):
    try:
        export(body, timeout=60)
    except grpc.RpcError as error:
        return error
    return None


def retry_s(error):
    trailers = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    info = error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    return info.retry_delay.seconds
