"""Engines for this tier: genuine SGLangs on the CPU, each started once and only when asked for.

Four starts serve every test: one that traces, its neighbour with a storage both could share, and
two with Heddle's plugin, of one rank and of two. Ephemeral ports, a log file each, always stopped.
Run through `make test-engines`, which installs SGLang into an environment of its own first
(HEDDLE_SGLANG_VENV names another).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from contract_calls import MARGIN, SLOTS, Engine
from engine_processes import FLAGS, HERE, ORDER_ONLY, ROOT, SGLANG, STORAGE, free_port, running
from span_sink import SpanSink, sink

pytest.register_assert_rewrite(
    "contract_fleets", "contract_requests", "contract_spans", "contract_steering"
)


def tracing(spans: SpanSink) -> tuple[str, ...]:
    """Flags of an engine that sends its spans there."""
    return "--enable-trace", f"--otlp-traces-endpoint={spans.url}"


@contextmanager
def started(folder: Path, flags: list[str], **env: str) -> Generator[Engine]:
    """A genuine engine for as long as the block lasts."""
    if not (SGLANG / ".heddle-engines").exists():
        pytest.fail(f"SGLang is not installed in {SGLANG}; run: make test-engines")
    port = free_port()
    url, command = f"http://127.0.0.1:{port}", [HERE / "serve.sh", SGLANG, str(port), *flags]
    env["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
    with running(command, f"{url}/health", folder / "engine.log", **env):
        yield Engine("sglang", url)


@pytest.fixture(scope="session")
def spans() -> Iterator[SpanSink]:
    with sink() as made:
        yield made


@pytest.fixture(scope="session")
def storage(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The folder in which engines with HiCache keep their pages."""
    folder = tmp_path_factory.mktemp("pages")
    return {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(folder)}


@pytest.fixture(scope="session")
def sglang(spans: SpanSink, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """As Heddle asks for one: order without preemption, metrics, spans."""
    flags = [*FLAGS, *ORDER_ONLY, *tracing(spans)]
    with started(tmp_path_factory.mktemp("sglang"), flags) as engine:
        yield engine


@pytest.fixture(scope="session")
def neighbour(
    storage: dict[str, str], spans: SpanSink, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """A second one, with a storage."""
    flags = [*FLAGS, *ORDER_ONLY, *STORAGE, *tracing(spans)]
    with started(tmp_path_factory.mktemp("neighbour"), flags, **storage) as engine:
        yield engine


@contextmanager
def plugged(folder: Path, degree: int, *more: str, **env: str) -> Generator[tuple[Engine, str]]:
    """Heddle's plugin inside, two slots, preemption beyond a margin; and the plugin's address."""
    shutil.copy(ROOT / "controller" / "sglang_plugin.py", folder / "heddle_sglang_plugin.py")
    info = folder / "heddle_plugin-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: heddle-plugin\nVersion: 0.1\n")
    entry = "[sglang.srt.plugins]\nheddle = heddle_sglang_plugin:register\n"
    (info / "entry_points.txt").write_text(entry)
    changes = free_port()
    env |= {"HEDDLE_PLUGINS": str(folder), "HEDDLE_PRIORITY_PORT": str(changes)}
    if degree > 1:
        env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join("01"[:degree])
    flags = [*FLAGS, *STORAGE, f"--max-running-requests={SLOTS}", f"--tp-size={degree}", *more]
    flags.append(f"--priority-scheduling-preemption-threshold={MARGIN}")
    # Of 15 passes by default, which a slowed engine takes seconds for.
    flags.append("--load-snapshot-publish-interval=1")
    with started(folder, flags, **env) as engine:
        yield engine, f"http://127.0.0.1:{changes}"


@pytest.fixture(scope="session")
def plugged_tp1(
    storage: dict[str, str], spans: SpanSink, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Engine, str]]:
    with plugged(tmp_path_factory.mktemp("tp1"), 1, *tracing(spans), **storage) as both:
        yield both


@pytest.fixture(scope="session")
def plugged_tp2(
    storage: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Engine, str]]:
    with plugged(tmp_path_factory.mktemp("tp2"), 2, **storage) as both:
        yield both


@pytest.fixture
def engine(sglang: Engine) -> Engine:
    return sglang


@pytest.fixture
def http(engine: Engine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine.url, timeout=60.0) as client:
        yield client


@pytest.fixture
def now() -> Callable[[], float]:
    return time.time


@pytest.fixture
def preempting(plugged_tp1: tuple[Engine, str]) -> Engine:
    return plugged_tp1[0]


@pytest.fixture
def wide(plugged_tp2: tuple[Engine, str]) -> Engine:
    return plugged_tp2[0]


@pytest.fixture
def pair(neighbour: Engine, preempting: Engine) -> tuple[Engine, Engine]:
    return neighbour, preempting


@pytest.fixture
def weights(http: httpx.Client) -> str:
    return str(http.get("/model_info").json()["model_path"])
