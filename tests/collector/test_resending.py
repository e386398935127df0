"""What was sent, sealed and sent again is stored once; what waits is written, told and tidied."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import closing

import duckdb
import orjson
import pytest

from heddle.collector import otlp, sealing
from heddle.collector.asking import health
from heddle.collector.errors import StoreUnwritable
from heddle.collector.ingest import Ingest
from heddle.collector.store import Store
from heddle.collector.waking import Woken


def body(numbers, name="heddle.rollout"):
    whose = {"heddle.run.id": "r", "heddle.rollout.id": "0"}
    said = [{"key": key, "value": {"stringValue": value}} for key, value in whose.items()]
    spans = [
        {
            "traceId": f"{1:032x}",
            "spanId": f"{number:016x}",
            "name": name,
            "startTimeUnixNano": 1_000,
            "endTimeUnixNano": 2_000,
            "attributes": said,
        }
        for number in numbers
    ]
    return orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})


def put(store, numbers):
    return store.append(otlp.decode(body(numbers), otlp.JSON).rows, 1).result(30)


def count(store, table):
    with store.reading() as cursor:
        return cursor.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "h.duckdb"


def test_what_was_sealed_before_a_restart_and_is_sent_again_is_stored_once(path):
    with closing(Store(path)) as store:
        put(store, [1, 2, 3])
        assert sealing.seal(store, "r", "0") is not None
    with closing(Store(path)) as store:
        put(store, [2, 3, 4])
        assert (count(store, "spans"), count(store, "stored")) == (1, 4)
        assert store.duplicates == 2


def row_groups(store):
    with store.reading() as cursor:
        found = "SELECT count(DISTINCT row_group_id) FROM pragma_storage_info('spans')"
        return cursor.execute(found).fetchall()[0][0]


def test_tidying_merges_what_many_checkpoints_made_and_loses_nothing(path):
    with closing(Store(path)) as store:
        for first in range(0, 3_000, 1_000):
            put(store, range(first + 1, first + 1_001))
            with store.reading() as cursor:
                cursor.execute("CHECKPOINT")
        assert row_groups(store) == 3
        store.tidy()
        assert (row_groups(store), count(store, "spans")) == (1, 3_000)
        with store.reading() as cursor:
            setting = "SELECT current_setting('max_vacuum_tasks')"
            assert cursor.execute(setting).fetchall() == [(0,)]


def test_health_tells_that_spans_do_not_fit_though_a_heartbeat_does(path, monkeypatch):
    with closing(Store(path)) as store:
        ingest = Ingest(store)
        commit = store._committer.commit

        def full(table, floods=(), *, heartbeat=False):
            if table.num_rows:
                raise duckdb.IOException("No space left on device")
            return commit(table, floods, heartbeat=heartbeat)

        monkeypatch.setattr(store._committer, "commit", full)
        with pytest.raises(StoreUnwritable):
            put(store, [1])
        told = asyncio.run(health(store, ingest))
        assert (told["ok"], told["lag_s"]) == (False, 0.0)
        assert "No space left" in told["error"]
        monkeypatch.undo()
        put(store, [1])
        assert asyncio.run(health(store, ingest))["ok"]
        ingest.close()


def test_everyone_who_waits_for_a_thread_hears_of_it_with_its_own_result():
    futures: list[Future[int]] = [Future() for _ in range(50)]

    async def wait():
        woken = Woken()
        waiting = [asyncio.create_task(woken.wait(future)) for future in futures]
        await asyncio.sleep(0)

        def finish():
            for number, future in enumerate(futures[:-1]):
                future.set_result(number)
            futures[-1].set_exception(StoreUnwritable("full"))

        thread = threading.Thread(target=finish)
        thread.start()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        thread.join()
        return found

    found = asyncio.run(asyncio.wait_for(wait(), 30))
    assert found[:-1] == list(range(49))
    assert isinstance(found[-1], StoreUnwritable)
