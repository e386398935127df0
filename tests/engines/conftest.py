"""Engines for this tier: a genuine SGLang on the CPU, started once, and the emulated one beside it.

Ephemeral ports, a log file each, always stopped. Run through `make test-engines`, which installs
SGLang into an environment of its own first (HEDDLE_SGLANG_VENV names another).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_processes import FLAGS, HEDDLE, HERE, SGLANG, Engine, free_port, running


@pytest.fixture(scope="session")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The genuine one; a single start serves every test of the tier."""
    if not (SGLANG / ".heddle-engines").exists():
        pytest.fail(f"SGLang is not installed in {SGLANG}; run: make test-engines")
    port, log = free_port(), tmp_path_factory.mktemp("sglang") / "engine.log"
    url = f"http://127.0.0.1:{port}"
    with running([HERE / "serve.sh", SGLANG, str(port), *FLAGS], f"{url}/health", log):
        yield Engine("sglang", url)


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The emulated one, in real time."""
    port, log = free_port(), tmp_path_factory.mktemp("emulated") / "engine.log"
    url = f"http://127.0.0.1:{port}"
    with running([HEDDLE, "engine", "--port", str(port)], f"{url}/health", log):
        yield Engine("emulated", url)


@pytest.fixture(params=["sglang", "emulated"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """What is true of an engine is true of both kinds."""
    return request.getfixturevalue(request.param)
