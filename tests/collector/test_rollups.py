"""The tables of sums say what the spans say, whatever order those came in."""

from __future__ import annotations

from contextlib import closing

import duckdb
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heddle.collector import arrivals, otlp, rollups
from heddle.collector.store import Store

OPS = ("chat", "execute_tool", "invoke_agent", "heddle.rollout", "heddle.move")


def span(number, op, trajectory, rollout, start, end, step):
    pairs = {
        "gen_ai.operation.name": op,
        "heddle.run.id": "run",
        "heddle.rollout.id": rollout,
        "gen_ai.conversation.id": trajectory,
        "gen_ai.usage.output_tokens": step,
        "heddle.step.index": step,
        "heddle.worker.id": f"w{step}",
    }
    if number < 0:
        # A start marker of that span.
        pairs |= {
            "gen_ai.operation.name": "heddle.start",
            "heddle.starts": f"{-number:016x}",
            "heddle.starts.op": op,
        }
    return {
        "traceId": f"{1:032x}",
        "spanId": f"{number + 1 if number >= 0 else 1000 - number:016x}",
        "name": op,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
        "attributes": [
            {"key": k, "value": {"stringValue": str(v)}} for k, v in pairs.items() if v is not None
        ],
    }


def put(store, spans):
    body = orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]})
    decoded = otlp.decode(body, otlp.JSON)
    store.append(decoded.rows, 1).result(60)


def sums(store, table):
    """The rows of a table, an order that any run gives."""
    with store.reading() as cursor:
        return sorted(map(repr, cursor.execute(f"FROM {table}").fetchall()))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with closing(Store(tmp_path_factory.mktemp("rollups") / "h.duckdb")) as made:
        yield made


SPANS = st.builds(
    span,
    st.integers(-31, 30),
    st.sampled_from(OPS),
    st.sampled_from(["a", "b", None]),
    st.sampled_from(["r1", "r'2", None]),
    st.integers(1, 50),
    st.integers(0, 90),
    st.integers(0, 3),
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(SPANS, min_size=1, max_size=6), min_size=1, max_size=4))
def test_sums_kept_commit_by_commit_equal_sums_computed_at_once(store, commits):
    for spans in commits:
        put(store, spans)
        store.rollups.refresh()
    kept = {t: sums(store, t) for t in ("rolled_trajectories", "rolled_rollouts")}
    with store.reading() as cursor:
        for table in rollups.SUMS:
            cursor.execute(f"DELETE FROM {table}")
        cursor.execute(rollups.touching("everything"))
    store.rollups.changed()
    assert {t: sums(store, t) for t in kept} == kept


def test_rows_that_were_not_held_are_read_from_the_store(store, monkeypatch):
    monkeypatch.setattr(arrivals, "MOST_ROWS", 3)
    for first in (100, 110):
        put(store, [span(first + n, "chat", "long", "r9", 1, 9, n) for n in range(5)])
    put(store, [span(120, "chat", "long", "r9", 1, 9, 7)])
    with store.reading() as cursor:
        found = cursor.execute(
            "SELECT steps, output_tokens FROM trajectories WHERE rollout_id = 'r9'"
        ).fetchall()
    assert found == [(6, 27)]


def test_readers_who_refresh_too_often_wait_for_upkeep_but_a_fresh_reading_does_not(store):
    def seen(*, fresh):
        with store.reading(fresh=fresh) as cursor:
            return cursor.execute(
                "SELECT count(*) FROM trajectories WHERE rollout_id = 'r8'"
            ).fetchall()[0][0]

    assert seen(fresh=False) == 0
    store.rollups._saved_s = -60.0
    put(store, [span(200, "chat", "t", "r8", 1, 9, 0)])
    assert [seen(fresh=False), seen(fresh=True), seen(fresh=False)] == [0, 1, 1]


def test_what_a_commit_touched_is_summed_after_a_kill_too(tmp_path):
    path = tmp_path / "h.duckdb"
    with closing(Store(path)) as store:
        put(store, [span(1, "chat", "t", "r", 1, 9, 2)])
    # Nobody read it: the note waits in the file.
    with duckdb.connect(str(path)) as connection:
        assert connection.execute("SELECT count(*) FROM touched").fetchall() == [(1,)]
    with closing(Store(path)) as store:
        assert len(sums(store, "trajectories")) == 1


def test_sums_of_another_definition_are_computed_anew(tmp_path):
    path = tmp_path / "h.duckdb"
    with closing(Store(path)) as store:
        put(store, [span(n, "chat", f"t{n}", "r", 1, 9, 2) for n in range(3)])
        before = sums(store, "trajectories")
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE rolled_of SET definition = 'old'")
        connection.execute("DELETE FROM rolled_trajectories")
    with closing(Store(path)) as store:
        assert sums(store, "trajectories") == before


def test_a_trajectory_that_fell_silent_is_abandoned_though_its_rollout_runs(tmp_path):
    path = tmp_path / "h.duckdb"
    sent = [
        span(1, "chat", "done", "r", 1, 9, 2),
        span(2, "invoke_agent", "done", "r", 1, 9, None),
        span(3, "chat", "lost", "r", 1, 9, 2),
        span(-5, "chat", "lost", "r", 10, 10, 3),
        span(-6, "heddle.worker", None, "r", 1, 1, 0),
    ]
    asked = (
        "SELECT trajectory_id, state FROM trajectories",
        "SELECT op, state FROM stated WHERE end_ns IS NULL",
        "SELECT rollout_id, state FROM rollouts",
    )
    for silent_s, state in ((3_600.0, "running"), (0.0, "abandoned"), (3_600.0, "running")):
        with closing(Store(path, silent_s=silent_s)) as store:
            put(store, sent)
            with store.reading() as cursor:
                found = [dict(cursor.execute(text).fetchall()) for text in asked]
        assert found == [
            {"done": "finished", "lost": state},
            # A worker speaks only when it comes and goes.
            {"chat": state, "heddle.worker": "running"},
            {"r": state},
        ]
