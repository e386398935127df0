"""Is the contract of an engine true of the emulated one?

The claims are in tests/engines/contract_*.py, where a genuine SGLang is asked the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from contract_calls import MARGIN, SLOTS, Engine
from contract_fleets import *  # noqa: F403
from contract_requests import *  # noqa: F403
from contract_spans import *  # noqa: F403
from contract_steering import *  # noqa: F403
from span_sink import SpanSink, sink

from heddle.controller.clock import Clock
from heddle.controller.emulator.http import EngineApp, bind, make_server
from heddle.controller.emulator.request import EngineConfig

# Fast enough for a weight load of 7 s, slow enough for a test to meet a request of 3000 tokens.
CLOCK = Clock(time.time_ns(), 3.0)


@contextmanager
def served(otlp_endpoint: str | None = None, **config: Any) -> Generator[Engine]:
    """An engine on a thread."""
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        settings = EngineConfig(kv_tokens=8192, **config)
        app = EngineApp(settings, CLOCK, port, otlp_endpoint=otlp_endpoint)
        server = make_server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield Engine("emulated", f"http://127.0.0.1:{port}")
        server.should_exit = True
        thread.join()
        app.runner.close()


@pytest.fixture(scope="module")
def spans() -> Iterator[SpanSink]:
    with sink() as made:
        yield made


@pytest.fixture(scope="module")
def engine(spans: SpanSink) -> Iterator[Engine]:
    with served(spans.url.removesuffix("/v1/traces")) as made:
        yield made


@pytest.fixture(scope="module")
def preempting() -> Iterator[Engine]:
    with served(max_running=SLOTS, preemption_threshold=MARGIN) as made:
        yield made


@pytest.fixture(scope="module")
def wide() -> Iterator[Engine]:
    with served(degree=2) as made:
        yield made


@pytest.fixture
def pair(engine: Engine, preempting: Engine) -> tuple[Engine, Engine]:
    return engine, preempting


@pytest.fixture
def http(engine: Engine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine.url, timeout=60.0) as client:
        yield client


@pytest.fixture
def now() -> Callable[[], float]:
    return lambda: CLOCK.now_ns() / 1e9


@pytest.fixture
def shares() -> bool:
    return False


@pytest.fixture
def weights() -> str:
    return "/checkpoints/7"
