"""What does a sender of the ingest bench send, and how fast is it answered?

A process of its own: `python -m heddle.app.bench.ingest_load URL ...`; prints one JSON line. Its
requests are one template with new span ids written into the bytes, so that the sender costs little
of the cores it shares with the collector: mixed dialects, start markers, a tenth sent twice.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import grpc.aio
import orjson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
TRAJECTORIES: Final = 64
_MARK: Final = 0xFEED << 48
_AGAIN_EVERY: Final = 10
Send = Callable[[bytes], Awaitable[bool]]


def _attributes(target: Any, known: dict[str, Any]) -> None:
    kinds = {str: "string_value", int: "int_value", float: "double_value"}
    for key, value in known.items():
        setattr(target.attributes.add(key=key).value, kinds[type(value)], value)


def _step(trajectory: int, index: int) -> dict[str, Any]:
    whose = {"heddle.run.id": "bench", "heddle.rollout.id": "r0", "heddle.task": "coding"}
    own = {
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": f"t{trajectory}",
        "heddle.group.id": f"g{trajectory // 8}",
        "heddle.worker.id": f"w{trajectory % 4}",
        "heddle.step.index": index,
        "gen_ai.usage.input_tokens": 1_000 + 37 * index,
        "gen_ai.usage.output_tokens": 100 + index,
        "heddle.queue_s": 0.001 * index,
        "heddle.decode_s": 1.5 + 0.01 * index,
    }
    return {**whose, **own}


def _openinference(trajectory: int, index: int) -> dict[str, Any]:
    return {
        "openinference.span.kind": "LLM",
        "session.id": f"s{trajectory}",
        "llm.model_name": "m",
        "llm.token_count.prompt": 800 + index,
        "llm.token_count.completion": 90,
        "llm.input_messages.0.message.content": "What is the weather in Paris? " * 4,
    }


def _engine(trajectory: int, index: int) -> dict[str, Any]:
    return {"rid": f"{trajectory:016x}-{index:05d}-00", "thread_label": "scheduler", "tp_rank": 0}


def template(spans: int) -> bytes:
    """One request with marks where the ids go: 70 % steps, the rest markers and other dialects."""
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    _attributes(group.resource, {"service.name": "bench", "service.instance.id": "bench-1"})
    target = group.scope_spans.add().spans
    for at in range(spans):
        kind = at % 10
        # A marker announces the span before its place in the next request: of that trajectory.
        trajectory = (at - (kind == 7)) % TRAJECTORIES
        own = (_MARK + at).to_bytes(8, "big")
        start = 1_790_000_000_000_000_000 + at * 1_000_000
        span = target.add(trace_id=struct.pack(">QQ", 7, trajectory + 1), span_id=own)
        span.name, span.start_time_unix_nano, span.end_time_unix_nano = "chat m", start, start + 5
        known = _step(trajectory, at // TRAJECTORIES)
        if kind == 7:
            span.name, known["gen_ai.operation.name"] = "heddle.start", "heddle.start"
            known |= {"heddle.starts": own.hex(), "heddle.starts.op": "chat"}
        elif kind == 8:
            known = _openinference(trajectory, at)
        elif kind == 9:
            known = _engine(trajectory, at)
        _attributes(span, known)
    return request.SerializeToString()


class Requests:
    """Bodies that all differ: `next` writes fresh ids over the template's marks."""

    def __init__(self, spans: int, sender: int) -> None:
        self.spans = spans
        self._body = bytearray(template(spans))
        self._raw = [self._body.find((_MARK + at).to_bytes(8, "big")) for at in range(spans)]
        texts = [(_MARK + at).to_bytes(8, "big").hex().encode() for at in range(spans)]
        self._text = [self._body.find(text) for text in texts]
        self._base = (sender << 52) | (time.time_ns() & 0xFFFFFFFF) << 20
        self._number = 0

    def next(self) -> bytes:
        """One more body."""
        body, base = self._body, self._base + self._number * self.spans
        for at, (raw, text) in enumerate(zip(self._raw, self._text, strict=True)):
            struct.pack_into(">Q", body, raw, base + at)
            if text >= 0:
                body[text : text + 16] = b"%016x" % (base + at + self.spans - 1)
        self._number += 1
        return bytes(body)


@dataclass(slots=True)
class Told:
    """What one sender saw."""

    acknowledged: int = 0
    repeated: int = 0
    refused: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    waits_s: list[float] = field(default_factory=list[float])


async def drive(
    send: Send, requests: Requests, *, seconds: float, connections: int, rate: float
) -> Told:
    """Send for that long; a *rate* paces requests per second, 0 sends as fast as answered."""
    told, began, cpu = Told(), time.monotonic(), time.process_time()
    turn = 0

    async def sender() -> None:
        nonlocal turn
        while time.monotonic() - began < seconds:
            mine, turn = turn, turn + 1
            if rate:
                await asyncio.sleep(max(0.0, began + mine / rate - time.monotonic()))
            body = requests.next()
            asked = time.monotonic()
            if not await send(body):
                told.refused += 1
                await asyncio.sleep(0.1)
                continue
            told.waits_s.append(time.monotonic() - asked)
            told.acknowledged += requests.spans
            if mine % _AGAIN_EVERY == 0 and await send(body):
                told.repeated += requests.spans

    await asyncio.gather(*(sender() for _ in range(connections)))
    told.seconds, told.cpu_s = time.monotonic() - began, time.process_time() - cpu
    return told


async def over_http(url: str, requests: Requests, **how: Any) -> Told:
    """To URL/v1/traces."""
    async with aiohttp.ClientSession(headers={"content-type": "application/x-protobuf"}) as http:

        async def send(body: bytes) -> bool:
            async with http.post(f"{url}/v1/traces", data=body) as reply:
                await reply.read()
                return reply.status == 200

        return await drive(send, requests, **how)


async def over_grpc(target: str, requests: Requests, **how: Any) -> Told:
    """To host:port."""
    async with grpc.aio.insecure_channel(target) as channel:
        export = channel.unary_unary(EXPORT)

        async def send(body: bytes) -> bool:
            try:
                await export(body)
            except grpc.aio.AioRpcError:
                return False
            return True

        return await drive(send, requests, **how)


def main() -> None:
    """Arguments in, one JSON line out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--spans", type=int, default=512)
    parser.add_argument("--sender", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--rate", type=float, default=0.0)
    given = parser.parse_args()
    requests = Requests(given.spans, given.sender)
    over = over_http if given.target.startswith("http") else over_grpc
    how = {"seconds": given.seconds, "connections": given.connections, "rate": given.rate}
    told = asyncio.run(over(given.target, requests, **how))
    print(orjson.dumps(told).decode())


if __name__ == "__main__":
    main()
