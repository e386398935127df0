"""A request decoded in another process is the request decoded here, and no process is needed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import orjson
import psutil
import pytest

from heddle.app.bench.ingest_load import Requests
from heddle.collector import otlp
from heddle.collector.decoding import Decoding

SPANS = 200
MANY = {"name": "decode_loop", "traceId": "a" * 32, "parentSpanId": "b" * 16}
ORPHAN = """
import asyncio, os, sys, time
import psutil
from heddle.app.bench.ingest_load import Requests
from heddle.collector import otlp
from heddle.collector.decoding import Decoding

async def main():
    decoding, body = Decoding(processes=1), Requests(200, 1).next()
    while not decoding.elsewhere:
        await decoding.decode(body, otlp.PROTOBUF)
        await asyncio.sleep(0.05)
    print(*(p.pid for p in psutil.Process().children(recursive=True)), flush=True)
    await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""


def mixed() -> bytes:
    """JSON of good spans, a bad one, content, floods and a sender's drops."""

    def said(**values):
        named = {k.replace("__", "."): v for k, v in values.items()}
        return [{"key": k, "value": {"stringValue": v}} for k, v in named.items()]

    def span(number, **more):
        ids = {"traceId": "a" * 32, "spanId": f"{number + 1:016x}"}
        times = {"startTimeUnixNano": str(number), "endTimeUnixNano": str(number + 9)}
        return {**ids, **times, "name": "chat", **more}

    steps = [span(n, attributes=said(gen_ai__prompt="secret", task=f"{n}")) for n in range(150)]
    dropped = {"key": "heddle.sender.dropped", "value": {"intValue": "7"}}
    odd = [span(200, spanId="short"), span(201, attributes=[dropped])]
    floods = [span(300 + n, **MANY) for n in range(3)]
    service = {"attributes": said(service__name="s")}
    scopes = [
        {"scope": {"name": "x"}, "spans": [*steps, *odd]},
        {"scope": {"name": "sglang server"}, "spans": floods},
    ]
    return orjson.dumps({"resourceSpans": [{"resource": service, "scopeSpans": scopes}]})


async def through_a_process(decoding: Decoding, body: bytes, media: str) -> otlp.Decoded:
    """The answer of the first request that the process took."""
    while True:
        before, decoded = decoding.elsewhere, await decoding.decode(body, media)
        if decoding.elsewhere > before:
            return decoded
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("media", [otlp.PROTOBUF, otlp.JSON])
def test_the_process_answers_as_this_one_does(media):
    body = mixed() if media == otlp.JSON else Requests(SPANS, 1).next()

    async def both():
        here, there = Decoding(), Decoding(processes=1)
        try:
            expected = await here.decode(body, media)
            return expected, await through_a_process(there, body, media), here, there
        finally:
            here.close()
            there.close()

    expected, got, here, there = asyncio.run(both())
    plain = [name for name in expected.table.column_names if name != "received_ns"]
    assert got.table.select(plain).equals(expected.table.select(plain))
    assert (len(got.rows), got.rows.floods) == (len(expected.rows), expected.rows.floods)
    assert (got.rejected, got.message) == (expected.rejected, expected.message)
    assert got.rows.reasons == expected.rows.reasons
    assert got.rows.sender_drops == expected.rows.sender_drops
    if media == otlp.JSON:
        assert (len(expected.rows.floods), expected.rejected) == (3, 1)
        assert expected.rows.sender_drops == {"s": 7}
        assert here.content.left_out == 150
        assert there.content.left_out % 150 == 0 < there.content.left_out


def test_a_request_that_cannot_be_read_says_why_from_the_process_too():
    async def refused():
        decoding = Decoding(processes=1)
        try:
            await through_a_process(decoding, Requests(SPANS, 1).next(), otlp.PROTOBUF)
            with pytest.raises(otlp.BadRequest, match="no protobuf"):
                await decoding.decode(b"\xff" * 50_000, otlp.PROTOBUF)
        finally:
            decoding.close()

    asyncio.run(refused())


def test_a_killed_process_costs_no_request_and_another_one_begins():
    async def killed():
        decoding, body = Decoding(processes=1), Requests(SPANS, 1).next()
        try:
            await through_a_process(decoding, body, otlp.PROTOBUF)
            own = psutil.Process().children(recursive=True)
            for process in own:
                if "spawn_main" in " ".join(process.cmdline()):
                    os.kill(process.pid, signal.SIGKILL)
            answers = [await decoding.decode(body, otlp.PROTOBUF) for _ in range(3)]
            again = await through_a_process(decoding, body, otlp.PROTOBUF)
            return [len(a.rows) for a in (*answers, again)], decoding.deaths
        finally:
            decoding.close()

    assert asyncio.run(killed()) == ([SPANS] * 4, 1)


def test_the_process_ends_with_a_killed_collector(tmp_path):
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert children
    assert not psutil.wait_procs(children, timeout=60)[1]
