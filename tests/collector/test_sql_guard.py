"""Read-only SQL: one SELECT over the store's tables; every way out of it is refused by name."""

from __future__ import annotations

import json
import threading
from decimal import Decimal

import duckdb
import polars as pl
import pytest

from heddle.collector import otlp
from heddle.collector.errors import QueryRefused
from heddle.collector.exporters.files import csv_text, json_text
from heddle.collector.queries.sql import Limits, select
from heddle.collector.sql_guard import checked
from heddle.collector.store import Store

ESCAPES = {
    "COPY spans TO '/tmp/x.csv'": "COPY",
    "COPY (SELECT 1) TO '/tmp/x.parquet'": "COPY",
    "ATTACH '/tmp/x.duckdb'": "ATTACH",
    "DETACH memory": "DETACH",
    "USE memory": "SET",
    "INSTALL httpfs": "LOAD",
    "LOAD httpfs": "LOAD",
    "SET threads = 1": "SET",
    "SET allowed_directories = ['/']": "SET",
    "RESET threads": "SET",
    "SET VARIABLE x = 1": "SET",
    "PRAGMA database_list": "PRAGMA",
    "IMPORT DATABASE '/tmp/x'": "PRAGMA",
    "EXPORT DATABASE '/tmp/x'": "EXPORT",
    "CALL checkpoint()": "CALL",
    "CHECKPOINT": "CALL",
    "VACUUM": "VACUUM",
    "CREATE TABLE x AS SELECT 1": "CREATE",
    "CREATE MACRO m() AS 1": "CREATE",
    "INSERT INTO spans VALUES (1)": "INSERT",
    "UPDATE spans SET name = 'x'": "UPDATE",
    "DELETE FROM spans": "DELETE",
    "MERGE INTO spans USING spans s ON true WHEN MATCHED THEN DELETE": "MERGE",
    "DROP TABLE spans": "DROP",
    "ALTER TABLE spans ADD COLUMN z INT": "ALTER",
    "COMMENT ON TABLE spans IS 'x'": "ALTER",
    "PREPARE p AS SELECT 1": "PREPARE",
    "EXECUTE p": "EXECUTE",
    "BEGIN": "TRANSACTION",
    "EXPLAIN ANALYZE SELECT 1": "EXPLAIN",
    "SHOW TABLES": "SHOW",
    "FROM (DESCRIBE spans)": "SHOW",
    "SELECT 1; DROP TABLE spans": "2 statements",
    "SELECT 1; SELECT 2": "2 statements",
    "": "0 statements",
    "SELECT * FROM read_text('/etc/passwd')": "read_text",
    "SELECT content FROM (SELECT * FROM READ_TEXT('/etc/passwd'))": "read_text",
    "SELECT * FROM read_blob('/etc/passwd')": "read_blob",
    "SELECT * FROM read_csv('/etc/passwd')": "read_csv",
    "SELECT * FROM read_json('/etc/passwd')": "read_json",
    "SELECT * FROM read_parquet('sealed/x.parquet')": "read_parquet",
    "SELECT * FROM glob('/etc/*')": "glob",
    "SELECT * FROM spans WHERE name IN (SELECT file FROM glob('*'))": "glob",
    "SELECT list_transform([1], lambda x: (SELECT count(*) FROM glob('*')))": "glob",
    "WITH t AS (SELECT * FROM glob('*')) SELECT * FROM t": "glob",
    "SELECT * FROM '/etc/passwd'": "/etc/passwd",
    "SELECT * FROM 'x.csv'": "x.csv",
    'SELECT * FROM "sealed/../../etc/x.parquet"': "sealed/../../etc",
    "SELECT * FROM '..'": r"'\.\.'",
    "SELECT * FROM other.main.spans": "other.main.spans",
    "SELECT * FROM information_schema.tables": "information_schema",
    "SELECT * FROM sqlite_master": "sqlite_master",
    "SELECT * FROM checkpoint()": "checkpoint",
    "SELECT * FROM duckdb_settings()": "duckdb_settings",
    "SELECT * FROM duckdb_secrets()": "duckdb_secrets",
    "SELECT * FROM pragma_database_size()": "pragma_database_size",
    "SELECT * FROM query('SELECT 1')": "query",
    "SELECT * FROM query_table('spans')": "query_table",
    "SELECT * FROM json_execute_serialized_sql('x')": "json_execute",
    "SELECT * FROM seq_scan('spans')": "seq_scan",
    "SELECT * FROM arrow_scan(1, 2, 3)": "arrow_scan",
    "SELECT getenv('HOME')": "getenv",
    "SELECT current_setting('threads')": "current_setting",
    "SELECT nextval('s')": "nextval",
    "SELECT write_log('x')": "write_log",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = Store(tmp_path_factory.mktemp("sql") / "h.duckdb")
    body = (
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"%s","spanId":"%s","name":"s",'
        b'"startTimeUnixNano":"1","endTimeUnixNano":"2","attributes":'
        b'[{"key":"x","value":{"intValue":"7"}}]}]}]}]}' % (b"a" * 32, b"b" * 16)
    )
    made.append(otlp.decode(body, otlp.JSON).table, 1).result(30)
    yield made
    made.close()


def run(store, text, **limits):
    with store.reading() as cursor:
        return select(cursor, text, Limits(**limits))


@pytest.mark.parametrize(
    ("text", "named"), ESCAPES.items(), ids=list(map(str, range(len(ESCAPES))))
)
def test_every_way_out_is_refused_by_name(store, text, named):
    with pytest.raises(QueryRefused, match=named):
        run(store, text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "FROM spans",
        "TABLE trajectories",
        "VALUES (1), (2)",
        "WITH t AS (SELECT name FROM spans) SELECT * FROM t, unnest([1, 2]) u(x), range(3) -- ok",
        "SELECT quantile_cont(duration_s, 0.5) FROM trajectories GROUP BY task",
        "SELECT count(*) FROM main.rollouts;",
    ],
)
def test_a_plain_select_runs(store, text):
    assert run(store, text).truncated == ""


def test_variants_arrive_as_json_text_and_their_keys_can_be_asked(store):
    table = run(store, "SELECT attrs, attrs['x'] AS x, name FROM spans").table
    assert table.to_pylist() == [{"attrs": '{"x":7}', "x": "7", "name": "s"}]


STRANGE = {
    "3::HUGEINT": 3,
    "sum(x)": 10,
    "2::HUGEINT ** 100": 2**100,
    "99999999999999999999999999999999999999::HUGEINT": 10**38 - 1,
    "170141183460469231731687303715884105727::HUGEINT": str(2**127 - 1),
    "-170141183460469231731687303715884105727::HUGEINT": str(1 - 2**127),
    "340282366920938463463374607431768211455::UHUGEINT": str(2**128 - 1),
    "1.50::DECIMAL(9, 2)": Decimal("1.50"),
    "1796000000000000001": 1796000000000000001,
    "INTERVAL 3 HOURS": "03:00:00",
    "[INTERVAL 3 HOURS]": "['03:00:00']",
    "'a'::BLOB": "a",
    "'101'::BIT": "101",
    "12::BIGNUM": "12",
    "MAP {'k': 1.5}": '{"k":1.5}',
    "union_value(a := 1)": "1",
    "'01:02:03+02'::TIMETZ": "01:02:03+02",
    "{'a': 1::VARIANT}": '{"a":1}',
    "[1::VARIANT]": "[1]",
    "{'a': 2.5::DECIMAL(4, 1)}": {"a": Decimal("2.5")},
}


@pytest.mark.parametrize("expression", STRANGE)
def test_every_type_arrives_as_one_that_frames_and_files_know(store, expression):
    """Polars dies of an INTERVAL, JSON knows no DECIMAL, CSV no MAP."""
    text = f'SELECT {expression} AS "a ""b""" FROM range(5) t(x) GROUP BY ALL LIMIT 1'
    frame = pl.from_arrow(run(store, text).table)
    wanted = STRANGE[expression]
    assert frame.to_dicts() == [{'a "b"': wanted}]
    (row,) = json.loads(json_text(frame))
    found = row['a "b"']
    exact = isinstance(wanted, int) and abs(wanted) < 2**63
    assert (
        (found == wanted) if exact or isinstance(wanted, str | dict) else wanted == Decimal(found)
    )
    assert csv_text(frame).count("\n") == 2


def test_even_an_unguarded_reader_cannot_leave_the_store_or_change_it(store, tmp_path):
    for text in (
        "SELECT * FROM read_text('/etc/hostname')",
        f"COPY (SELECT 1) TO '{tmp_path}/x.csv'",
        f"ATTACH '{tmp_path}/x.duckdb'",
        "SET enable_external_access = true",
        "SET threads = 1",
    ):
        with store.reading() as cursor, pytest.raises(duckdb.Error):
            cursor.execute(text)
    secret = pl.DataFrame({"x": ["a Python variable of the caller"]})
    with store.reading() as cursor, pytest.raises(duckdb.CatalogException):
        cursor.execute("SELECT * FROM secret")
    assert secret.height == 1


def test_a_long_query_is_interrupted_and_the_store_goes_on(store):
    with pytest.raises(QueryRefused, match=r"longer than 0\.2 s"):
        run(store, "SELECT count(*) FROM range(10000000) a, range(10000000) b", seconds=0.2)
    assert run(store, "SELECT 1 AS x").table.to_pylist() == [{"x": 1}]


def test_rows_and_bytes_are_cut_and_the_answer_says_so(store):
    by_rows = run(store, "FROM range(30000)", rows=10)
    assert (by_rows.table.num_rows, "first 10 rows" in by_rows.truncated) == (10, True)
    by_bytes = run(store, "FROM range(300000)", size_bytes=1000)
    assert by_bytes.table.num_rows < 300_000
    assert "1,000 bytes" in by_bytes.truncated
    assert run(store, "FROM range(10)", rows=10).truncated == ""


def test_sql_runs_while_the_writer_writes(store):
    done = threading.Event()

    def write():
        while not done.is_set():
            store.probe().result(30)

    writer = threading.Thread(target=write)
    writer.start()
    counts = [
        run(store, "SELECT count(*) AS n FROM spans").table["n"][0].as_py() for _ in range(20)
    ]
    done.set()
    writer.join()
    assert counts == [1] * 20


def test_what_the_parser_cannot_read_is_said(store):
    with store.reading() as cursor, pytest.raises(QueryRefused, match="cannot be read"):
        checked(cursor, "SELEKT 1")
    with pytest.raises(QueryRefused, match="failed: Catalog Error"):
        run(store, "SELECT * FROM nowhere")
    with pytest.raises(QueryRefused, match="characters long"):
        run(store, "SELECT " + "1," * 60_000 + "1")
