"""Real processes: killed, started twice, told to stop."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from heddle.collector.errors import PortInUse, StoreHeld
from heddle.collector.service import running
from heddle.collector.settings import CollectorSettings
from heddle.collector.store import FILE_NAME, Store

A = "a" * 32
SCRIPT = """
import asyncio, json, signal, sys
from pathlib import Path
from heddle.collector.service import CollectorService
from heddle.collector.settings import CollectorSettings

async def main():
    s = CollectorSettings(data_dir=Path(sys.argv[1]), http_port=0, grpc_port=0, query_port=0)
    service, ended = CollectorService(s), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    print(json.dumps((await service.start()).http), flush=True)
    await ended.wait()
    await service.stop()

asyncio.run(main())
"""


@contextmanager
def process(data_dir):
    command = [sys.executable, "-c", SCRIPT, str(data_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield child, f"http://127.0.0.1:{json.loads(child.stdout.readline())}/v1/traces"
        finally:
            child.kill()


def stored(data_dir):
    with closing(Store(data_dir / FILE_NAME)) as store, store.reading() as cursor:
        return [r[0] for r in cursor.execute("SELECT span_id FROM spans ORDER BY 1").fetchall()]


def post(http, url, request):
    headers = {"content-type": "application/x-protobuf"}
    reply = http.post(url, content=request.SerializeToString(), headers=headers)
    assert reply.status_code == 200


def test_kill_9_after_the_acknowledgement_loses_nothing(tmp_path, request_of):
    ids = [f"{n:016x}" for n in range(1, 41)]
    with process(tmp_path) as (child, url), httpx.Client(timeout=60) as http:
        for span in ids:
            post(http, url, request_of((A, span)))
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert stored(tmp_path) == ids


def test_sigterm_ends_it_cleanly_and_a_second_process_is_refused_meanwhile(tmp_path, request_of):
    with process(tmp_path) as (child, url), httpx.Client(timeout=60) as http:
        post(http, url, request_of((A, "b" * 16)))
        with pytest.raises(StoreHeld, match=f"PID {child.pid}"):
            Store(tmp_path / FILE_NAME)
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    assert stored(tmp_path) == ["b" * 16]


@pytest.mark.parametrize("which", ["http_port", "grpc_port", "query_port"])
def test_a_port_in_use_is_named(tmp_path, which):
    free: dict[str, Any] = {"http_port": 0, "grpc_port": 0, "query_port": 0}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = replace(CollectorSettings(data_dir=tmp_path, **free), **{which: port})
        named = pytest.raises(PortInUse, match=f"port {port} on 127.0.0.1 is in use")
        with named, running(settings):
            pass
