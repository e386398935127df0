"""How do pages ask the two services, and what do they show when a service is gone?

Every question goes through `ask`: answers are shared by all open tabs for a moment, and the last
good one outlives a collector that went away, so that a page goes stale instead of blank.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import polars as pl
import streamlit as st

from heddle.collector.client import CollectorClient
from heddle.collector.errors import CollectorError, CollectorUnreachable
from heddle.controller.client import ControllerClient
from heddle.controller.errors import ControllerError

FRESH_S: Final = 1.5
"""Below the refresh period of 3 s: twenty tabs of one rollout ask the collector once."""
SETTLED_S: Final = 60.0
"""How long an answer about a rollout that has ended is kept: only late spans change it."""
KEPT_ANSWERS: Final = 256
START_COLLECTOR: Final = "heddle collect"
START_CONTROLLER: Final = "heddle control"
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Places:
    """Where the services are, from the environment; the token opens changes, not reading."""

    collector: str
    controller: str
    token: str | None


def places() -> Places:
    """HEDDLE_COLLECTOR, HEDDLE_CONTROLLER and HEDDLE_TOKEN, or the loopback defaults."""
    return Places(
        os.environ.get("HEDDLE_COLLECTOR", "http://127.0.0.1:4319"),
        os.environ.get("HEDDLE_CONTROLLER", "http://127.0.0.1:8600"),
        os.environ.get("HEDDLE_TOKEN") or None,
    )


@st.cache_resource(max_entries=4, show_spinner=False)
def _collector(url: str) -> CollectorClient:
    return CollectorClient(url, timeout_s=10)


@st.cache_resource(max_entries=4, show_spinner=False)
def _controller(url: str, token: str | None) -> ControllerClient:
    return ControllerClient(url, token=token, timeout_s=10)


def collector() -> CollectorClient:
    """The collector's client; one per address for the whole process."""
    return _collector(places().collector)


def controller() -> ControllerClient:
    """The controller's client, with the token this dashboard was started with."""
    return _controller(places().controller, places().token)


class Memory:
    """The last good answers, the oldest forgotten first; shared by the threads of all tabs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: OrderedDict[object, pl.DataFrame] = OrderedDict()

    def keep(self, question: object, answer: pl.DataFrame) -> None:
        with self._lock:
            self._answers[question] = answer
            self._answers.move_to_end(question)
            while len(self._answers) > KEPT_ANSWERS:
                self._answers.popitem(last=False)

    def recall(self, question: object) -> pl.DataFrame | None:
        with self._lock:
            return self._answers.get(question)


@st.cache_resource(show_spinner=False)
def memory() -> Memory:
    """One memory for the process."""
    return Memory()


@st.cache_data(ttl=FRESH_S, max_entries=KEPT_ANSWERS, show_spinner=False)
def _fresh(url: str, name: str, filters: tuple[tuple[str, Any], ...]) -> pl.DataFrame:
    del url  # a part of the key: two collectors never share an answer
    return collector().query(name, **dict(filters))


@st.cache_data(ttl=SETTLED_S, max_entries=KEPT_ANSWERS, show_spinner=False)
def _settled(url: str, name: str, filters: tuple[tuple[str, Any], ...]) -> pl.DataFrame:
    return _fresh(url, name, filters)


def ask(name: str, *, settled: bool = False, **filters: str | int | None) -> pl.DataFrame:
    """The named query's frame; when the collector is gone, its last good answer if there is one.

    `settled`: it is about a rollout that has ended, and need not be asked every moment. Raises
    CollectorUnreachable only when there is nothing to show instead.
    """
    asked = tuple(sorted((key, value) for key, value in filters.items() if value is not None))
    question = (places().collector, name, asked)
    try:
        answer = (_settled if settled else _fresh)(question[0], name, asked)
    except CollectorUnreachable:
        kept = memory().recall(question)
        if kept is None:
            raise
        return kept
    memory().keep(question, answer)
    return answer


def query(name: str, **filters: Any) -> pl.DataFrame:
    """`ask` under the name the reports know, so that this module serves them as a client."""
    return ask(name, **filters)


@st.cache_data(ttl=FRESH_S, max_entries=4, show_spinner=False)
def _health(url: str) -> dict[str, Any] | None:
    del url
    try:
        return dict(collector().health())
    except CollectorError:
        return None


def health() -> dict[str, Any] | None:
    """What the collector says of itself; None when it does not answer."""
    return _health(places().collector)


def forget() -> None:
    """Drop the momentary answers, so that a change just made shows at once."""
    _fresh.clear()
    _settled.clear()
    _health.clear()


def attempt(deed: Callable[[], Answer]) -> tuple[Answer, None] | tuple[None, str]:
    """The deed's result and None, or None and the sentence of the service that refused it."""
    try:
        return deed(), None
    except (CollectorError, ControllerError) as refused:
        return None, str(refused) or type(refused).__name__


def clock_speed() -> float | None:
    """How fast the controller's clock runs; None where it does not answer."""
    try:
        return float(controller().health().clock_speed)
    except (ControllerError, ValueError):  # a ValueError: a controller of other fields
        return None


def switches(run: str | None) -> dict[str, Any]:
    """What is in force: preset, switches, known policies, presets."""
    return controller().switches(run or "").model_dump()


def switch(
    run: str | None, asked: Mapping[str, str], *, who: str, why: str, token: str | None
) -> dict[str, Any]:
    """Ask the controller to change *asked*; its refusal is raised."""
    place = places()
    service = controller() if token == place.token else _controller(place.controller, token)
    return service.switch(run=run, who=who, why=why, **asked).model_dump()


def audit(run: str | None) -> list[dict[str, Any]]:
    """Every change the controller made, with who and why."""
    entries = [entry.model_dump() for entry in controller().audit()]
    return [entry for entry in entries if run is None or entry["run"] in (run, "")]
