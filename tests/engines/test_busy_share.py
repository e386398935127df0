"""Do controller spans agree with two genuine engines' own count of when they had nothing to do?

SGLang counts the seconds without runnable or queued work; what is left of a poll's interval it had
some. That is residence too, so that both sides speak of the same thing.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from contract_calls import Engine
from engine_processes import HEDDLE, free_port, running

from heddle.collector.client import CollectorClient

pytestmark = pytest.mark.timeout(900)

RUN, ROLLOUT = "busy", "r0"
TRAJECTORIES, STEPS, OUTPUT = 4, 3, 240
PAUSE_S = 3.0
"""A step's residence has 80 ms of tokenizer and HTTP that no scheduler counts as work: pauses are
so long that they are 3 points of the time, not 5."""
POINTS = 0.05


def agent(controller: str, number: int) -> None:
    """Steps with pauses that differ, so that engines are idle part of the time."""
    with httpx.Client(base_url=controller, timeout=300.0) as http:
        for step in range(STEPS):
            headers = {
                "X-Heddle-Run": RUN,
                "X-Heddle-Rollout-Id": ROLLOUT,
                "X-Heddle-Trajectory-Id": f"t{number}",
                "X-Heddle-Group-Id": f"g{number}",
                "X-Heddle-Step": str(step),
            }
            body = {
                "input_ids": [10 + (number * 41 + i * 7) % 350 for i in range(64 + 80 * step)],
                "sampling_params": {"max_new_tokens": OUTPUT, "ignore_eos": True},
            }
            assert http.post("/generate", json=body, headers=headers).status_code == 200
            time.sleep(PAUSE_S + number)


def test_busy_share_is_within_five_points_of_what_two_engines_count(
    sglang: Engine, neighbour: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = {name: free_port() for name in ("CONTROLLER", "OTLP_HTTP", "OTLP_GRPC", "QUERIES")}
    for name, number in ports.items():
        monkeypatch.setitem(os.environ, f"HEDDLE_PORTS__{name}", str(number))
    controller = f"http://127.0.0.1:{ports['CONTROLLER']}"
    workers = ["--worker", sglang.url, "--worker", neighbour.url]
    up = [HEDDLE, "up", *workers, "--data", tmp_path, "--no-dashboard"]
    with running(up, f"{controller}/heddle/v1/healthz", tmp_path / "up.log"):
        token = (tmp_path / "token").read_text().strip()
        begin = {"run": RUN, "rollout": ROLLOUT, "kind": "train", "expected": TRAJECTORIES}
        said = {"Authorization": f"Bearer {token}"}
        begun = httpx.post(
            f"{controller}/heddle/v1/rollouts", json=begin, headers=said, timeout=120.0
        )
        assert begun.status_code == 200
        with ThreadPoolExecutor(TRAJECTORIES) as pool:
            list(pool.map(lambda number: agent(controller, number), range(TRAJECTORIES)))
        time.sleep(6.0)  # one more poll
        ended = f"{controller}/heddle/v1/rollouts/{ROLLOUT}/end"
        assert httpx.post(ended, json={"run": RUN}, headers=said, timeout=60.0).status_code == 200
        time.sleep(2.0)
        with CollectorClient(f"http://127.0.0.1:{ports['QUERIES']}") as client:
            counters = client.query("counters", run=RUN, rollout=ROLLOUT)
    assert counters.height == 2
    for row in counters.iter_rows(named=True):
        assert row["samples"] >= 3
        assert row["forward_ns"] is None  # a CPU engine has no device timer
        busy = row["residence_ns"] / row["covered_ns"]
        assert abs(busy - (1 - row["idle_ns"] / row["covered_ns"])) < POINTS
