"""The trainer's library: scopes of every kind, other processes, bursts, versions, no harm."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import pickle
import subprocess
import sys
import time

import pytest
from opentelemetry.sdk.trace import TracerProvider
from otlp_server import Kept

from heddle.collector import conventions as c
from heddle.collector import emitter as emitter_module
from heddle.collector import ids, tracing
from heddle.collector.beats import Beats
from heddle.collector.emitter import Emitter, in_this_process
from heddle.collector.otlp_sender import PROTOCOL_HEADER, OtlpSender
from heddle.collector.processor import HeddleProcessor


@pytest.fixture
def kept():
    return Kept()


@pytest.fixture
def emitter(kept):
    made = Emitter("http://nowhere", service="t", sender=kept)
    yield made
    kept.open.set()
    made.close()


@pytest.fixture
def configured(emitter, monkeypatch):
    monkeypatch.setattr(tracing, "_default", tracing.Tracer(emitter, "run", "ro"))
    return emitter


def told(kept, emitter, op):
    assert emitter.flush()
    return [s for s in kept.spans if attributes(s).get("gen_ai.operation.name") == op]


def attributes(span):
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


def test_a_trajectory_a_step_and_a_tool_are_scopes_with_ids_anybody_can_derive(kept, configured):
    with tracing.trajectory("t", group="g", task="math") as it:
        with tracing.step(model="m") as step:
            step.usage(input_tokens=10, output_tokens=4)
        with tracing.tool("bash") as said:
            said["exit"] = 1
        assert tracing.current() is it
    assert tracing.current() is None
    (chat,), (tool,) = told(kept, configured, c.CHAT), told(kept, configured, c.EXECUTE_TOOL)
    (whole,) = told(kept, configured, c.INVOKE_AGENT)
    assert chat.span_id.hex() == ids.step_span_id("run", "t", 0)
    assert tool.span_id.hex() == ids.tool_span_id("run", "t", 0)
    assert {s.parent_span_id for s in (chat, tool)} == {whole.span_id}
    assert attributes(chat)["gen_ai.usage.output_tokens"] == 4
    assert (attributes(tool)["heddle.step.index"], attributes(tool)["exit"]) == (0, 1)
    started = {attributes(s)["heddle.starts"] for s in told(kept, configured, c.START)}
    assert started == {s.span_id.hex() for s in (chat, tool, whole)}


def test_decorated_functions_are_in_a_scope_of_their_own_at_each_call(kept, configured):
    @tracing.tool("plain")
    def plain(x):
        return x + 1

    @tracing.tool("waiting")
    async def waiting(x):
        await asyncio.sleep(0)
        return x + 1

    async def both():
        async with tracing.trajectory("t"):
            await asyncio.gather(waiting(1), waiting(2))
            return plain(3), plain.__name__

    assert asyncio.run(both()) == (4, "plain")
    names = sorted(
        attributes(s)["gen_ai.tool.name"] for s in told(kept, configured, c.EXECUTE_TOOL)
    )
    assert names == ["plain", "waiting", "waiting"]
    assert len({s.span_id for s in told(kept, configured, c.EXECUTE_TOOL)}) == 3


def test_trajectories_of_concurrent_tasks_keep_apart(kept, configured):
    async def one(name):
        async with tracing.trajectory(name):
            await asyncio.sleep(0.01)
            async with tracing.tool(f"of-{name}"):
                await asyncio.sleep(0.01)

    async def all_of_them():
        await asyncio.gather(*(one(f"t{n}") for n in range(8)))

    asyncio.run(all_of_them())
    for span in told(kept, configured, c.EXECUTE_TOOL):
        said = attributes(span)
        assert said["gen_ai.tool.name"] == f"of-{said['gen_ai.conversation.id']}"


def test_a_step_through_the_controller_is_told_by_the_controller(kept, configured):
    with tracing.trajectory("t", group="g"), tracing.step() as step:
        headers = step.headers(final=True)
    assert (headers["X-Heddle-Step"], headers["X-Heddle-Final"]) == ("0", "1")
    assert not told(kept, configured, c.CHAT)


def test_outside_of_a_trajectory_nothing_is_told_and_nothing_breaks(kept, configured):
    with tracing.tool("bash"), tracing.step() as step:
        step.usage(input_tokens=1)
    assert configured.flush()
    assert not kept.bodies


def test_the_hosts_own_error_passes_and_is_on_the_span(kept, configured):
    with (
        pytest.raises(KeyError),
        tracing.trajectory("t"),
        tracing.tool("bash"),
    ):
        raise KeyError
    (tool,) = told(kept, configured, c.EXECUTE_TOOL)
    assert attributes(tool)["error.type"] == "KeyError"


@pytest.mark.parametrize(
    "odd", [object(), {1: object()}, b"\xff", "\ud800", 2**80, [None, object()]]
)
def test_no_value_of_an_attribute_raises_or_loses_its_batch(kept, configured, odd):
    with tracing.trajectory("t"), tracing.tool("bash") as said:
        said["odd"] = odd
    assert len(told(kept, configured, c.EXECUTE_TOOL)) == 1
    assert configured.dropped == 0


def test_a_burst_of_50_000_spans_is_sent_whole_and_waits_for_nobody(kept, emitter):
    kept.open.clear()
    began = time.thread_time()
    with tracing.Tracer(emitter, "run", "ro").trajectory("t", group="g") as it:
        for _ in range(50_000):
            with it.tool("x", step=0):
                pass
    spent_s = time.thread_time() - began
    assert emitter.dropped == 0
    kept.open.set()
    assert emitter.flush(120)
    assert len({s.span_id for s in kept.spans if s.name == "execute_tool x"}) == 50_000
    # A bound of CPU time, ten times what it takes (heddle bench tracing says that).
    assert spent_s < 60


def test_memory_is_bounded_with_the_collector_down_and_what_is_dropped_counted(kept, monkeypatch):
    monkeypatch.setattr(emitter_module, "QUEUE_BYTES", 100_000)
    emitter = Emitter("http://nowhere", service="t", sender=kept)
    kept.open.clear()
    for number in range(1_000):
        emitter.emit("x", trace_id=f"{number:032x}", span_id=f"{number + 1:016x}",
                     start_ns=0, end_ns=1, attributes={"text": "y" * 1_000})  # fmt: skip
    assert 850 < emitter.dropped < 950
    assert emitter._sender.queued_bytes <= 100_000
    kept.open.set()
    emitter.close()
    assert len(kept.spans) == 1_000 - emitter.dropped
    assert emitter._sender.queued_bytes == emitter._sender.queued == 0


def test_an_sdks_own_spans_leave_through_the_same_queue(kept, emitter):
    provider = TracerProvider()
    provider.add_span_processor(HeddleProcessor(emitter))
    tracer = provider.get_tracer("mine")
    with tracer.start_as_current_span("chat m", attributes={"gen_ai.operation.name": "chat"}):
        for _ in range(3_000):
            tracer.start_span("small").end()
    provider.shutdown()
    assert [s.name for s in told(kept, emitter, c.START)] == [c.START]
    assert len([s for s in kept.spans if s.name == "small"]) == 3_000
    (chat,) = [s for s in kept.spans if s.name == "chat m"]
    assert {s.parent_span_id for s in kept.spans if s.name == "small"} == {chat.span_id}


def in_a_child(url, carrier):
    with tracing.attach(carrier) as it:
        with tracing.tool("child"):
            pass
        tracing.current().emitter.close()
        assert it.id == "t"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_goes_on_in_the_same_trajectory(collector, method, monkeypatch):
    url = collector.traces.removesuffix("/v1/traces")
    emitter = Emitter(url, service="parent")
    monkeypatch.setattr(tracing, "_default", tracing.Tracer(emitter, "run", "ro"))
    with tracing.trajectory("t", group="g") as it:
        with it.tool("before", step=0):
            pass
        emitter.flush()
        processes = multiprocessing.get_context(method)
        child = processes.Process(target=in_a_child, args=(url, it.carrier()))
        child.start()
        child.join(60)
        assert child.exitcode == 0
    emitter.close()
    tools = collector.query("tool_calls").sort("start_ns")
    assert tools["tool_name"].to_list() == ["before", "child"]
    assert set(tools["trajectory_id"]) == {"t"}


def test_a_pickled_tracer_is_the_other_processes_own(kept):
    emitter = Emitter("http://127.0.0.1:9", service="s")
    there = pickle.loads(pickle.dumps(tracing.Tracer(emitter, "run", "ro")))
    again = pickle.loads(pickle.dumps(tracing.Tracer(emitter, "run", "ro")))
    assert there.emitter is again.emitter is not emitter
    assert there.emitter.endpoint == "http://127.0.0.1:9"
    for one in (emitter, there.emitter):
        one.close(0.1)


def test_branches_of_one_trajectory_never_share_an_id(configured, kept):
    with tracing.trajectory("t") as it:
        for carrier in (it.carrier(), it.carrier()):
            with tracing.attach(carrier), tracing.tool("x"):
                pass
        with tracing.tool("x"):
            pass
    assert len({s.span_id for s in told(kept, configured, c.EXECUTE_TOOL)}) == 3


def test_a_trajectory_without_news_says_that_it_lives(kept, emitter, monkeypatch):
    monkeypatch.setattr(tracing, "BEATS", Beats(every_s=0.02))
    with tracing.Tracer(emitter, "run", "ro").trajectory("t", group="g"):
        while not told(kept, emitter, c.ALIVE):
            time.sleep(0.02)
    beat = told(kept, emitter, c.ALIVE)[0]
    assert attributes(beat)["gen_ai.conversation.id"] == "t"
    assert beat.start_time_unix_nano == beat.end_time_unix_nano


def test_versions_are_compared_both_ways(collector, caplog, monkeypatch):
    reply = collector.post(b"", **{PROTOCOL_HEADER: "99"})
    assert reply.headers[PROTOCOL_HEADER] == c.VERSION
    assert collector.http.get(collector.client.url + "/healthz").json()["protocols"] == {"99": 1}
    sender = OtlpSender("http://127.0.0.1:9")
    monkeypatch.setattr(sender._post, "post", lambda body: (200, 0.0))
    sender._post.peer = "2"
    with caplog.at_level(logging.WARNING, "heddle"):
        assert [sender.send(b""), sender.send(b"")] == [True, True]
    assert caplog.text.count("upgrade the library") == 1


def test_the_process_wide_emitter_is_one_a_process():
    made_with = {"service": "once", "resource": None, "token": None, "scope": "heddle"}
    first = in_this_process("http://127.0.0.1:9", made_with)
    assert in_this_process("http://127.0.0.1:9", made_with) is first
    first.close(0.1)


BLOCKED = """
import sys
KNOWN = {"opentelemetry", "google", "heddle", "requests", "urllib3", "charset_normalizer",
         "idna", "certifi", "typing_extensions", "wrapt", "importlib_metadata", "zipp"}

class Only:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in KNOWN or top in sys.stdlib_module_names:
            return None
        raise ImportError(f"{name} is not in the base install")

sys.meta_path.insert(0, Only())
import heddle.collector.tracing as tracing
import heddle.collector.processor
with tracing.trajectory("t") as it, tracing.step(), tracing.tool("x"):
    print(sorted(it.headers()))
tracing.current()
"""


def test_the_library_imports_from_opentelemetry_and_the_standard_library_alone():
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "X-Heddle-Trajectory-Id" in done.stdout
    gc.collect()
