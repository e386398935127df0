"""Intervals of a run add up to its GPUs times its time, and are computed again only if changed."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import orjson
import pytest

from heddle.collector import otlp
from heddle.collector.queries import intervals, results
from heddle.collector.queries.gpu_time import PARTITION
from heddle.collector.queries.intervals import INTERVALS
from heddle.collector.queries.results import RESULTS
from heddle.collector.store import Store

NS = 1_000_000_000


def span(number, name, rollout, start_s, end_s, **given):
    pairs = {"heddle.run.id": "run", "heddle.rollout.id": rollout} | given
    return {
        "traceId": f"{number // 100 + 1:032x}",
        "spanId": f"{number + 1:016x}",
        "name": name,
        "startTimeUnixNano": str(start_s * NS),
        "endTimeUnixNano": str(end_s * NS),
        "attributes": [
            {"key": key, "value": {"stringValue": str(value)}} for key, value in pairs.items()
        ],
    }


def rollout(number, start_s, end_s):
    """Two workers; one step after another on the first."""
    name = f"r{number}"
    yield span(1_000 * number, "heddle.rollout", name, start_s, end_s, **{"heddle.gpus": 2})
    for k, at in enumerate(range(start_s, end_s - 3, 4)):
        chat = {
            "gen_ai.operation.name": "chat",
            "gen_ai.conversation.id": f"t{number}-{k % 3}",
            "heddle.worker.id": f"w{k % 2}",
            "heddle.step.index": k,
            "heddle.degree": 1,
            "heddle.decode_s": 3.0,
        }
        yield span(1_000 * number + k + 1, "chat", name, at, at + 3, **chat)


def late(number, name, at_s):
    """A step of half a minute that nobody knew of."""
    given = {
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": f"t{number}",
        "heddle.worker.id": "w1",
        "heddle.decode_s": 30.0,
    }
    return span(number, "chat", name, at_s, at_s + 30, **given)


def put(store, spans):
    body = orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]})
    store.append(otlp.decode(body, otlp.JSON).rows, 1).result(60)


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path / "h.duckdb")) as made:
        # The second and the third overlap.
        for number, start_s, end_s in ((1, 0, 60), (2, 60, 130), (3, 110, 200)):
            put(made, rollout(number, start_s + 1_000, end_s + 1_000))
        yield made


def ask(store, width_s):
    """Rows, and how many intervals were computed for them."""
    before = INTERVALS.computed
    with store.reading() as cursor:
        rows = INTERVALS.of(cursor, str(store.path), "run", width_s * NS)
    return rows, INTERVALS.computed - before


def by_state(rows):
    total: Counter[str] = Counter()
    for *_, state, amount in rows:
        total[state] += amount
    return total


def busy(rows):
    return sum(amount for state, amount in by_state(rows).items() if state.startswith("busy"))


def test_intervals_of_any_width_add_up_to_the_gpus_times_the_time(store):
    whole, _ = ask(store, 1_000)
    assert len({row[:2] for row in whole}) == 1
    assert sum(by_state(whole).values()) == 2 * 200 * NS
    for width_s in (10, 37):
        rows, computed = ask(store, width_s)
        assert computed == -(-200 // width_s)
        assert busy(rows) == busy(whole) > 0
        each: Counter[tuple[int, int]] = Counter()
        for start_ns, end_ns, *_, amount in rows:
            each[start_ns, end_ns] += amount
        assert all(amount == 2 * (end - start) for (start, end), amount in each.items())


def test_only_intervals_that_a_changed_rollout_touches_are_computed_again(store):
    first, computed = ask(store, 10)
    assert computed == 20
    assert ask(store, 10) == (first, 0)
    put(store, [late(9_000, "r3", 1_150)])
    again, computed = ask(store, 10)
    assert computed == 9
    cut = 1_110 * NS
    assert [r for r in again if r[0] < cut] == [r for r in first if r[0] < cut]
    assert busy(again) > busy(first)


def partitions(store):
    """The answer for each rollout, and how many results were computed for them."""
    before, compute = RESULTS.computed, PARTITION.compute
    assert compute is not None
    told = {}
    for name in ("r1", "r2", "r3"):
        with store.reading() as cursor:
            answer = compute(cursor, {"run": ["run"], "rollout": [name]})
        told[name] = answer.table.to_pylist()
    return told, RESULTS.computed - before


def test_small_answers_outlive_their_results_until_a_span_comes(store, monkeypatch):
    monkeypatch.setattr(results, "KEPT", 1)
    first, computed = partitions(store)
    assert computed == 3
    assert partitions(store) == (first, 0)
    put(store, [late(9_001, "r2", 1_070)])
    again, computed = partitions(store)
    assert computed == 1
    assert again["r2"] != first["r2"]
    assert (again["r1"], again["r3"]) == (first["r1"], first["r3"])


def test_rollouts_read_together_are_those_read_one_by_one(store, monkeypatch):
    together, _ = ask(store, 17)
    monkeypatch.setattr(intervals, "AT_ONCE", 1)
    monkeypatch.setattr(intervals, "INTERVALS", intervals.Intervals())
    with store.reading() as cursor:
        apart = intervals.INTERVALS.of(cursor, "", "run", 17 * NS)
    assert apart == together


def test_the_latest_intervals_are_kept_and_an_unknown_run_has_none(store, monkeypatch):
    monkeypatch.setattr(intervals, "CAP", 3)
    rows, computed = ask(store, 20)
    assert computed == 3
    assert min(row[0] for row in rows) == 1_140 * NS
    with store.reading() as cursor:
        assert INTERVALS.of(cursor, str(store.path), "none", NS) == []
