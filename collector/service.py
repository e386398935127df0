"""How does the collector run, two receivers and the query port in one process, and how does it end?

`serve` blocks until SIGTERM or SIGINT, then commits what it holds. `running` runs it in a thread
of the calling process. The collector traces nothing of its own.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.loops.auto import auto_loop_factory

from heddle.collector.asking import create_app
from heddle.collector.errors import CollectorError, PortInUse
from heddle.collector.grpc import create_server
from heddle.collector.heads import BoundedHeads
from heddle.collector.ingest import Ingest
from heddle.collector.limits import SenderLimits
from heddle.collector.receiver import Receiver
from heddle.collector.security import Tls, check_bind, tls_of
from heddle.collector.settings import CollectorSettings, Ports
from heddle.collector.store import FILE_NAME, Store
from heddle.collector.upkeep import Upkeep

_GRACE_S: Final = 10.0
"""What is under way may take so long to be answered; what waits for nothing ends at once."""
_log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Two of these share a process, so neither may take the signals."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class CollectorService:
    """One collector; `start` binds everything or raises, `stop` commits and frees it."""

    def __init__(self, settings: CollectorSettings) -> None:
        self.settings = settings
        self._servers: list[_Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._grpc: Any = None
        self._store: Store | None = None
        self._ingest: Ingest | None = None
        self._upkeep: Upkeep | None = None
        self._tls: Tls | None = None

    async def start(self) -> Ports:
        """Listen; PortInUse, StoreHeld or StoreTooNew when that must not be."""
        s = self.settings
        check_bind(s.host, s.tokens)
        self._tls = tls_of(s.tls_certificate, s.tls_key)
        http = bind(s.host, s.http_port, "OTLP over HTTP")
        try:
            query = bind(s.host, s.query_port, "queries")
        except CollectorError:
            http.close()
            raise
        try:
            return await self._start(http, query)
        except BaseException:
            http.close()
            query.close()
            await self.stop()
            raise

    async def _start(self, http: socket.socket, query: socket.socket) -> Ports:
        s = self.settings
        self._store = store = Store(
            Path(s.data_dir) / FILE_NAME,
            memory_limit=s.memory_limit,
            threads=s.threads,
            bound_bytes=s.bound_bytes,
            sealed_url=s.sealed_url,
            silent_s=s.silent_s,
        )
        ingest = Ingest(
            store, s.tokens.ingest, SenderLimits(s.sender_bytes_per_s), s.capture, s.decoders
        )
        self._ingest = ingest
        self._grpc, grpc_port = create_server(ingest, s.host, s.grpc_port, self._tls)
        await self._grpc.start()
        receiver = Receiver(ingest, max_body_bytes=s.max_body_bytes)
        await self._listen(receiver, http)
        await self._listen(create_app(store, ingest, s.tokens, s.sql, s.host), query)
        self._upkeep = Upkeep(store, s.keeping)
        self._upkeep.start()
        return Ports(http.getsockname()[1], grpc_port, query.getsockname()[1])

    async def _listen(self, app: Any, sock: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            http=BoundedHeads,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=int(_GRACE_S),
            ssl_certfile=self._tls.certificate if self._tls else None,
            ssl_keyfile=self._tls.key if self._tls else None,
        )
        server = _Server(config)
        self._servers.append(server)
        task = asyncio.create_task(server.serve(sockets=[sock]))
        self._tasks.append(task)
        while not server.started and not task.done():
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Take no more, answer what is under way, commit, close."""
        for server in self._servers:
            server.should_exit = True
        if self._grpc is not None:
            await self._grpc.stop(_GRACE_S)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._upkeep is not None:
            await asyncio.to_thread(self._upkeep.stop)
        if self._ingest is not None:
            self._ingest.close()
        if self._store is not None:
            await asyncio.to_thread(self._store.close)


def bind(host: str, port: int, what: str) -> socket.socket:
    """A listening socket; PortInUse when another process has the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        # Now, not when the server starts: two may bind with SO_REUSEADDR, only one may listen.
        sock.listen(2_048)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port, what) from error
        message = f"the collector cannot listen on {host} port {port}: {error.strerror}"
        raise CollectorError(message) from error
    return sock


def serve(settings: CollectorSettings) -> None:
    """Run until SIGTERM or SIGINT."""
    # uvloop where it is installed: a third less CPU for a request of one span.
    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(_serve(settings))


async def _serve(settings: CollectorSettings) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    service = CollectorService(settings)
    ports = await service.start()
    _log.info(
        "collector: OTLP/HTTP %s, OTLP/gRPC %s, queries %s", ports.http, ports.grpc, ports.query
    )
    await ended.wait()
    await service.stop()


@contextmanager
def running(settings: CollectorSettings) -> Generator[Ports, None, None]:
    """A collector in a thread of this process, for as long as the block lasts."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="heddle-collector", daemon=True)
    thread.start()
    service = CollectorService(settings)
    try:
        yield asyncio.run_coroutine_threadsafe(service.start(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(service.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
