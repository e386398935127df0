"""A stack where something is wrong around it: what was there is kept, what is wrong is said."""

from __future__ import annotations

import json
import socket

import httpx
import pytest

DATABASE = "heddle.duckdb"


def test_a_corrupt_database_is_set_aside_whole_and_the_stack_serves(up, tmp_path):
    garbage = bytes(range(256)) * 64
    (tmp_path / DATABASE).write_bytes(garbage)

    with up(tmp_path, "--gpus", 1, "--speed", 20) as stack:
        body = {"model": "Qwen3-14B", "messages": [{"role": "user", "content": "hello"}]}
        url = f"{stack.controller}/v1/chat/completions"
        reply = httpx.post(url, json={**body, "max_tokens": 3}, timeout=60)
        logged = (tmp_path / "logs" / "collector.log").read_text()

    (kept,) = [p for p in tmp_path.glob(f"{DATABASE}.corrupt-*") if p.suffix != ".wal"]
    assert kept.read_bytes() == garbage
    assert (tmp_path / DATABASE).stat().st_size > 0
    assert reply.status_code == 200, reply.text
    assert kept.name in logged


@pytest.mark.parametrize("command", ["up", "demo", "collect", "control"])
def test_a_data_folder_that_cannot_be_written_is_one_sentence(heddle, command):
    # Where not even root makes a folder.
    ended = heddle(command, "--data", "/sys/heddle-data")

    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("heddle: the data folder /sys/heddle-data cannot be written")
    assert len(ended.stderr.splitlines()) == 1


def test_a_demo_with_a_warning_still_prints_nothing_but_json_and_small_sizes_work(
    heddle, ports, tmp_path
):
    taken = int(ports["HEDDLE_PORTS__OTLP_HTTP"])
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", taken))
        other.listen()
        sizes = ("--trajectories", 7, "--gpus", 3, "--speed", 60)
        ended = heddle("demo", "--once", "--json", "--no-dashboard", *sizes, "--data", tmp_path)

    assert f"port {taken} is in use" in ended.stderr
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    for preset in ("verl", "heddle"):
        said = told["presets"][preset]
        assert (said["trajectories"], said["gpus"]) == (7, 3)
        assert sum(said["gpu_ns"].values()) == 3 * said["wall_ns"]
        assert 0 <= said["host_lag"]["share"] <= told["host_lag"]["share"] <= 1
    assert told["host_lag"]["trustworthy"] == (told["host_lag"]["share"] <= 0.1)
    assert told["winner"] in ("verl", "heddle", None)
