"""What a careless or hostile sender or reader says stops nobody else."""

from __future__ import annotations

import gzip
from contextlib import closing

import orjson
import pyarrow as pa
import pytest
import zstandard

from heddle.collector import otlp, sealing
from heddle.collector.errors import QueryRefused
from heddle.collector.inflate import Damaged, inflate
from heddle.collector.otlp import BadRequest
from heddle.collector.queries.catalog import QUERIES
from heddle.collector.queries.sql import Limits, select
from heddle.collector.store import Store

MOST = 2**63 - 1
LIMIT = 64 << 20


def span(number, op="chat", run="run", rollout="ro", trajectory="t", end=10, **said):
    names = {"gen_ai.operation.name": op, "heddle.run.id": run, "heddle.rollout.id": rollout,
             "gen_ai.conversation.id": trajectory}  # fmt: skip
    texts = [{"key": k, "value": {"stringValue": v}} for k, v in names.items()]
    counts = [{"key": k.replace("__", "."), "value": {"intValue": str(v)}} for k, v in said.items()]
    return {
        "traceId": f"{1:032x}",
        "spanId": f"{number:016x}",
        "name": op,
        "startTimeUnixNano": "1",
        "endTimeUnixNano": str(end),
        "attributes": [*texts, *counts],
    }


def body(*spans) -> bytes:
    return orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]})


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path / "h.duckdb")) as made:
        yield made


def put(store, *spans):
    store.append(otlp.decode(body(*spans), otlp.JSON).rows, 1).result(60)


def test_absurd_counts_and_times_leave_every_question_answerable(store):
    absurd = {
        "gen_ai__usage__input_tokens": MOST,
        "gen_ai__usage__output_tokens": MOST,
        "gen_ai__usage__cached_tokens": MOST,
        "heddle__retractions": MOST,
        "heddle__step__index": MOST,
    }
    put(store, *(span(n, **absurd) for n in (1, 2, 3)))
    put(store, *(span(n, "execute_tool", end=MOST) for n in (4, 5, 6)))
    put(store, span(7, "heddle.rollout", end=MOST), span(8, trajectory="sane", run="other"))
    with store.reading() as cursor:
        for query in QUERIES.values():
            asked = {"run": ["run"], "rollout": ["ro"]}
            known = {k: v for k, v in asked.items() if k in query.filters}
            query.answer(cursor, known)
            query.answer(cursor, {**known, "limit": ["5"]})
        sane = QUERIES["trajectories"].answer(cursor, {"run": ["other"]}).table
        told = QUERIES["trajectories"].answer(cursor, {"run": ["run"]}).table.to_pylist()
    assert sane.num_rows == 1
    assert [row["output_tokens"] for row in told] == [None]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT repeat('x', 3000000000)",
        "SELECT lpad('x', 2000000000, 'y')",
        "SELECT printf('%2000000000d', 1)",
        "SELECT range(10000000000)",
        "SELECT s FROM (SELECT format('{:>2000000000}', 'x') AS s)",
    ],
)
def test_no_function_makes_gigabytes_of_one_value(store, sql):
    with store.reading() as cursor, pytest.raises(QueryRefused, match="is not allowed here"):
        select(cursor, sql, Limits())


def test_rows_of_a_range_and_a_comment_at_the_end_are_allowed(store):
    put(store, span(1))
    with store.reading() as cursor:
        assert select(cursor, "SELECT * FROM range(3) -- three", Limits()).table.num_rows == 3
        assert select(cursor, "SELECT * FROM spans LIMIT 1 -- one", Limits()).table.num_rows == 1
        with pytest.raises(QueryRefused, match="half of a character"):
            select(cursor, "SELECT '\ud800'", Limits())
        with pytest.raises(QueryRefused, match="expected a whole number"):
            QUERIES["trajectories"].answer(cursor, {"limit": ["9" * 20]})


@pytest.mark.parametrize("spans", [1, 100, 3_000])
@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
def test_a_body_cut_anywhere_is_damaged_never_empty(spans, encoding):
    plain = body(*(span(n + 1) for n in range(spans)))
    pack = zstandard.ZstdCompressor().compress if encoding == "zstd" else gzip.compress
    packed = pack(plain)
    assert inflate(packed, encoding, LIMIT) == plain
    assert inflate(packed + pack(b"more"), encoding, LIMIT) == plain + b"more"
    for kept in (0, 1, 5, len(packed) // 2, len(packed) - 9, len(packed) - 1):
        with pytest.raises(Damaged):
            inflate(packed[:kept], encoding, LIMIT)


@pytest.mark.parametrize("signal", ["resourceLogs", "resourceMetrics"])
def test_logs_and_metrics_sent_as_json_traces_are_refused(signal):
    sent = orjson.dumps({signal: [{"scopeLogs": [{"logRecords": [{}]}]}]})
    with pytest.raises(BadRequest, match="keeps traces"):
        otlp.decode(sent, otlp.JSON)


@pytest.mark.parametrize("odd", [None, "x", [], 7])
def test_what_is_no_span_is_rejected_and_its_neighbours_stay(odd):
    decoded = otlp.decode(body(span(1), odd, span(2)), otlp.JSON)
    assert (len(decoded.rows), decoded.rejected) == (2, 1)
    assert "span 1" in decoded.message


def test_names_that_no_folder_can_have_stay_unsealed_and_hold_up_nobody(store):
    ended = [
        span(10 * n, "heddle.rollout", run=run, rollout=rollout)
        for n, (run, rollout) in enumerate(
            [("r" * 300, "a"), ("é" * 40, "a"), ("fine", "a"), ("b", "__HIVE_DEFAULT_PARTITION__")],
            1,
        )
    ]
    put(store, *ended)
    assert sealing.ready(store, 0) == [("fine", "a")]
    assert sealing.seal(store, "fine", "a") is not None
    with store.reading() as cursor:
        assert QUERIES["rollouts"].answer(cursor, {}).table.num_rows == 4


def test_a_kept_calibration_sees_a_step_that_came_before_what_was_stored_first(store):
    """Of parallel requests the later may be committed first, and clocks go back."""
    told = {f"heddle__predicted__p{p}": 5 * p for p in (10, 50, 90)}
    said = {"gen_ai__usage__output_tokens": 100, "heddle__step__index": 0, **told}
    put(store, span(1, **said), span(2, "invoke_agent"))
    query, asked = QUERIES["calibration"], {"run": ["run"]}
    with store.reading() as cursor:
        assert query.answer(cursor, asked).table["mae_tokens"].to_pylist() == [150.0]
    earlier = otlp.decode(body(span(3, **said)), otlp.JSON).table
    at = earlier.schema.get_field_index("received_ns")
    column = pa.array([1], earlier.schema.field(at).type)
    store.append(earlier.set_column(at, "received_ns", column), 1).result(60)
    with store.reading() as cursor:
        assert query.answer(cursor, asked).table["steps"].to_pylist() == [2]
