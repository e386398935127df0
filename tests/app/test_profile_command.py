"""Does `heddle profile` find the speed of a known engine, and refuse what it may not touch?"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from heddle.app.cli import build
from heddle.app.errors import AppError
from heddle.app.probe import BESIDE
from heddle.app.profile import grid_for
from heddle.controller.clock import Clock
from heddle.controller.emulator.http import EngineApp, bind, make_server
from heddle.controller.emulator.request import EngineConfig, HostConfig
from heddle.controller.errors import EngineLost
from heddle.models.latency import load_profile


@contextmanager
def engine(speed: float, storage: Path | None = None, **config: Any) -> Generator[str]:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        clock = Clock(time.time_ns(), speed)
        app = EngineApp(EngineConfig(**config), clock, port, storage=storage)
        server = make_server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{port}"
        server.should_exit = True
        thread.join()


def profile(*words: str) -> Any:
    return CliRunner().invoke(build(), ["profile", *words], catch_exceptions=False)


def test_an_emulated_engine_is_measured_fitted_and_saved_by_version(tmp_path: Path) -> None:
    words = ("--data", str(tmp_path), "--quick", "--batch", "8", "--name", "x y", "--json")
    with engine(20.0, kv_tokens=60_000) as url:
        first = json.loads(profile(url, *words).stdout)
        second = json.loads(profile(url, *words, "--no-reload").stdout)
    assert (first["version"], second["version"]) == (1, 2)
    assert first["path"].endswith("profiles/x-y/v0001.json")
    row = first["models"]["Qwen3-14B"]["degrees"]["1"]
    assert row["fit"]["decode"]["held_out_mean"] <= 2.0
    assert row["fit"]["decode"]["held_out_points"] >= 3
    assert row["kv_capacity_tokens"] == 60_000
    # 29.5 GB at 4 GB/s from disk; a second below a second for what a clock at x20 is late.
    assert row["times_s"]["load_s"] == pytest.approx(7.4, abs=1.0)
    assert "load_s" not in second["models"]["Qwen3-14B"]["degrees"]["1"]["times_s"]
    known = load_profile("h100_sxm", "Qwen3-14B").law(1)
    found = load_profile(first["path"], "Qwen3-14B").law(1)
    assert found.decode_s(8, 8 * 1000) == pytest.approx(known.decode_s(8, 8 * 1000), rel=0.1)
    assert found.prefill_s(4096) == pytest.approx(known.prefill_s(4096), rel=0.3)
    sweep = json.loads(Path(first["path"]).with_suffix(".sweep").read_text())
    assert len(sweep["decode"]) == 3
    assert sweep["model"] == "Qwen3-14B"


def test_what_comes_back_from_a_storage_is_timed_a_token(tmp_path: Path) -> None:
    words = ("--data", str(tmp_path), "--quick", "--batch", "4", "--no-reload")
    with engine(10.0, tmp_path / "pages", kv_tokens=60_000, host=HostConfig(ratio=2.0)) as url:
        found = json.loads(profile(url, *words, "--json").stdout)
        shown = profile(url, *words).stdout
    fetch = found["models"]["Qwen3-14B"]["degrees"]["1"]["fetch"]
    # 163,840 bytes a token at 2 GB/s from the storage and, beside the prefill, 40 GB/s to the GPU;
    # 0.02 for what a clock at x10 is late.
    assert fetch["ms_per_token"] == pytest.approx(0.082, abs=0.02)
    assert fetch["storage"] == "file"
    assert load_profile(found["path"], "Qwen3-14B").law(1).storage == "file"
    assert "ms a token from its storage 'file'" in shown


def test_a_busy_engine_is_refused_unless_told_otherwise(tmp_path: Path) -> None:
    with engine(1.0) as url:
        body = {
            "input_ids": list(range(10, 60)),
            "sampling_params": {"max_new_tokens": 9000, "ignore_eos": True},
            "rid": "somebody",
        }
        other = threading.Thread(
            target=lambda: httpx.post(f"{url}/generate", json=body, timeout=60)
        )
        other.start()
        deadline = time.monotonic() + 20
        while not httpx.get(f"{url}/v1/loads").json()["aggregate"]["total_reqs"]:
            assert time.monotonic() < deadline
        with pytest.raises(AppError, match=r"1 running and 0 queued requests; .*--force-busy"):
            profile(url, "--data", str(tmp_path), "--quick")
        httpx.post(f"{url}/abort_request", json={"rid": "somebody"})
        other.join()
    assert list(tmp_path.rglob("*.json")) == []


def test_nobody_at_the_address_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(EngineLost, match="did not answer"):
        profile("http://127.0.0.1:9", "--data", str(tmp_path))


@pytest.mark.parametrize("kv_tokens", [4_000, 8_192, 250_000])
@pytest.mark.parametrize("quick", [True, False])
def test_every_point_of_a_grid_fits_into_the_room(kv_tokens: int, quick: bool) -> None:
    grid = grid_for(kv_tokens, 48, 32_768, quick=quick, stores=True)
    assert len(grid.decode) >= 2
    for context, batches in grid.decode:
        assert max(batches) <= 48
        assert max(batches) * context < kv_tokens
    assert grid.new[-1] + grid.prefixes[-1] < min(kv_tokens, 32_768)
    assert len(grid.new) >= 3
    assert grid.prefixes == tuple(sorted(set(grid.prefixes)))
    assert 0 < grid.fetches[-1] + BESIDE < kv_tokens
    assert grid_for(kv_tokens, 48, 32_768, quick=quick).fetches == ()
