"""How does OTLP over HTTP come in?

A raw ASGI application: POST /v1/traces in protobuf or JSON, answered in the same media type once
the spans are durable. Errors are google.rpc.Status bodies; only 429 and 503 ask for a retry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from hmac import compare_digest
from typing import Any, Final

import orjson
from google.rpc import code_pb2, status_pb2

from heddle.collector import conventions as c
from heddle.collector import otlp
from heddle.collector.errors import CollectorError, Overloaded, Unstorable
from heddle.collector.inflate import Damaged, TooLarge, UnknownEncoding
from heddle.collector.ingest import MAX_BODY_BYTES, Arrival, Ingest, response
from heddle.collector.otlp_sender import PROTOCOL_HEADER

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
TRACES: Final = "/v1/traces"
_OTHER_SIGNALS: Final = ("/v1/metrics", "/v1/logs")
_RPC: Final = {
    400: code_pb2.INVALID_ARGUMENT,
    401: code_pb2.UNAUTHENTICATED,
    404: code_pb2.UNIMPLEMENTED,
    405: code_pb2.UNIMPLEMENTED,
    413: code_pb2.RESOURCE_EXHAUSTED,
    415: code_pb2.INVALID_ARGUMENT,
    429: code_pb2.RESOURCE_EXHAUSTED,
    503: code_pb2.UNAVAILABLE,
}
# Unreadable bodies and full stores are counted where they are found.
_REASONS: Final = {
    401: "token",
    404: "path",
    405: "method",
    413: "too large",
    415: "encoding or media type",
    503: "unwritable",
}
_log = logging.getLogger(__name__)


class _Refused(Exception):
    """Answer with this HTTP status."""

    def __init__(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


class _Gone(Exception):
    """The sender hung up."""


class Receiver:
    """The ASGI application of the OTLP/HTTP port."""

    def __init__(self, ingest: Ingest, *, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._ingest = ingest
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        media = headers.get("content-type", otlp.PROTOBUF).split(";")[0].strip().lower()
        reply = otlp.JSON if media == otlp.JSON else otlp.PROTOBUF
        try:
            self._check(scope, headers, media)
            self._ingest.heard(headers.get(PROTOCOL_HEADER.lower()))
            with self._ingest.arriving() as arrival:
                answer = await self._take(scope, receive, headers, media, arrival)
            await _send(send, 200, reply, answer)
        except _Gone:
            return
        except asyncio.CancelledError:
            # The collector ends before this was committed: the sender keeps it and tries again.
            ending = _Refused(503, "the collector is shutting down", (b"retry-after", b"1"))
            await _send(send, 503, reply, _status(ending, reply), *ending.headers)
            raise
        except Exception as error:  # noqa: BLE001 (translated into the protocol's answer, logged)
            refused = _translate(error)
            reason = _REASONS.get(refused.status)
            if reason:
                self._ingest.refuse(reason, str(refused))
            await _send(send, refused.status, reply, _status(refused, reply), *refused.headers)

    async def _take(
        self,
        scope: Message,
        receive: Receive,
        headers: dict[str, str],
        media: str,
        arrival: Arrival,
    ) -> bytes:
        body = await _body(receive, self._max_body_bytes, arrival)
        self._ingest.limits.take(str((scope.get("client") or ("",))[0]), len(body))
        encoding = headers.get("content-encoding", "")
        plain = await self._ingest.inflate(body, encoding, self._max_body_bytes)
        if plain is not body:
            arrival.grow(len(plain))
        decoded = await self._ingest.take(plain, media)
        return _success(decoded, otlp.JSON if media == otlp.JSON else otlp.PROTOBUF)

    def _check(self, scope: Message, headers: dict[str, str], media: str) -> None:
        path = scope["path"].rstrip("/")
        if path in _OTHER_SIGNALS:
            message = f"this collector keeps traces; send {path[4:]} elsewhere"
            raise _Refused(404, message)
        if path != TRACES:
            message = f"nothing is served at {scope['path']}; send traces to {TRACES}"
            raise _Refused(404, message)
        if scope["method"] != "POST":
            raise _Refused(405, f"{TRACES} takes POST", (b"allow", b"POST"))
        if media not in (otlp.PROTOBUF, otlp.JSON):
            message = f"content type {media!r} is not taken; send {otlp.PROTOBUF} or {otlp.JSON}"
            raise _Refused(415, message)
        expected = f"Bearer {self._ingest.token}" if self._ingest.token else ""
        given = headers.get("authorization", "")
        if expected and not compare_digest(given.encode(), expected.encode()):
            raise _Refused(401, "the ingest token is missing or wrong: Authorization: Bearer TOKEN")


async def _body(receive: Receive, limit_bytes: int, arrival: Arrival) -> bytes:
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            text = f"the body is larger than {limit_bytes} bytes"
            raise TooLarge(text)
        arrival.grow(len(part))
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


def _translate(error: Exception) -> _Refused:
    text = str(error)
    if isinstance(error, _Refused):
        return error
    if isinstance(error, Overloaded):
        return _Refused(429, text, (b"retry-after", str(error.retry_after_s).encode()))
    if isinstance(error, TooLarge):
        return _Refused(413, text)
    if isinstance(error, UnknownEncoding):
        return _Refused(415, text)
    if isinstance(error, otlp.BadRequest | Damaged | Unstorable):
        return _Refused(400, text)
    if not isinstance(error, CollectorError):
        _log.error("a trace request failed", exc_info=error)
        text = f"the collector failed on this request: {type(error).__name__}"
    return _Refused(503, text, (b"retry-after", b"1"))


def _success(decoded: otlp.Decoded, media: str) -> bytes:
    if media == otlp.PROTOBUF:
        return response(decoded).SerializeToString()
    if not decoded.rejected:
        return b"{}"
    partial = {"rejectedSpans": str(decoded.rejected), "errorMessage": decoded.message}
    return orjson.dumps({"partialSuccess": partial})


def _status(refused: _Refused, media: str) -> bytes:
    code = _RPC[refused.status]
    if media == otlp.JSON:
        return orjson.dumps({"code": code, "message": str(refused)})
    return status_pb2.Status(code=code, message=str(refused)).SerializeToString()


async def _send(
    send: Send, status: int, media: str, body: bytes, *headers: tuple[bytes, bytes]
) -> None:
    fixed = [
        (b"content-type", media.encode()),
        (b"content-length", str(len(body)).encode()),
        (PROTOCOL_HEADER.lower().encode(), c.VERSION.encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body})
