"""Sealing, retention and deletion: queries see hot and sealed alike, and what goes is gone."""

from __future__ import annotations

from contextlib import closing

import duckdb
import fsspec
import orjson
import polars as pl
import pytest

from heddle.collector import otlp, retention, sealing
from heddle.collector.queries.catalog import QUERIES
from heddle.collector.store import Store

NS = 1_000_000_000


def attributes(**given):
    return [
        {"key": key.replace("__", "."), "value": {"stringValue": str(value)}}
        for key, value in given.items()
    ]


def span(number, name, start_s, end_s, **given):
    return {
        "traceId": f"{number // 100 + 1:032x}",
        "spanId": f"{number + 1:016x}",
        "name": name,
        "startTimeUnixNano": str(start_s * NS),
        "endTimeUnixNano": str(end_s * NS),
        "attributes": attributes(**given),
        "events": [{"name": "e", "timeUnixNano": str(start_s * NS)}],
    }


def rollout_spans(run, rollout, base, *, trajectories=3):
    """A rollout of a few trajectories, whole; odd names, since paths are made of them."""
    whose = {"heddle__run__id": run, "heddle__rollout__id": rollout}
    yield span(base, "heddle.rollout", 1, 90, heddle__gpus=2, **whose)
    for t in range(trajectories):
        mine = {**whose, "gen_ai__conversation__id": f"t{t}", "heddle__group__id": "g"}
        first = base + 100 * (t + 1)
        yield span(first, "a", 2, 80, gen_ai__operation__name="invoke_agent", **mine)
        for step in range(4):
            tokens = {"gen_ai__usage__output_tokens": 10 * (t + 1), "heddle__step__index": step}
            yield span(
                first + step + 1,
                "chat",
                3 + step,
                4 + step,
                gen_ai__operation__name="chat",
                heddle__worker__id="w0",
                **tokens,
                **mine,
            )


def put(store, spans):
    body = orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]})
    store.append(otlp.decode(body, otlp.JSON).table, 1).result(30)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_store_holds_what_it_was_sent_sealed_or_not_and_nothing_else(tmp_path, sealed):
    with closing(Store(tmp_path / "heddle.duckdb")) as store:
        put(store, rollout_spans("run/1", "r 1", 1_000))
        if sealed:
            sealing.seal(store, "run/1", "r 1")
        asked = [{}, {"run": "run/1"}, {"rollout": "r 1"}, {"run": "run/1", "rollout": "r 1"}]
        assert all(sealing.holds(store, **of) for of in asked)
        wrong = [{"run": "nope"}, {"rollout": "nope"}, {"run": "run/1", "rollout": "nope"}]
        assert not any(sealing.holds(store, **of) for of in wrong)


def answers(store, run="run/1", rollout="r 1"):
    asked = {"run": [run], "rollout": [rollout]}
    with store.reading() as cursor:
        return {
            name: pl.DataFrame(query.answer(cursor, asked).table)
            for name, query in QUERIES.items()
            if query.compute is None and {"run", "rollout"} <= {*query.filters}
        }


def count(store, table="spans"):
    with store.reading() as cursor:
        return cursor.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path / "h.duckdb")) as made:
        put(made, rollout_spans("run/1", "r 1", 0))
        yield made


def test_queries_answer_the_same_before_and_after_sealing_and_after_a_restart(store, tmp_path):
    before = answers(store)
    assert sealing.ready(store, 0) == [("run/1", "r 1")]
    made = sealing.seal(store, "run/1", "r 1")
    assert made is not None
    assert (made.rows, count(store), count(store, "everything")) == (16, 0, 16)
    after = answers(store)
    store.close()
    with closing(Store(tmp_path / "h.duckdb")) as again:
        later = answers(again)
    for name, frame in before.items():
        assert frame.equals(after[name]), name
        assert frame.equals(later[name]), name
    assert before["steps"].height == 12
    assert before["rollouts"]["gpus"].to_list() == [2]


def test_a_running_or_a_busy_rollout_is_not_ready(store):
    put(store, [s for s in rollout_spans("run/1", "open", 5_000) if s["name"] != "heddle.rollout"])
    assert sealing.ready(store, 0) == [("run/1", "r 1")]
    assert sealing.ready(store, 3_600) == []
    assert sealing.ready(store, 0, run="another") == []
    assert sealing.seal(store, "run/1", "nothing") is None


def test_a_rollout_that_fell_silent_is_sealed_though_nobody_ended_it(tmp_path):
    spans = [s for s in rollout_spans("run/1", "lost", 0) if s["name"] != "heddle.rollout"]
    for silent_s, ready in ((3_600.0, []), (0.0, [("run/1", "lost")])):
        with closing(Store(tmp_path / "h.duckdb", silent_s=silent_s)) as store:
            put(store, spans)
            assert sealing.ready(store, 0) == ready
            assert sealing.ready(store, 3_600) == []


def test_a_late_span_reopens_the_sums_and_goes_to_a_delta_file(store):
    sealing.seal(store, "run/1", "r 1")
    late = {
        "heddle__run__id": "run/1",
        "heddle__rollout__id": "r 1",
        "gen_ai__conversation__id": "t0",
    }
    step = {"gen_ai__operation__name": "chat", "heddle__step__index": 9}
    put(store, [span(190, "chat", 70, 75, gen_ai__usage__output_tokens=7, **step, **late)])
    sums = answers(store)["trajectories"].filter(pl.col("trajectory_id") == "t0")
    assert (sums["steps"].item(), sums["output_tokens"].item()) == (5, 47)
    made = sealing.seal(store, "run/1", "r 1")
    assert made is not None
    assert made.url.rpartition("/")[2].startswith("delta-")
    assert (made.rows, count(store), count(store, "everything")) == (1, 0, 17)
    assert answers(store)["trajectories"]["output_tokens"].sum() == 247


def test_a_file_that_reads_back_differently_drops_nothing(store, tmp_path, monkeypatch):
    honest = sealing.write

    def forgetful(to, path, rows):
        return honest(to, path, rows.limit(15))

    monkeypatch.setattr(sealing, "write", forgetful)
    with pytest.raises(sealing.NotSealed, match="reads back 15 spans"):
        sealing.seal(store, "run/1", "r 1")
    assert count(store) == 16
    assert list((tmp_path / "sealed").rglob("*.parquet*")) == []


def test_files_that_a_crash_left_are_swept_and_others_are_not(store, tmp_path):
    made = sealing.seal(store, "run/1", "r 1")
    assert made is not None
    name = made.url.rpartition("/")[2]
    folder = tmp_path / "sealed" / "spans" / "run_id=x" / "rollout_id=y"
    folder.mkdir(parents=True)
    (folder / name.replace(name[-12:], "left.parquet")).touch()
    (folder / "part-another-0.parquet").touch()
    assert sealing.sweep(store) == 1
    assert [p.name for p in folder.iterdir()] == ["part-another-0.parquet"]
    assert count(store, "everything") == 16


def test_two_collectors_seal_into_one_data_set_that_polars_and_duckdb_read(store, tmp_path):
    with closing(Store(tmp_path / "b" / "h.duckdb", sealed_url=str(tmp_path / "sealed"))) as other:
        put(other, rollout_spans("run/1", "r 2", 20_000))
        put(other, rollout_spans("run/1", "r 1", 40_000, trajectories=1))
        sealing.seal(store, "run/1", "r 1")
        for run, rollout in sealing.ready(other, 0):
            sealing.seal(other, run, rollout)
        assert sealing.sweep(store) == sealing.sweep(other) == 0
        assert (count(store, "everything"), count(other, "everything")) == (16, 22)
    root = tmp_path / "sealed" / "spans"
    wanted = {"r 1": 22, "r 2": 16}
    frame = pl.scan_parquet(root / "**/*.parquet", hive_partitioning=True).collect()
    assert set(frame["run_id"]) == {"run/1"}
    assert dict(frame.group_by("rollout_id").len().iter_rows()) == wanted
    with duckdb.connect() as con:
        rows = con.execute(
            "SELECT rollout_id, count(*) FROM read_parquet(?, hive_partitioning = true) GROUP BY 1",
            [f"{root}/**/*.parquet"],
        ).fetchall()
    assert dict(rows) == wanted


def test_any_fsspec_url_holds_sealed_files(tmp_path):
    with closing(Store(tmp_path / "h.duckdb", sealed_url="memory://heddle-test")) as store:
        put(store, rollout_spans("run/1", "r 1", 0))
        before = answers(store)
        made = sealing.seal(store, "run/1", "r 1")
        assert made is not None
        assert made.url.startswith("memory://")
        for name, frame in answers(store).items():
            assert frame.equals(before[name]), name
        assert retention.shrink(store, 0).files == 1
    assert fsspec.filesystem("memory").glob("/heddle-test/**/*.parquet") == []


def test_retention_by_age_removes_files_rows_and_sums(store, tmp_path):
    put(store, rollout_spans("run/1", "hot", 50_000))
    sealing.seal(store, "run/1", "r 1")
    assert retention.expire(store, 0) == retention.Gone(0, 0, 0)
    gone = retention.expire(store, 1 << 62)
    assert (gone.files, gone.spans) == (1, 16)
    assert list((tmp_path / "sealed" / "spans").rglob("*")) == []
    for table in ("everything", "rolled_trajectories", "rolled_rollouts", "rolled_runs"):
        assert count(store, table) == 0, table


def test_retention_by_size_removes_the_oldest_until_it_fits_and_frees_the_disk(store, tmp_path):
    sealed = [sealing.seal(store, "run/1", "r 1")]
    for n in (2, 3):
        put(store, rollout_spans("run/1", f"r {n}", 10_000 * n))
        sealed.append(sealing.seal(store, "run/1", f"r {n}"))
    with store.reading() as cursor:
        total = retention.disk_bytes(store, cursor)
    assert None not in sealed
    sizes = [made.bytes for made in sealed if made is not None]
    assert retention.shrink(store, total).files == 0
    gone = retention.shrink(store, total - 1)
    left = sum(p.stat().st_size for p in (tmp_path / "sealed").rglob("*.parquet"))
    assert (gone.files, gone.file_bytes) == (1, sizes[0])
    assert left == sizes[1] + sizes[2]
    assert answers(store)["trajectories"].is_empty()
    assert answers(store, rollout="r 2")["trajectories"].height == 3


@pytest.mark.parametrize("seal", [False, True], ids=["hot", "sealed"])
def test_a_deleted_trajectory_is_gone_everywhere_and_its_neighbours_stay(store, tmp_path, seal):
    nameless = span(101 + 50, "http", 5, 6, heddle__run__id="run/1", heddle__rollout__id="r 1")
    put(store, [nameless])
    if seal:
        sealing.seal(store, "run/1", "r 1")
    gone = retention.delete_trajectory(store, "run/1", "t0")
    assert gone.spans == 6
    assert count(store, "everything") == 11
    assert answers(store)["trajectories"]["trajectory_id"].to_list() == ["t1", "t2"]
    assert answers(store)["rollouts"]["output_tokens"].to_list() == [200]
    for path in (tmp_path / "sealed").rglob("*.parquet"):
        assert "t0" not in pl.read_parquet(path)["trajectory_id"]
    assert len(list((tmp_path / "sealed").rglob("*.parquet"))) == seal
    assert retention.delete_trajectory(store, "run/1", "t0").spans == 0
    # Sent or imported again it is there again, and its neighbours are not there twice.
    put(store, [*rollout_spans("run/1", "r 1", 0), nameless])
    assert count(store, "everything") == 17
    assert answers(store)["trajectories"]["trajectory_id"].to_list() == ["t0", "t1", "t2"]


def test_the_writer_goes_on_while_rollouts_are_sealed(store):
    for n in range(5):
        put(store, rollout_spans("run/1", f"s{n}", 100_000 + 10_000 * n))
    futures = []
    for run, rollout in sealing.ready(store, 0):
        body = {
            "resourceSpans": [
                {"scopeSpans": [{"spans": [span(900_000 + len(futures), "x", 1, 2)]}]}
            ]
        }
        futures.append(store.append(otlp.decode(orjson.dumps(body), otlp.JSON).table, 1))
        sealing.seal(store, run, rollout)
    assert [f.result(30) for f in futures] == [1] * 6
    assert (count(store), count(store, "everything")) == (6, 102)


def test_groups_are_the_trajectories_of_a_prompt_added_up(store):
    spans = list(rollout_spans("run/1", "open", 5_000))
    last = [s for s in spans if s["name"] == "a"][-1]
    put(store, [s for s in spans if s is not last and s["name"] != "heddle.rollout"])
    told = answers_of(store, "groups").sort("rollout_id")
    trajectories = answers_of(store, "trajectories")
    added = trajectories.group_by("rollout_id").agg(
        pl.len().alias("trajectories"),
        pl.col("output_tokens", "steps", "tool_calls").sum(),
        pl.col("output_tokens").max().alias("longest_tokens"),
        pl.col("duration_s").median().alias("median_s"),
        (pl.col("state") == "finished").sum().alias("finished"),
    )
    names = added.columns
    assert told.select(names).to_dicts() == added.sort("rollout_id").to_dicts()
    assert told["state"].to_list() == ["running", "finished"]


def answers_of(store, name):
    with store.reading() as cursor:
        return pl.DataFrame(QUERIES[name].answer(cursor, {}).table)


def test_a_rollout_that_nobody_announced_has_all_of_its_steps(store):
    """DuckDB packed the sum into a byte: 12 steps of 64 trajectories came back as none."""
    whose = {"heddle__run__id": "bare", "heddle__rollout__id": "r"}
    chat = {"gen_ai__operation__name": "chat", "gen_ai__usage__output_tokens": 10}
    put(
        store,
        [
            span(10_000 + 100 * t + i, "chat", 2 + i, 3 + i, gen_ai__conversation__id=f"b{t}",
                 heddle__step__index=i, **chat, **whose)
            for t in range(64) for i in range(12)
        ],
    )  # fmt: skip
    with store.reading() as cursor:
        asked = {"run": ["bare"], "rollout": ["r"]}
        (row,) = QUERIES["rollouts"].answer(cursor, asked).table.to_pylist()
    assert (row["trajectories"], row["steps"], row["output_tokens"]) == (64, 768, 7_680)
