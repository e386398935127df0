"""How do pages ask the collector, and what do they show when it is gone?

Every question goes through `ask`: answers are shared by all open tabs for a moment, and the last
good one outlives a collector that went away, so that a page goes stale instead of blank.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import polars as pl
import streamlit as st

from heddle.collector.client import CollectorClient
from heddle.collector.errors import CollectorError, CollectorUnreachable
from heddle.controller.errors import ControllerError
from heddle.dashboards.evidence import Evidence

FRESH_S: Final = 2.5
"""Just below the refresh period of 3 s: twenty tabs of one rollout, each with a timer of its own,
ask the collector once a period (at 1.5 s it was twice)."""
HEALTH_S: Final = 1.5
SETTLED_S: Final = 60.0
"""How long an answer about a rollout that has ended is kept: only late spans change it."""
KEPT_ANSWERS: Final = 256
START_COLLECTOR: Final = "heddle collect"
ALIVE_S: Final = 1.0
"""A collector that takes longer to say that it is well counts as gone: the banner is due in 5 s."""
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Places:
    """Where the services are, from the environment; `token` opens changes of the controller."""

    collector: str
    controller: str
    token: str | None
    query_token: str | None
    sql_token: str | None


def places() -> Places:
    """HEDDLE_COLLECTOR, HEDDLE_CONTROLLER and the tokens, or the loopback defaults."""
    return Places(
        os.environ.get("HEDDLE_COLLECTOR", "http://127.0.0.1:4319"),
        os.environ.get("HEDDLE_CONTROLLER", "http://127.0.0.1:8600"),
        os.environ.get("HEDDLE_TOKEN") or None,
        os.environ.get("HEDDLE_QUERY_TOKEN") or None,
        os.environ.get("HEDDLE_SQL_TOKEN") or None,
    )


@st.cache_resource(max_entries=8, show_spinner=False, on_release=CollectorClient.close)
def _collector(url: str, token: str | None, timeout_s: float) -> CollectorClient:
    return CollectorClient(url, token=token, timeout_s=timeout_s)


def collector() -> CollectorClient:
    """The collector's client; one per address for the whole process."""
    return _collector(places().collector, places().query_token, 10.0)


def reader() -> CollectorClient:
    """The client of the collector's SQL door, which waits as long as a SELECT may run."""
    return _collector(places().collector, places().sql_token, 30.0)


def watcher() -> CollectorClient:
    """The client that asks whether the collector lives."""
    return _collector(places().collector, places().query_token, ALIVE_S)


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


@st.cache_data(ttl=HEALTH_S, max_entries=4, show_spinner=False)
def _health(url: str) -> dict[str, Any] | None:
    del url
    try:
        return dict(watcher().health())
    except CollectorError:
        return None


@st.cache_data(ttl=SETTLED_S, max_entries=4, show_spinner=False)
def _tables(url: str) -> dict[str, dict[str, str]]:
    del url
    return reader().tables()


def tables() -> dict[str, dict[str, str]]:
    """Table to column to type: what a SELECT may name."""
    return _tables(places().collector)


@st.cache_data(ttl=SETTLED_S, max_entries=4, show_spinner=False)
def _selected(url: str, text: str) -> tuple[pl.DataFrame, str]:
    del url
    return reader().sql_page(text)


def select(text: str) -> tuple[pl.DataFrame, str]:
    """The rows of one SELECT, and the sentence that says so when the collector cut them."""
    return _selected(places().collector, text)


@st.cache_data(ttl=SETTLED_S, max_entries=4, show_spinner=False)
def _page(url: str, evidence: Evidence, rows: int) -> tuple[pl.DataFrame, int]:
    del url
    return collector().page(evidence.query, **{**evidence.filters, "limit": rows})


def page(evidence: Evidence, rows: int) -> tuple[pl.DataFrame, int]:
    """The first *rows* of a named query, and how many there are."""
    return _page(places().collector, evidence, rows)


def health() -> dict[str, Any] | None:
    """What the collector says of itself; None when it does not answer."""
    return _health(places().collector)


def forget() -> None:
    """Drop the momentary answers, so that a change just made shows at once."""
    _fresh.clear()
    _settled.clear()
    _health.clear()
    _tables.clear()
    _selected.clear()
    _page.clear()


def attempt(deed: Callable[[], Answer]) -> tuple[Answer, None] | tuple[None, str]:
    """The deed's result and None, or None and the sentence of the service that refused it."""
    try:
        return deed(), None
    except (CollectorError, ControllerError) as refused:
        return None, str(refused) or type(refused).__name__
