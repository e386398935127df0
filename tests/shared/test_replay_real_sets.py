"""Recorded trajectories of real agents, through live processes: the store then holds the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from heddle.app.supervise import free_port, free_range
from heddle.collector.client import CollectorClient
from heddle.collector.service import running
from heddle.collector.settings import CollectorSettings

DATA = Path(__file__).parents[3] / "shared" / "data"
LIMITS = ("--max-context", "32768", "--max-tool-wait", "60", "--limit", "64")


def replay(path, data, *arguments):
    """What `heddle replay FILE --json` prints, on ports of its own."""
    names = ("OTLP_GRPC", "OTLP_HTTP", "QUERIES", "CONTROLLER", "DASHBOARD")
    ports = {f"HEDDLE_PORTS__{name}": str(free_port()) for name in names}
    ports["HEDDLE_PORTS__ENGINES"] = str(free_range(36_000 + os.getpid() % 4_000, 8))
    words = ("replay", path, "--json", "--data", data, *arguments)
    ended = subprocess.run(
        [sys.executable, "-m", "heddle.app.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=560,
        env={**os.environ, **ports},
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout), ended.stderr


def kept(data, run):
    """Trajectories and tool calls as the database on disk has them."""
    settings = CollectorSettings(data_dir=data, http_port=0, grpc_port=0, query_port=0)
    with running(settings) as at, CollectorClient(f"http://127.0.0.1:{at.query}") as client:
        return client.query("trajectories", run=run), client.query("tool_calls", run=run)


def per_trajectory(frame):
    return frame.select("trajectory_id", "group_id", "steps", "output_tokens", "tool_calls").sort(
        "trajectory_id"
    )


def of_file(path, limit=None):
    rows = pl.read_parquet(path)
    ids = rows["trajectory_id"].unique(maintain_order=True).head(limit or rows.height)
    rows = rows.filter(pl.col("trajectory_id").is_in(ids.implode()))
    return rows, per_trajectory(
        rows.group_by("trajectory_id", "group_id").agg(
            steps=pl.len().cast(pl.Int64),
            output_tokens=pl.col("output_tokens").sum(),
            tool_calls=pl.col("tool_name").is_not_null().sum().cast(pl.Int64),
        )
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "arguments", "limit", "totals"),
    [
        ("tau_bench", (), None, (200, 2_454, 2_454, 154_222)),
        ("kv_cache_tester", (*LIMITS, "--speed", "250"), 64, (64, 4_205, 4_141, 1_689_758)),
    ],
    ids=["tau_bench", "kv_cache_tester"],
)
def test_the_store_holds_exactly_the_files_trajectories(tmp_path, name, arguments, limit, totals):
    path = DATA / f"{name}.parquet"
    rows, expected = of_file(path, limit)

    said, remarks = replay(path, tmp_path, *arguments)

    keys = ("trajectories", "steps", "tool_calls", "output_tokens")
    assert tuple(said[key] for key in keys) == totals
    trajectories, tools = kept(tmp_path, said["run"])
    assert per_trajectory(trajectories).equals(expected)
    missing = rows.filter(pl.col("tool_name").is_not_null() & pl.col("tool_seconds").is_null())
    assert tools["synthetic"].fill_null(value=False).sum() == missing.height
    assert f"{missing.height} tool calls have no recorded time" in remarks
    assert sum(said["gpu_ns"].values()) == said["gpus"] * said["wall_ns"]
