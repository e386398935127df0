"""A stack whose collector speaks TLS: it starts, says https, and spans arrive over it."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from heddle.collector.client import CollectorClient

TLS = Path(__file__).parents[1] / "collector" / "tls"


@pytest.fixture(autouse=True)
def _speaks_tls(monkeypatch):
    monkeypatch.setenv("HEDDLE_COLLECT__TLS_CERTIFICATE", str(TLS / "test-cert.pem"))
    monkeypatch.setenv("HEDDLE_COLLECT__TLS_KEY", str(TLS / "test-key.pem"))


def test_a_step_reaches_a_collector_that_speaks_tls(up, tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "test-cert.pem"))
    with up(tmp_path, "--gpus", 1, "--speed", 20) as stack:
        queries, otlp = (a.replace("http:", "https:") for a in (stack.queries, stack.otlp))
        assert f"collector on {otlp}, queries on {queries}" in (tmp_path / "said").read_text()
        body = {"text": "hello", "sampling_params": {"max_new_tokens": 4}}
        named = {"X-Heddle-Trajectory-Id": "t", "X-Heddle-Run": "safe"}
        url = f"{stack.controller}/generate"
        assert httpx.post(url, json=body, headers=named, timeout=60).status_code == 200
        deadline = time.monotonic() + 30
        with CollectorClient(queries) as client:
            while client.query("steps", run="safe", state="finished").is_empty():
                assert time.monotonic() < deadline
                time.sleep(0.1)


def test_a_certificate_that_nobody_trusts_ends_the_start_with_the_remedy(
    heddle, tmp_path, monkeypatch
):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    ended = heddle("up", "--no-dashboard", "--gpus", 1, "--data", tmp_path)

    assert ended.returncode == 2
    assert "set SSL_CERT_FILE" in ended.stderr.splitlines()[-1]
