"""A fleet of genuine engines that changes its degree: 1 to 2, with weights from a versioned path.

The launcher starts both engines with the flags and the environment of their degree. The half on Ray
is for hand runs (`make test-long`): the contract runs on small engines in `make test-ray`.
"""

from __future__ import annotations

import shlex
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest
from contract_calls import prompt
from engine_processes import FLAGS, HEALTH_S, HEDDLE, HERE, SGLANG, free_port, running

from heddle.controller.client import ControllerClient
from heddle.controller.wire_fleet import FleetApplyIn, WeightsIn

CONFIG = """
[fleet]
gpus = 2
ready_s = {ready_s}
launcher = "{launcher}"
[fleet.degree_flags]
2 = "--tp-size=2"
[fleet.engine_env]
2 = {{ SGLANG_CPU_OMP_THREADS_BIND = "0|1" }}
"""
GREEDY = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
VERSION = "step-120"


# Three engines start one after the other: 160 s and more.
pytestmark = pytest.mark.long


@pytest.fixture(params=["local", "ray"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ControllerClient]:
    """A controller that launches genuine engines on two logical GPUs."""
    if not (SGLANG / ".heddle-engines").exists():
        pytest.fail(f"SGLang is not installed in {SGLANG}; run: make test-engines")
    config = tmp_path / "heddle.toml"
    config.write_text(CONFIG.format(ready_s=HEALTH_S, launcher=request.param))
    (tmp_path / "secret").write_text("a token")
    engine = shlex.join([str(HERE / "serve.sh"), str(SGLANG), "{port}", *FLAGS])
    port, nobody = free_port(), f"http://127.0.0.1:{free_port()}"
    words = ["control", "--port", str(port), "--data", str(tmp_path), "--launch-template", engine]
    words += ["--token-file", str(tmp_path / "secret"), "--first-port", str(free_port())]
    words += ["--collector", nobody, "--collector-queries", nobody]
    url, log = f"http://127.0.0.1:{port}", tmp_path / "controller.log"
    env = {"HEDDLE_CONFIG": str(config), "RAY_AUTH_MODE": "disabled"}
    with (
        running([str(HEDDLE), *words], f"{url}/heddle/v1/healthz", log, **env),
        ControllerClient(url, token="a token", timeout_s=2 * HEALTH_S) as client,
    ):
        yield client


def other_weights(folder: Path) -> Path:
    """The model again, with the sign of its last norm turned: what was likely is not any more."""
    shutil.copytree(SGLANG / "tiny-qwen3", folder)
    file = folder / "model.safetensors"
    raw = bytearray(file.read_bytes())
    (size,) = struct.unpack("<Q", raw[:8])
    start, end = orjson.loads(raw[8 : 8 + size])["model.norm.weight"]["data_offsets"]
    for high in range(8 + size + start + 1, 8 + size + end, 2):
        raw[high] ^= 0x80
    file.write_bytes(raw)
    return folder


def said(url: str, path: str) -> dict[str, object]:
    return httpx.get(url + path, timeout=60.0).json()


def greedy(url: str) -> list[int]:
    asked = {"input_ids": prompt(5, 40), "sampling_params": GREEDY}
    reply = httpx.post(f"{url}/generate", json=asked, timeout=120.0)
    assert reply.status_code == 200, reply.text
    return reply.json()["output_ids"]


@pytest.mark.timeout(900)
def test_the_engine_of_degree_2_serves_what_that_of_degree_1_did_before_its_first_step(
    fleet: ControllerClient, tmp_path: Path
) -> None:
    path = str(other_weights(tmp_path / VERSION))
    first = fleet.apply_fleet(FleetApplyIn(layout=[1], who="test", wait=True))
    assert (first.state, first.error) == ("done", "")
    (one,) = fleet.workers()
    begun_with = greedy(one.url)
    # The trainer's step, to the engine that serves.
    asked = {"model_path": path, "weight_version": VERSION}
    loaded = httpx.post(f"{one.url}/update_weights_from_disk", json=asked, timeout=120.0)
    assert loaded.json()["success"] is True
    trained = greedy(fleet.url)
    assert trained != begun_with
    fleet.declare_weights(WeightsIn(owner="disk", path=path, version=VERSION))

    change = fleet.apply_fleet(FleetApplyIn(layout=[2], who="test", wait=True))
    assert (change.state, change.error, change.after) == ("done", "", [2])
    (two,) = fleet.workers()
    at = {phase.name: phase for phase in change.phases if phase.worker == two.worker_id}
    assert at["launch"].end_ns <= at["weights"].start_ns < at["weights"].end_ns
    assert at["weights"].end_ns <= at["flush"].end_ns <= at["rejoin"].start_ns
    assert said(two.url, "/server_info")["tp_size"] == 2
    assert said(two.url, "/model_info")["weight_version"] == VERSION
    assert greedy(two.url) == trained
    assert greedy(fleet.url) == trained
    with pytest.raises(httpx.TransportError):
        said(one.url, "/health")
