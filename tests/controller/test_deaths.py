"""Does an engine that dies leave a span that says for how long, and does the collector see it?"""

from __future__ import annotations

from typing import Any

import pytest

from heddle.controller.clock import Clock
from heddle.controller.fleet.deaths import Deaths


class Worker:
    def __init__(self, name: str) -> None:
        self.id, self.degree = name, 2


class Fleet:
    def __init__(self) -> None:
        self.heard: list[str] = []
        self.lost = lambda worker: self.heard.append(f"lost {worker.id}")
        self.back = lambda worker: self.heard.append(f"back {worker.id}")


class Seen:
    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []

    def emit(self, name: str, **said: Any) -> None:
        self.spans.append({"name": name, **said})

    def start(self, op: str, **said: Any) -> None:
        self.spans.append({"marks": op, **said})


def listening(open_rollouts: dict[str, str]) -> tuple[Fleet, Deaths, Seen]:
    fleet, seen = Fleet(), Seen()
    deaths = Deaths(fleet, Clock(), seen, lambda: open_rollouts)  # pyright: ignore[reportArgumentType]
    return fleet, deaths, seen


def test_a_death_is_announced_at_once_and_told_when_the_engine_is_back() -> None:
    fleet, deaths, seen = listening({"exp": "r1"})
    fleet.lost(Worker("w1"))
    assert [one.get("marks") for one in seen.spans] == ["heddle.down"]
    fleet.back(Worker("w1"))
    assert fleet.heard == ["lost w1", "back w1"]
    marker, span = seen.spans
    assert span["span_id"] == marker["span_id"]
    assert span["start_ns"] == marker["at_ns"] <= span["end_ns"]
    assert span["attributes"]["heddle.worker.id"] == "w1"
    assert span["attributes"]["heddle.run.id"] == "exp"
    deaths.close()
    assert len(seen.spans) == 2


def test_one_that_never_comes_back_is_told_when_the_controller_ends() -> None:
    fleet, deaths, seen = listening({"exp": "r1", "other": "r9"})
    fleet.lost(Worker("w1"))
    deaths.close()
    ended = [one for one in seen.spans if "name" in one]
    assert {one["attributes"]["heddle.run.id"] for one in ended} == {"exp", "other"}


@pytest.mark.parametrize("name", ["w1", "w2"])
def test_without_an_open_rollout_nothing_is_told(name: str) -> None:
    fleet, deaths, seen = listening({})
    fleet.lost(Worker(name))
    fleet.back(Worker(name))
    deaths.close()
    assert seen.spans == []
