"""The trainer's library in hosts that do what nobody foresaw: odd names, wrong calls, forks."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading

import pytest
from otlp_server import Kept

from heddle.collector import emitter as emitter_module
from heddle.collector import ids, tracing
from heddle.collector.emitter import Emitter, in_this_process
from heddle.collector.otlp_sender import OtlpSender


@pytest.fixture
def kept():
    return Kept()


@pytest.fixture
def emitter(kept, monkeypatch):
    made = Emitter("http://nowhere", service="t\udcff", sender=kept)
    monkeypatch.setattr(tracing, "_default", tracing.Tracer(made, "run", "ro"))
    yield made
    made.close()


def one_span(to, number=1, **attributes):
    span = {"trace_id": "a" * 32, "span_id": f"{number:016x}"}
    to.emit("x", **span, start_ns=0, end_ns=1, attributes=attributes)


def test_names_that_are_no_utf_8_are_told_and_lose_nothing(kept, emitter):
    with tracing.trajectory("t\udcff", group="g\udcff") as it:
        with tracing.tool("x\udcff") as said:
            said["k\udcff"] = 1
        with tracing.step(model="m\udcff"):
            pass
    assert emitter.flush()
    assert emitter.dropped == 0
    assert {s.trace_id.hex() for s in kept.spans} == {ids.trace_id("run", "t\udcff")}
    assert it.trace_id != ids.trace_id("run", "t\udcfe")
    assert "execute_tool x?" in {s.name for s in kept.spans}


WRONG = {
    "an index that is no number": lambda it: it.step(index="3"),
    "of the trajectory one is in": lambda it: tracing.step(index="3"),
    "a carrier of nothing": lambda it: tracing.attach({}),
    "no carrier": lambda it: tracing.attach(None),
    "a carrier of another version": lambda it: tracing.attach({**it.carrier(), "step": "x"}),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_call_that_cannot_be_told_of_is_one_warning_and_the_host_goes_on(emitter, caplog, wrong):
    reached = []
    with tracing.trajectory("t") as it:
        for _ in range(2):
            with wrong(it):
                reached.append(1)
        wrong(it)(lambda: reached.append(1))()
    assert len(reached) == 3
    assert len({r.getMessage() for r in caplog.records}) <= 1


@pytest.mark.parametrize("error", [StopIteration, GeneratorExit, KeyboardInterrupt, SystemExit])
def test_whatever_the_host_raises_passes_as_it_is(emitter, error):
    raised = error("mine")
    with pytest.raises(error) as seen, tracing.trajectory("t"), tracing.tool("x"):
        raise raised
    assert seen.value is raised


@pytest.mark.parametrize("endpoint", ["http://h:port", "grpc://127.0.0.1:4317", "http://[::1", ""])
def test_what_is_no_address_is_one_sentence_and_counted(endpoint, caplog):
    emitter = Emitter(endpoint, service="t")
    one_span(emitter)
    assert emitter.flush()
    assert emitter.dropped == 1
    (said,) = caplog.records
    assert f"like http://127.0.0.1:4318, not {endpoint!r}" in said.getMessage()
    emitter.close()


@pytest.mark.parametrize("token", ["a\nb", "\u20ac"])
def test_a_token_no_header_can_carry_loses_its_spans_and_nothing_else(token, monkeypatch):
    emitter = Emitter("http://127.0.0.1:9", service="t", token=token)
    monkeypatch.setattr(emitter._own, "_limit_s", 0.0)
    one_span(emitter)
    assert emitter.flush()
    assert emitter.dropped == 1
    emitter.close()


def test_spans_that_do_not_arrive_are_said_once_with_the_reason(caplog, monkeypatch):
    sender = OtlpSender("http://there:1")
    monkeypatch.setattr(sender._post, "post", lambda body: (401, 0.0))
    with caplog.at_level(logging.WARNING, "heddle"):
        assert [sender.send(b""), sender.send(b"")] == [False, False]
    (said,) = caplog.records
    assert "http://there:1 (it answered 401: the ingest token is missing" in said.getMessage()


def test_a_child_forked_while_its_parent_sends_can_send(monkeypatch):
    sender = OtlpSender("http://127.0.0.1:9")
    monkeypatch.setattr(sender._post, "post", lambda body: (200, 0.0))
    with sender._busy:
        child = multiprocessing.get_context("fork").Process(
            target=lambda: os._exit(0 if sender.send(b"") else 1)
        )
        child.start()
        child.join(20)
    assert child.exitcode == 0


def test_a_program_that_ends_asks_a_collector_that_is_away_once(monkeypatch):
    sender, asked = OtlpSender("http://127.0.0.1:9"), []

    def post(body):
        asked.append(body)
        return None, 0.0

    monkeypatch.setattr(sender._post, "post", post)
    sender.hurry()
    assert [sender.send(b"1"), sender.send(b"2"), sender.send(b"3")] == [False] * 3
    assert asked == [b"1"]


def test_a_closed_emitter_is_not_the_process_wide_one_any_more():
    made_with = {"service": "again", "resource": None, "token": None, "scope": "heddle"}
    first = in_this_process("http://127.0.0.1:9", made_with)
    first.close(0.1)
    second = in_this_process("http://127.0.0.1:9", made_with)
    assert (second.closed, second is first) == (False, False)
    second.close(0.1)


def test_large_attributes_are_sent_in_requests_that_a_collector_takes(kept, emitter, monkeypatch):
    monkeypatch.setattr(emitter_module, "REQUEST_BYTES", 100_000)
    for number in range(40):
        one_span(emitter, number + 1, output="y" * 30_000)
    one_span(emitter, 99, output="y" * 300_000)
    assert emitter.flush()
    assert emitter.dropped == emitter._sender.queued == emitter._sender.queued_bytes == 0
    assert [s.span_id[-1] for s in kept.spans] == [*range(1, 41), 99]
    small = [b for b in kept.bodies if len(b) < 300_000]
    assert max(map(len, small)) < 101_000
    assert len(small) == 14


def test_a_scope_that_ends_inside_the_queues_lock_does_not_wait_for_itself(kept, emitter):
    def as_the_garbage_collector_may():
        with emitter._sender._lock:
            one_span(emitter)

    thread = threading.Thread(target=as_the_garbage_collector_may, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("name", ["\u4efb\u52a1", "a\nb", " a", "a\udcff"])
def test_headers_carry_any_name_in_ascii(emitter, name):
    with tracing.trajectory(name) as it:
        said = it.headers()["X-Heddle-Trajectory-Id"]
    assert said.startswith("UTF-8''")
    assert said.isascii()
    assert said.isprintable()
