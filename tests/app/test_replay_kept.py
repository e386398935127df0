"""A comparison is kept in the store once, however often it is made, and wherever it is played."""

from __future__ import annotations

import json

import pytest

from heddle.app.commands.compare import compare
from heddle.app.errors import AppError
from heddle.app.supervise import free_port
from heddle.collector.client import CollectorClient
from heddle.collector.service import running
from heddle.collector.settings import CollectorSettings

SOURCE = {"file": None, "rollout": None, "workload": "demo", "groups": 1}


def asked(**given):
    return {
        "gpus": [2], "model": "Qwen3-14B", "error": None, "workers": 1, "barrier": "all",
        "arrivals_s": 0.0, "seed": 0, "seeds": 1, "collector": None, "ray": None, "save": False,
        "otlp": None,
    } | given  # fmt: skip


@pytest.mark.long
def test_a_comparison_played_on_ray_is_kept_once_and_read_back(tmp_path, capsys):
    settings = CollectorSettings(data_dir=tmp_path, http_port=0, grpc_port=0, query_port=0)
    with running(settings) as ports:
        query, otlp = (f"http://127.0.0.1:{port}" for port in (ports.query, ports.http))
        kept = {"save": True, "collector": query, "otlp": otlp}
        compare(["verl", "heddle"], SOURCE, asked(ray="local", **kept), json=True)
        played = json.loads(capsys.readouterr().out)["rows"]
        compare(["verl", "heddle"], SOURCE, asked(**kept), json=True)
        here = json.loads(capsys.readouterr().out)["rows"]
        with CollectorClient(query) as client:
            rows = client.query("replays", run="replay").sort("policy", descending=True).to_dicts()
    assert [r | {"cpu_s": 0} for r in played] == [r | {"cpu_s": 0} for r in here]
    assert [row["policy"] for row in rows] == ["verl", "heddle"]
    for row, was in zip(rows, played, strict=True):
        assert row["of"] == "demo"
        assert (row["cell"], row["engines"]) == (was["cell"], was["truth_hash"])
        told = ("makespan_s", "bound_s", "idle_gpu_s", "held_s", "moves", "gpus")
        assert {name: row[name] for name in told} == {name: was[name] for name in told}
        assert row["layout"].split(",") == was["layout"].split("+")


def test_the_same_policy_under_another_barrier_or_error_is_another_replay(monkeypatch):
    kept = []

    class Kept:
        dropped = 0

        def __init__(self, *_, **__): ...

        def emit(self, name, **span):
            kept.append((span["span_id"], span["attributes"]))

        def close(self, timeout_s): ...

    monkeypatch.setattr("heddle.app.replayed.Emitter", Kept)
    how = [{}, {}, {"barrier": "first:3"}, {"barrier": "cutoff:20"}, {"error": 0.6}]
    for one in how:
        compare(["heddle"], SOURCE, asked(save=True, **one), json=True)
    spans, told = zip(*kept, strict=True)
    assert spans[0] == spans[1]
    assert len(set(spans)) == 4
    cells = [one["heddle.replay.cell"] for one in told[1:]]
    assert cells == ["demo/0", "demo/0, first 3", "demo/0, cutoff 20.0", "demo/0, error 0.6"]
    assert ["heddle.replay.bound_s" in one for one in told[1:]] == [True, False, False, True]


def test_without_a_collector_it_is_said_that_nothing_was_kept():
    there = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(AppError, match="1 of 1 replays were not saved"):
        compare(["verl"], SOURCE, asked(save=True, otlp=there), json=True)
