"""Does a running rollout in a store, followed, read as it would be read anew?"""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle.app.bench.fleets import ORIGIN_NS, Fleet, big_fleet, stored
from heddle.collector.queries import more
from heddle.collector.queries.more import read_more
from heddle.collector.queries.reading import read
from heddle.collector.queries.results import Result, Results, explain
from heddle.collector.store import Store

ASKED = {"run": ["bench"], "rollout": ["0"]}


def told(result: Result) -> list[object]:
    return [
        result.accounts.strips, result.blame.cells, result.used, result.spare,
        result.parts.rows(), result.signals, [one.title for one in result.findings],
        result.path.segments,
    ]  # fmt: skip


def assert_followed(results: Results, store: Store) -> None:
    """What was followed is what reading it anew gives."""
    with store.reading() as cursor:
        found, anew = results.of(cursor, ASKED), read(cursor, "bench", "0")
    assert found is not None
    assert anew is not None
    assert told(found) == told(explain(anew))


@pytest.fixture
def fleet() -> Fleet:
    return big_fleet(60, 4, 500)


def test_followed_in_six_looks_it_is_what_reading_it_anew_gives(
    tmp_path: Path, fleet: Fleet
) -> None:
    now = [0.0]
    results = Results(lambda: now[0])
    with stored(tmp_path / "x", fleet, 0.2) as store:
        for look in range(6):
            now[0] += 10.0
            assert_followed(results, store)
            fleet.send(store, 0.2 + 0.16 * look, 0.36 + 0.16 * look)
    assert results.followed >= 4


def test_a_span_of_another_operation_says_how_late_it_is_as_well(
    tmp_path: Path, fleet: Fleet
) -> None:
    now = [0.0]
    results = Results(lambda: now[0])
    with stored(tmp_path / "x", fleet, 0.2) as store:
        for op in ("", "theirs"):
            if op:
                span = fleet.table(0.4, 0.6).slice(0, 1)
                for name, value in (("op", op), ("trajectory_id", "new")):
                    place = span.schema.get_field_index(name)
                    span = span.set_column(place, span.schema.field(name), [[value]])
                store.append(span, 1).result()
            now[0] += 10.0
            assert_followed(results, store)
    assert results.followed == 1


def test_a_span_committed_after_newer_ones_is_not_overlooked(tmp_path: Path, fleet: Fleet) -> None:
    with stored(tmp_path / "x", fleet, 0.4) as store:
        with store.reading() as cursor:
            before = read(cursor, "bench", "0")
        assert before is not None
        fleet.send(store, 0.4, 0.5)
        with store.reading() as cursor:
            assert read_more(cursor, before) is not None
        slow = fleet.table(0.5, 0.52)
        place = slow.schema.get_field_index("received_ns")
        early = slow.set_column(place, "received_ns", [[ORIGIN_NS + 1] * slow.num_rows])
        store.append(early.cast(slow.schema), 1).result()
        with store.reading() as cursor:
            assert read_more(cursor, before) is None


def test_spans_that_are_sealed_between_two_looks_are_not_overlooked(
    tmp_path: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stored(tmp_path / "x", fleet, 0.4) as store:
        with store.reading() as cursor:
            before = read(cursor, "bench", "0")
        assert before is not None
        fleet.send(store, 0.4, 0.5)
        # Sealing takes late spans out of the table; the views still count them.
        gone = more._CAME.replace("FROM spans", "FROM (SELECT * FROM spans LIMIT 0)")
        monkeypatch.setattr(more, "_CAME", gone)
        with store.reading() as cursor:
            assert read_more(cursor, before) is None
