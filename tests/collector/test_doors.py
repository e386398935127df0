"""Who may send, ask, run SQL, seal and delete; over TLS; and not more than its share."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from heddle.collector.client import CollectorClient
from heddle.collector.errors import CollectorError, Overloaded, QueryRefused
from heddle.collector.limits import SenderLimits, host_of
from heddle.collector.queries.catalog import QUERIES
from heddle.collector.queries.sql import Limits
from heddle.collector.security import (
    Tls,
    Tokens,
    bearer,
    check_bind,
    is_loopback,
    is_own_name,
    secret,
    tls_of,
)
from heddle.collector.service import running
from heddle.collector.settings import CollectorSettings

TLS = Path(__file__).with_name("tls")
CERTIFICATE, KEY = TLS / "test-cert.pem", TLS / "test-key.pem"
TOKENS = Tokens(ingest="in-1", query="qu-2", sql="sq-3", admin="ad-4")
METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A collector with every token, TLS, a rate per sender and small SQL limits."""
    settings = CollectorSettings(
        data_dir=tmp_path_factory.mktemp("doors"),
        http_port=0,
        grpc_port=0,
        query_port=0,
        tokens=TOKENS,
        tls_certificate=CERTIFICATE,
        tls_key=KEY,
        sender_bytes_per_s=100.0,
        sql=Limits(rows=5),
    )
    with running(settings) as ports:
        yield ports


@pytest.fixture
def http():
    trust = ssl.create_default_context(cafile=str(CERTIFICATE))
    with httpx.Client(verify=trust, timeout=60) as made:
        yield made


def auth(token):
    return {"authorization": f"Bearer {token}"} if token else {}


DOORS = {
    "ingest": ("POST", "/v1/traces", {}),
    "query": ("GET", "/v1/q/runs", None),
    "sql": ("POST", "/v1/sql", {"sql": "SELECT 1"}),
    "admin": ("POST", "/v1/seal", {}),
}


@pytest.mark.parametrize("door", DOORS)
def test_each_door_takes_its_own_token_and_no_other(guarded, http, door):
    method, path, body = DOORS[door]
    port = guarded.http if door == "ingest" else guarded.query
    url = f"https://127.0.0.1:{port}{path}"
    for name in ("ingest", "query", "sql", "admin", None):
        token = getattr(TOKENS, name) if name else None
        reply = http.request(method, url, json=body, headers=auth(token))
        assert reply.status_code == (200 if name == door else 401), (name, reply.text)
        assert not any(t in reply.text for t in ("in-1", "qu-2", "sq-3", "ad-4"))


def test_grpc_speaks_tls_and_wants_the_ingest_token(guarded):
    trust = grpc.ssl_channel_credentials(CERTIFICATE.read_bytes())
    with grpc.secure_channel(f"localhost:{guarded.grpc}", trust) as channel:
        call = channel.unary_unary(METHOD)
        body = ExportTraceServiceRequest().SerializeToString()
        assert call(body, metadata=(("authorization", "Bearer in-1"),), timeout=30) == b""
        with pytest.raises(grpc.RpcError) as refused:
            call(body, metadata=(("authorization", "Bearer qu-2"),), timeout=30)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_plain_http_is_not_answered_on_a_tls_port(guarded):
    for port in (guarded.http, guarded.query):
        with httpx.Client(timeout=10) as plain, pytest.raises(httpx.HTTPError):
            plain.get(f"http://127.0.0.1:{port}/healthz").raise_for_status()


def test_a_sender_above_its_rate_is_told_when_to_come_back(guarded, http):
    url = f"https://127.0.0.1:{guarded.http}/v1/traces"
    body = b'{"resourceSpans": [], "padding": "' + b"x" * 5_000 + b'"}'
    headers = {**auth("in-1"), "content-type": "application/json"}
    replies = [http.post(url, content=body, headers=headers) for _ in range(2)]
    assert [r.status_code for r in replies] == [200, 429]
    assert int(replies[1].headers["retry-after"]) >= 1
    assert "more than 100 bytes a second" in replies[1].text
    trust = grpc.ssl_channel_credentials(CERTIFICATE.read_bytes())
    with (
        grpc.secure_channel(f"localhost:{guarded.grpc}", trust) as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        channel.unary_unary(METHOD)(b"", metadata=(("authorization", "Bearer in-1"),), timeout=30)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_sql_over_http_says_when_it_was_cut_and_why_it_was_refused(guarded, http):
    url = f"https://127.0.0.1:{guarded.query}/v1/sql"
    sent = auth("sq-3")
    cut = http.post(url, json={"sql": "FROM range(9)"}, headers=sent)
    assert (cut.status_code, "5 rows" in cut.headers["x-heddle-truncated"]) == (200, True)
    for body in ({"sql": "DROP TABLE spans"}, {"sql": ""}, {}, [], {"sql": 1}):
        assert http.post(url, json=body, headers=sent).status_code == 400
    text = {**sent, "content-type": "text/plain"}
    assert http.post(url, content='{"sql": "SELECT 1"}', headers=text).status_code == 415
    tables = http.get(f"https://127.0.0.1:{guarded.query}/v1/tables", headers=sent).json()
    assert tables["spans"]["start_ns"] == "BIGINT"


def test_the_catalog_lists_every_query_with_units(guarded, http):
    told = http.get(f"https://127.0.0.1:{guarded.query}/v1/q", headers=auth("qu-2")).json()[
        "queries"
    ]
    assert [q["name"] for q in told] == list(QUERIES)
    units = {c["name"]: c["unit"] for q in told for c in q["columns"]}
    assert (units["duration_s"], units["start_ns"], units["output_tokens"]) == ("s", "ns", "tokens")


def test_the_client_runs_sql_pages_seals_and_deletes(tmp_path):
    settings = CollectorSettings(data_dir=tmp_path, http_port=0, grpc_port=0, query_port=0)
    with running(settings) as ports, CollectorClient(f"http://127.0.0.1:{ports.query}") as client:
        assert client.sql("SELECT 1 AS x")["x"].to_list() == [1]
        assert [page.height for page in client.pages("runs", limit=2)] == [0]
        assert client.seal() == {"sealed": []}
        assert client.delete("run", "t") == {"spans": 0, "files_rewritten": 0}
        with pytest.raises(QueryRefused, match="holds no span of run 'nope' rollout 'r'"):
            client.seal(run="nope", rollout="r")
        with pytest.raises(QueryRefused, match="quiet_s is no number"):
            client.seal(quiet_s="soon")


@pytest.mark.parametrize(
    ("host", "local"),
    [
        *[(host, True) for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9")],
        *[(host, False) for host in ("0.0.0.0", "::", "10.0.0.7", "example.org")],
    ],
    ids=str,
)
def test_only_loopback_may_be_open(host, local):
    assert is_loopback(host) is local
    check_bind(host, TOKENS)
    if local:
        check_bind(host, Tokens())
    else:
        with pytest.raises(CollectorError, match=f"listening on {host} would let anyone in"):
            check_bind(host, Tokens())
        with pytest.raises(CollectorError, match="set the sql token, or listen"):
            check_bind(host, Tokens(ingest="a", query="b"))


@pytest.mark.parametrize(
    ("header", "own"),
    [
        ("localhost:4319", True),
        ("LOCALHOST", True),
        ("127.0.0.1:4319", True),
        ("[::1]:4319", True),
        ("box.example:4319", True),
        ("", True),
        ("evil.example", False),
        ("localhost.evil.example:4319", False),
        ("127.0.0.1.evil.example", False),
        ("[::1", False),
    ],
)
def test_a_host_header_is_an_address_or_a_name_of_this_machine(header, own):
    assert is_own_name(header, "box.example") is own


def test_a_page_that_rebinds_its_name_to_loopback_is_refused_by_every_query_door(shared_collector):
    url = f"http://127.0.0.1:{shared_collector.ports.query}"
    rebound = {"host": "evil.example", "origin": "http://evil.example"}
    for path in ("/v1/q", "/v1/q/runs", "/v1/tables", "/metrics", "/healthz"):
        assert shared_collector.http.get(url + path).status_code == 200
        reply = shared_collector.http.get(url + path, headers=rebound)
        assert reply.status_code == 403
        assert "evil.example" in reply.json()["error"]
    for path in ("/v1/sql", "/v1/seal", "/v1/delete"):
        reply = shared_collector.http.post(url + path, json={"sql": "SELECT 1"}, headers=rebound)
        assert reply.status_code == 403


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("seal", b'{"run": 5}', 400),
        ("seal", b'{"rollout": {"a": 1}}', 400),
        ("seal", b'{"quiet_s": 1e308}', 400),
        ("seal", b'{"quiet_s": NaN}', 400),
        ("delete", b'{"run": "\\ud800", "trajectory": "t"}', 400),
        ("delete", b"[" * 100_000, 400),
        ("sql", b'{"sql": "SELECT 1"}' + b" " * (1 << 20), 413),
    ],
)
def test_a_hostile_body_at_an_operators_door_is_refused_in_words(
    shared_collector, path, body, status
):
    url = f"http://127.0.0.1:{shared_collector.ports.query}/v1/{path}"
    headers = {"content-type": "application/json"}
    answered = shared_collector.http.post(url, content=body, headers=headers)
    assert (answered.status_code, list(answered.json())) == (status, ["error"])


def test_an_open_bind_does_not_even_start(tmp_path):
    settings = CollectorSettings(data_dir=tmp_path / "d", host="0.0.0.0", http_port=0)
    refused = pytest.raises(CollectorError, match="set the ingest, query, sql tokens")
    with refused, running(settings):
        pass
    assert not (tmp_path / "d").exists()


def test_tls_wants_both_files_and_they_must_be_there(tmp_path):
    assert tls_of(None, None) is None
    assert tls_of(CERTIFICATE, KEY) == Tls(CERTIFICATE, KEY)
    with pytest.raises(CollectorError, match="only one was given"):
        tls_of(CERTIFICATE, None)
    with pytest.raises(CollectorError, match=r"none\.pem cannot be read"):
        tls_of(tmp_path / "none.pem", KEY)


def test_a_token_comes_as_given_or_from_the_first_line_of_its_file(tmp_path):
    (tmp_path / "t").write_text("abc\nrest\n")
    (tmp_path / "empty").touch()
    assert secret("given", tmp_path / "t", "query") == "given"
    assert secret(None, tmp_path / "t", "query") == "abc"
    assert secret(None, None, "query") is None
    with pytest.raises(CollectorError, match=r"query token file .* is empty"):
        secret(None, tmp_path / "empty", "query")
    with pytest.raises(CollectorError, match="cannot be read"):
        secret(None, tmp_path / "missing", "query")


def test_tokens_are_shown_nowhere(caplog):
    with caplog.at_level(logging.DEBUG):
        shown = f"{TOKENS!r} {TOKENS}"
    assert not any(t in shown + caplog.text for t in ("in-1", "qu-2", "sq-3", "ad-4"))
    assert bearer("Bearer x", "x")
    assert not bearer("x", "x")
    assert bearer("anything", None)


def test_a_bucket_lets_a_burst_through_and_then_the_rate():
    now = [0.0]
    limits = SenderLimits(100.0, burst_s=2.0, now_s=lambda: now[0])
    for _ in range(2):
        limits.take("a", 100)
    limits.take("b", 100)
    with pytest.raises(Overloaded, match="a sends more than 100 bytes") as refused:
        limits.take("a", 1)
    assert refused.value.retry_after_s == 1
    now[0] = 1.0
    limits.take("a", 1_000)
    with pytest.raises(Overloaded) as refused:
        limits.take("a", 1)
    assert (refused.value.retry_after_s, limits.refused) == (9, 2)
    assert [host_of(p) for p in ("ipv4:10.0.0.7:51", "ipv6:[::1]:5", "unix:x")] == [
        "10.0.0.7",
        "[::1]",
        "unix:x",
    ]
