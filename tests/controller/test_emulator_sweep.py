"""Does an emulated engine take as long as a measured one did, at what was timed and between?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.controller.emulator.engine import Engine
from heddle.controller.emulator.errors import EngineError
from heddle.controller.emulator.request import Request
from heddle.controller.emulator.sweep import load_sweep, measured_config
from heddle.controller.emulator.truth import TruthParams

QUIET = TruthParams(noise_sigma=0.0)
SWEEP: dict[str, Any] = {
    "format": "heddle-sweep/1", "system": "cpu", "model": "tiny", "degree": 1, "kv_tokens": 4096,
    "max_running": 3, "chunk_tokens": 512, "weight_bytes": 1000,
    "decode": [
        {"context": 100.0, "batches": [1, 4, 8], "seconds": [0.005, 0.008, 0.012]},
        {"context": 500.0, "batches": [1, 2], "seconds": [0.007, 0.009]},
    ],
    "prefill": {
        "new": [64, 256, 1024], "prefix": [0, 1000],
        "seconds": [[0.01, 0.028, 0.1], [0.02, 0.04, 0.12]],
    },
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "v0001.sweep"
    path.write_text(json.dumps(SWEEP))
    return path


def decode_s(truth: Any, batch: int, context: float) -> float:
    return truth.pieces(batch, round(batch * context), 0, 1)[0].first_s


def test_what_was_timed_is_what_it_takes(path: Path) -> None:
    truth = load_sweep(str(path), QUIET)
    for line in SWEEP["decode"]:
        for batch, seconds in zip(line["batches"], line["seconds"], strict=True):
            assert decode_s(truth, batch, line["context"]) == pytest.approx(seconds)
    table = SWEEP["prefill"]
    for prefix, row in zip(table["prefix"], table["seconds"], strict=True):
        for new, seconds in zip(table["new"], row, strict=True):
            assert truth.prefill_s([(new, prefix)], 0) == pytest.approx(seconds)


def test_between_and_beyond_it_goes_straight_on(path: Path) -> None:
    truth = load_sweep(str(path), QUIET)
    assert decode_s(truth, 6, 100) == pytest.approx(0.010)
    assert decode_s(truth, 1, 300) == pytest.approx(0.006)
    assert decode_s(truth, 16, 100) == pytest.approx(0.020, rel=0.01)
    # Two sequences were timed at 500; four cost twice as much more.
    assert decode_s(truth, 4, 500) == pytest.approx(0.013)


def test_prompts_prefilled_together_share_the_launch_alone(path: Path) -> None:
    truth = load_sweep(str(path), QUIET)
    alone = truth.prefill_s([(256, 0)], 0)
    together = truth.prefill_s([(256, 0), (256, 0)], 0)
    assert together == pytest.approx(truth.prefill_s([(512, 0)], 0), rel=0.1)
    assert alone < together < 2 * alone
    beside = truth.prefill_s([(256, 1000), (256, 0)], 0)
    assert beside == pytest.approx(together + 0.012)


def test_the_profile_beside_it_names_it_and_the_engine_has_its_limits(path: Path) -> None:
    truth = load_sweep(str(path.with_suffix(".json")), QUIET)
    engine = Engine(measured_config(truth), truth)
    assert (engine.config.max_running, engine.config.chunk_tokens) == (3, 512)
    assert engine.scheduler.capacity == 4096
    engine.submit(Request(rid="r", ids=_ids(100), max_new_tokens=11), 0.0)
    (done,) = engine.advance(60.0)
    assert done.prefill_end_s == pytest.approx(truth.prefill_s([(100, 0)], 0))
    assert done.at_s - done.prefill_end_s == pytest.approx(0.05, rel=0.02)


def test_the_hash_tells_timings_and_parameters_apart(path: Path) -> None:
    one, other = load_sweep(str(path), QUIET), load_sweep(str(path), TruthParams(seed=1))
    path.write_text(json.dumps({**SWEEP, "kv_tokens": 5000}))
    assert len({one.hash, other.hash, load_sweep(str(path), QUIET).hash}) == 3


@pytest.mark.parametrize("content", ["{", "[]", '{"format": "heddle-profile/1"}'])
def test_another_file_is_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.sweep").write_text(content)
    with pytest.raises(EngineError, match=r"x\.sweep is no sweep of `heddle profile`"):
        load_sweep(str(tmp_path / "x.sweep"), QUIET)


def _ids(count: int) -> Any:
    return np.arange(10, 10 + count, dtype=np.int32)
