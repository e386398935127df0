"""Claims about `heddle bench`: its JSON, its table, and an exit that no missed target changes."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest

from heddle.app.bench import figures
from heddle.app.bench.figures import Figure
from heddle.app.bench.route import _figures
from heddle.app.bench.route_streams import first_event
from heddle.app.commands import bench
from heddle.app.errors import AppError


@pytest.fixture
def tiny(monkeypatch):
    """Two benches in the place of the real ones: one figure met, one missed."""
    for name, value in (("quick-one", 3.0), ("slow-one", 30.0)):
        module = ModuleType(f"bench_of_{name}")
        figure = Figure(value=value, unit="s", target=10.0, better="lower", note="made up")
        module.run = lambda *, quick, say, figure=figure: {"took_s": figure}
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(figures, "BENCHES", {n: f"bench_of_{n}" for n in ("quick-one", "slow-one")})


def test_the_json_has_the_figure_its_target_and_whether_it_was_met(tiny, capsys):
    bench.run("slow-one", json=True)

    told = json.loads(capsys.readouterr().out)
    assert told["bench"] == "slow-one"
    assert told["machine"]["cores"] >= 1
    assert told["machine"]["python_loop_ms"] > 0
    assert told["figures"]["took_s"] == {
        "value": 30.0, "unit": "s", "target": 10.0, "better": "lower", "met": False,
        "note": "made up",
    }  # fmt: skip


def test_all_prints_one_table_with_every_bench(tiny, capsys):
    bench.run("all")

    said = capsys.readouterr().out
    rows = [line for line in said.splitlines() if "took_s" in line]
    assert len(rows) == 2
    assert "quick-one" in rows[0]
    assert "slow-one" in rows[1]


def test_an_unknown_bench_is_refused_with_the_known_ones(tiny):
    with pytest.raises(AppError, match="no bench called 'fast-one'; choose one of quick-one"):
        bench.run("fast-one")


def test_a_route_target_says_that_it_is_fixed_where_no_router_stands_beside():
    fixed = "no router beside (HEDDLE_ROUTER_PYTHON names none): a fixed target"
    us = {"direct": 50.0, "heddle": 200.0}
    alone = _figures("256_ids", us, us) | first_event({"direct": 2.0, "heddle": 40.0}, "80 streams")
    beside = {**us, "router": 100.0}
    paired = _figures("256_ids", beside, beside) | first_event(
        {"heddle": 40.0, "router": 45.0}, "80 streams"
    )
    assert len(alone) == 4
    assert all(fixed in figure.note for figure in alone.values())
    assert not any(fixed in figure.note for figure in paired.values())
    assert paired["first_event_p99_ms"].target == 45.0
