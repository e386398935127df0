"""How does OTLP over gRPC come in?

A generic handler that takes raw bytes, so that decoding is ours and off the event loop. Bad data is
INVALID_ARGUMENT, a full store UNAVAILABLE with RetryInfo: the codes that make senders do right.
"""

from __future__ import annotations

import logging
from hmac import compare_digest
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from heddle.collector import otlp
from heddle.collector.errors import CollectorError, Overloaded, PortInUse, Unstorable
from heddle.collector.ingest import MAX_BODY_BYTES, Ingest, response
from heddle.collector.limits import host_of
from heddle.collector.security import Tls

_SERVICE: Final = "opentelemetry.proto.collector.trace.v1.TraceService"
_DETAILS: Final = "grpc-status-details-bin"
_log = logging.getLogger(__name__)


def create_server(
    ingest: Ingest, host: str, port: int, tls: Tls | None = None
) -> tuple[grpc.aio.Server, int]:
    """A server not yet started and the port it is bound to; PortInUse if it cannot be."""
    options = [
        ("grpc.max_receive_message_length", MAX_BODY_BYTES),
        # Linux would let two collectors share the port, each getting half of the spans.
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.aio.server(options=options)
    method = grpc.unary_unary_rpc_method_handler(_Export(ingest).take)
    handlers = grpc.method_handlers_generic_handler(_SERVICE, {"Export": method})
    server.add_generic_rpc_handlers((handlers,))
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = _listen(server, address, tls)
    except RuntimeError:
        bound = 0
    if bound == 0:
        raise PortInUse(host, port, "OTLP over gRPC")
    return server, bound


def _listen(server: grpc.aio.Server, address: str, tls: Tls | None) -> int:
    if tls is None:
        return server.add_insecure_port(address)
    pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    return server.add_secure_port(address, grpc.ssl_server_credentials([pair]))


class _Export:
    """TraceService/Export."""

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest

    async def take(self, body: bytes, context: Any) -> bytes:
        """Durably store one request."""
        await self._authorise(context)
        try:
            self._ingest.limits.take(host_of(context.peer()), len(body))
            with self._ingest.arriving() as arrival:
                arrival.grow(len(body))
                decoded = await self._ingest.take(body, otlp.PROTOBUF)
        except Overloaded as error:
            await _refuse_for_now(context, str(error), error.retry_after_s)
        except (otlp.BadRequest, Unstorable) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except CollectorError as error:
            await _refuse_for_now(context, str(error), 1)
        else:
            return response(decoded).SerializeToString()
        return b""

    async def _authorise(self, context: Any) -> None:
        token = self._ingest.token
        if not token:
            return
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        if not compare_digest(str(given).encode(), f"Bearer {token}".encode()):
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "the ingest token is missing or wrong: authorization: Bearer TOKEN",
            )


async def _refuse_for_now(context: Any, text: str, retry_after_s: int) -> NoReturn:
    delay = duration_pb2.Duration(seconds=retry_after_s)
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=code_pb2.UNAVAILABLE, message=text, details=[detail])
    context.set_trailing_metadata(((_DETAILS, status.SerializeToString()),))
    await context.abort(grpc.StatusCode.UNAVAILABLE, text)
    raise AssertionError(text)
