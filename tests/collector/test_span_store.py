"""The store: once, durably, and honest about what it finds on disk."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import duckdb
import orjson
import pytest

from heddle.collector import otlp
from heddle.collector.errors import Overloaded, StoreTooNew
from heddle.collector.queries.catalog import QUERIES
from heddle.collector.store import Store

A, B, C = "a" * 32, "b" * 16, "c" * 16


def decoded(request, end_ns=None):
    for span in request.resource_spans[0].scope_spans[0].spans:
        if end_ns is not None:
            span.end_time_unix_nano = end_ns
    return otlp.decode(request.SerializeToString(), otlp.PROTOBUF).table


def rows(store, statement):
    with store.reading() as cursor:
        return cursor.execute(statement).fetchall()


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path / "h.duckdb")) as made:
        yield made


def test_a_retried_request_is_stored_once(store, request_of):
    table = decoded(request_of((A, B), (A, C)))
    for _ in range(3):
        store.append(table, 1).result(30)
    assert rows(store, "SELECT count(*) FROM spans") == [(2,)]
    assert (store.stored, store.duplicates) == (2, 4)


def test_a_later_end_replaces_and_an_earlier_one_does_not(store, request_of):
    for end_ns in (0, 500, 900, 700):
        store.append(decoded(request_of((A, B)), end_ns), 1).result(30)
    assert rows(store, "SELECT end_ns FROM spans") == [(900,)]


def test_of_equal_spans_in_one_commit_the_latest_end_stays(store, request_of):
    futures = [store.append(decoded(request_of((A, B)), end_ns), 1) for end_ns in (5, 9, 7)]
    assert [f.result(30) for f in futures] == [1, 1, 1]
    assert rows(store, "SELECT end_ns FROM spans") == [(9,)]


def test_what_was_stored_is_known_after_reopening(tmp_path, request_of):
    for _ in range(2):
        with closing(Store(tmp_path / "h.duckdb")) as store:
            store.append(decoded(request_of((A, B))), 1).result(30)
            assert rows(store, "SELECT count(*) FROM spans") == [(1,)]


def test_the_same_span_id_in_two_traces_is_two_spans(store, request_of):
    store.append(decoded(request_of((A, B), ("d" * 32, B))), 1).result(30)
    store.append(decoded(request_of(("e" * 31 + "f", B))), 1).result(30)
    assert rows(store, "SELECT count(*) FROM spans") == [(3,)]


def test_above_the_bound_it_refuses_and_recovers(tmp_path, request_of):
    table = decoded(request_of((A, B)))
    with closing(Store(tmp_path / "h.duckdb", bound_bytes=100, window_s=0.5)) as store:
        store.append(table, 1).result(30)
        waiting = store.append(table, 80)
        with pytest.raises(Overloaded, match="bound is 100"):
            store.append(table, 21)
        waiting.result(30)
        assert store.append(table, 500).result(30) == 1


def test_readers_and_the_writer_share_the_file(store, request_of):
    def read(_):
        return rows(store, "SELECT count(*) FROM spans")[0][0]

    with ThreadPoolExecutor(4) as pool:
        reads = pool.map(read, range(40))
        for n in range(20):
            store.append(decoded(request_of((A, f"{n + 1:016x}"))), 1).result(30)
        assert all(0 <= n <= 20 for n in reads)
    assert rows(store, "SELECT count(*) FROM spans") == [(20,)]


def test_closing_commits_what_waits(tmp_path, request_of):
    with closing(Store(tmp_path / "h.duckdb", window_s=5)) as store:
        futures = [store.append(decoded(request_of((A, f"{n:016x}"))), 1) for n in range(1, 9)]
    assert [f.result(0) for f in futures] == [1] * 8


@pytest.mark.parametrize("damage", [b"", b"garbage" * 999, None], ids=["empty", "garbage", "cut"])
def test_a_damaged_file_is_set_aside_and_named(tmp_path, request_of, damage, caplog):
    path = tmp_path / "h.duckdb"
    with closing(Store(path)) as store:
        store.append(decoded(request_of((A, B))), 1).result(30)
    before = path.read_bytes()[: 12_288 + 100] if damage is None else damage
    path.write_bytes(before)
    with closing(Store(path)) as store:
        kept = list(tmp_path.glob("h.duckdb.corrupt-*"))
        assert [k.read_bytes() for k in kept] == [before]
        assert kept[0].name in store.notice
        assert kept[0].name in caplog.text
        assert rows(store, "SELECT count(*) FROM spans") == [(0,)]
        assert store.probe().result(30) == 0


def test_a_newer_schema_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "h.duckdb"
    Store(path).close()
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE heddle_schema SET version = 99")
    with pytest.raises(StoreTooNew, match="schema 99"):
        Store(path)
    assert [p.name for p in tmp_path.iterdir()] == ["h.duckdb"]


def test_an_attribute_that_got_a_column_later_is_added(tmp_path, request_of):
    path = tmp_path / "h.duckdb"
    Store(path).close()
    with duckdb.connect(str(path)) as connection:
        for view in ("rollouts", "trajectories", "workers"):
            connection.execute(f"DROP VIEW {view}")
        connection.execute("ALTER TABLE spans DROP COLUMN solve_s")
    with closing(Store(path)) as store:
        store.append(decoded(request_of((A, B))), 1).result(30)
        assert rows(store, "SELECT solve_s FROM spans") == [(None,)]


def test_ingest_lag_is_told_by_sender_and_minute(store):
    minute = 60 * 10**9

    def came(service, received_ns, *ends_ns):
        spans = [
            {"traceId": A, "spanId": f"{received_ns + end_ns:016x}", "endTimeUnixNano": end_ns}
            for end_ns in ends_ns
        ]
        named = {"key": "service.name", "value": {"stringValue": service}}
        resource = {"attributes": [named]}
        body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}
        decoded = otlp.decode(orjson.dumps(body), otlp.JSON, received_ns)
        store.append(decoded.rows, 1).result(30)

    came("a", 10 * minute, 10 * minute - 10**9, 10 * minute - 3 * 10**9, 10 * minute - 2 * 10**9)
    came("a", 11 * minute + 5, 11 * minute)
    came("b", 10 * minute, 10 * minute - 7 * 10**9, 0)
    with store.reading() as cursor:
        told = QUERIES["ingest_lag"].answer(cursor, {"since": ["0"]}).table.to_pylist()
    lags = [
        (row["service"], row["at_ns"] // minute, row["spans"], row["lag_p50_s"], row["lag_max_s"])
        for row in told
    ]
    assert lags == [("a", 11, 1, 5e-9, 5e-9), ("a", 10, 3, 2.0, 3.0), ("b", 10, 1, 7.0, 7.0)]
