"""A batch reaches a collector that is slow to come, closed the link, or asks for a header."""

from __future__ import annotations

import time

import pytest
from otlp_server import OtlpServer

from heddle.collector import otlp_sender
from heddle.collector.otlp_sender import OtlpSender
from heddle.collector.span_bytes import Envelope, span_bytes


@pytest.fixture
def collector(monkeypatch):
    monkeypatch.setattr(otlp_sender, "FIRST_PAUSE_S", 0.01)
    made = OtlpServer()
    yield made
    made.stop()


def batch(name):
    span = span_bytes(name, "ab" * 16, "cd" * 8, None, 1, 2, {"k": name}, None)
    return Envelope({"service.name": "t"}, "heddle", "1").request([span])


def test_a_full_collector_is_asked_again(collector):
    collector.statuses = [503, 429, 500]
    sender = OtlpSender(collector.url)
    assert sender.send(batch("a"))
    sender.shutdown()
    assert (collector.spans, len(collector.headers)) == (["a"], 4)


def test_a_refusal_is_final(collector):
    collector.status = 400
    sender = OtlpSender(collector.url)
    assert not sender.send(batch("a"))
    sender.shutdown()
    assert len(collector.headers) == 1


def test_one_connection_serves_many_batches_and_an_idle_one_is_opened_again(collector):
    sender = OtlpSender(collector.url)
    assert all(sender.send(batch(name)) for name in "abc")
    assert collector.connections == 1
    time.sleep(0.6)  # longer than the server keeps an idle connection
    assert sender.send(batch("d"))
    sender.shutdown()
    assert (collector.spans, collector.connections) == (list("abcd"), 2)


def test_it_gives_up_at_its_limit_and_when_told_to_end(collector):
    collector.stop()
    sender = OtlpSender(collector.url, limit_s=0.05)
    assert not sender.send(batch("a"))
    sender.shutdown()
    collector.start()
    assert not sender.send(batch("b"))
    assert collector.spans == []


def test_the_environment_names_headers_and_a_token_is_sent_as_bearer(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue,x-other=1")
    sender = OtlpSender(collector.url, token="secret")
    assert sender.send(batch("a"))
    sender.shutdown()
    sent = {k.lower(): v for k, v in collector.headers[0].items()}
    assert (sent["x-tenant"], sent["authorization"]) == ("blue", "Bearer secret")
