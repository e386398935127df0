"""Collector away: nothing is lost, nothing waits, the bound holds, a restart sends the rest."""

from __future__ import annotations

import time

import pytest
from otlp_server import OtlpServer

from heddle.collector.tracing import Emitter
from heddle.controller.spool import Spool

RETRY_S = 0.05


@pytest.fixture
def collector():
    made = OtlpServer()
    yield made
    made.stop()


def emitter(collector, folder, **how):
    spool = Spool(collector.url, folder, retry_s=RETRY_S, **how)
    return Emitter(collector.url, service="test", sender=spool), spool


def emit(to, names):
    for name in names:
        to.emit(
            name, trace_id="ab" * 16, span_id="cd" * 8, start_ns=1, end_ns=2, attributes={"k": name}
        )


def until(true):
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def names(first, count):
    return [f"s{first + i}" for i in range(count)]


def test_an_outage_loses_nothing(collector, tmp_path):
    to, spool = emitter(collector, tmp_path)
    emit(to, names(0, 50))
    until(lambda: len(collector.spans) == 50)
    collector.stop()
    for burst in range(5):
        emit(to, names(50 + 100 * burst, 100))
        to.flush()
    assert spool.spooled_bytes > 0
    collector.start()
    until(lambda: len(collector.spans) == 550)
    emit(to, names(550, 10))
    until(lambda: len(collector.spans) == 560)
    to.close()
    assert sorted(collector.spans) == sorted(names(0, 560))
    assert (to.dropped, spool.spooled_bytes) == (0, 0)


def test_a_full_collector_is_waited_for_and_a_refusal_is_counted(collector, tmp_path):
    collector.status = 429
    to, spool = emitter(collector, tmp_path)
    emit(to, ["later"])
    to.flush()
    until(lambda: spool.spooled_bytes)
    assert to.dropped == 0
    collector.status = 200
    until(lambda: collector.spans == ["later"])
    until(lambda: not spool.spooled_bytes)
    collector.status = 400
    emit(to, ["wrong"])
    to.flush()
    until(lambda: to.dropped == 1)
    to.close()


def test_what_waited_and_is_refused_then_is_counted_span_by_span(collector, tmp_path):
    collector.status = 429
    to, spool = emitter(collector, tmp_path)
    emit(to, names(0, 7))
    to.flush()
    until(lambda: spool.spooled_bytes)
    assert to.dropped == 0
    collector.status = 400
    until(lambda: not spool.spooled_bytes)
    assert to.dropped == 7
    to.close()


def test_what_waits_is_sent_after_a_restart(collector, tmp_path):
    collector.stop()
    to, _ = emitter(collector, tmp_path)
    emit(to, names(0, 7))
    to.close()
    assert list(tmp_path.glob("*.otlp"))
    collector.start()
    again, _ = emitter(collector, tmp_path)
    until(lambda: len(collector.spans) == 7)
    again.close()
    assert not list(tmp_path.iterdir())


def test_the_spool_is_bounded_and_counts_what_it_cannot_keep(collector, tmp_path):
    collector.stop()
    to, spool = emitter(collector, tmp_path, limit_bytes=4096)
    for burst in range(8):
        emit(to, names(10 * burst, 10))
        to.flush()
    assert 0 < spool.spooled_bytes <= 4096
    assert to.dropped > 0
    to.close()
