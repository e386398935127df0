"""Lists in pages: nothing skipped or repeated, N of M said, every filter does what it says."""

from __future__ import annotations

from contextlib import closing

import polars as pl
import pytest

from heddle.collector import otlp
from heddle.collector.errors import QueryRefused
from heddle.collector.queries import paging
from heddle.collector.queries import query as query_module
from heddle.collector.queries.catalog import QUERIES
from heddle.collector.queries.filters import instant
from heddle.collector.store import Store


def span(number: int, start_ns: int, end_ns: int, **attributes):
    keys = {
        "run_id": "heddle.run.id",
        "rollout_id": "heddle.rollout.id",
        "trajectory_id": "gen_ai.conversation.id",
        "op": "gen_ai.operation.name",
        "worker_id": "heddle.worker.id",
        "policies": "heddle.policies",
        "preset": "heddle.preset",
        "outcome": "heddle.outcome",
        "starts_span_id": "heddle.starts",
        "starts_op": "heddle.starts.op",
    }
    pairs = [
        {"key": keys.get(name, name), "value": {"stringValue": value}}
        for name, value in attributes.items()
    ]
    return {
        "traceId": f"{number + 1:032x}",
        "spanId": f"{number + 1:016x}",
        "name": attributes.get("op", "s"),
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(end_ns),
        "attributes": pairs,
    }


def put(store: Store, spans) -> None:
    import orjson

    body = orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]})
    store.append(otlp.decode(body, otlp.JSON).table, 1).result(30)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = Store(tmp_path_factory.mktemp("paging") / "h.duckdb")
    whose = {"run_id": "run", "rollout_id": "a"}
    # 60 steps, ten at each start: pages must break inside a start.
    steps = [
        span(n, 100 + n // 10, 200, op="chat", trajectory_id=f"t{n % 7}", worker_id="w0", **whose)
        for n in range(60)
    ]
    other = {"run_id": "run", "rollout_id": "b", "policies": "order=fcfs,placement=sticky"}
    ends = [
        span(900, 1, 300, op="heddle.rollout", preset="heddle", **whose),
        span(901, 400, 500, op="heddle.rollout", **other),
        span(902, 400, 0, op="invoke_agent", trajectory_id="late", outcome="failed", **other),
    ]
    put(made, [*steps, *ends])
    yield made
    made.close()


def ask(store, name, **filters) -> tuple[pl.DataFrame, int, str | None]:
    given = {
        key: value if isinstance(value, list) else [str(value)] for key, value in filters.items()
    }
    with store.reading() as cursor:
        answer = QUERIES[name].answer(cursor, given)
    return pl.DataFrame(answer.table), answer.total, answer.next


@pytest.mark.parametrize("limit", [1, 7, 10, 59, 60, 61])
def test_pages_together_are_the_whole_list_in_order(store, limit):
    whole, total, _ = ask(store, "steps")
    pages, after = [], None
    while True:
        more = {"after": after} if after else {}
        page, said, after = ask(store, "steps", limit=limit, **more)
        assert said == total == 60
        pages.append(page)
        if after is None:
            break
    assert pl.concat(pages).equals(whole)


def test_rows_that_arrive_between_pages_are_neither_skipped_nor_repeated(tmp_path):
    store = Store(tmp_path / "h.duckdb")
    put(store, [span(n, 100 + n, 900, op="chat", trajectory_id="t") for n in range(10)])
    first, _, after = ask(store, "steps", limit=5)
    put(store, [span(50, 50, 900, op="chat", trajectory_id="t")])
    rest, total, _ = ask(store, "steps", limit=50, after=after)
    store.close()
    assert [*first["start_ns"], *rest["start_ns"]] == list(range(100, 110))
    assert total == 11


def test_a_null_in_the_order_key_comes_last_and_is_passed_once(store):
    seen, after, total = [], None, 0
    for _ in range(4):
        more = {"after": after} if after else {}
        page, total, after = ask(store, "spans", rollout=["b"], limit=1, **more)
        seen += page["span_id"].to_list()
        if after is None:
            break
    assert len(seen) == len(set(seen)) == total == 2


_FOREIGN = [[], [-3], ["x"], [None], [{"a": 1}, "b", 3, 4, 5], [2**64 - 1] * 5, ["x", "b", 3, "x"]]


@pytest.mark.parametrize("values", _FOREIGN)
def test_the_key_of_another_list_is_refused_by_a_computed_one(store, values):
    with pytest.raises(QueryRefused, match="after is"):
        ask(store, "ccdf", run="run", limit=5, after=paging.token(values))


@pytest.mark.parametrize("values", [[{"a": 1}, "b", 3, 4, 5], [2**64 - 1] * 5])
def test_a_key_of_other_types_is_refused(store, values):
    with pytest.raises(QueryRefused, match="after is"):
        ask(store, "steps", run="run", limit=5, after=paging.token(values))


@pytest.mark.parametrize("text", ["--5", "9" * 5_000, "9" * 30, "", "-", "today"])
def test_what_is_no_time_is_refused_in_one_short_sentence(store, text):
    with pytest.raises(QueryRefused, match="is no time") as refused:
        ask(store, "steps", since=text)
    assert len(str(refused.value)) < 150


@pytest.mark.parametrize("after", ["x", "bnVsbA", paging.token([1])])
def test_a_token_of_nowhere_is_refused(store, after):
    with pytest.raises(QueryRefused, match="after is"):
        ask(store, "steps", limit=1, after=after)


@pytest.mark.parametrize(
    ("name", "filters", "rows"),
    [
        ("trajectories", {"policy": "heddle"}, 7),
        ("trajectories", {"policy": "order=fcfs"}, 1),
        ("trajectories", {"policy": ["heddle", "order=fcfs"]}, 8),
        ("trajectories", {"outcome": "failed"}, 1),
        ("trajectories", {"state": "abandoned"}, 1),
        ("steps", {"since": 103}, 30),
        ("steps", {"until": 103}, 30),
        ("steps", {"since": 103, "until": 104}, 10),
        ("steps", {"worker": "w0", "trajectory": "t3"}, 9),
        ("rollouts", {"policy": "placement=sticky"}, 1),
        ("rollouts", {"since": "1970-01-01T00:00:00Z"}, 2),
        ("runs", {"run": "run"}, 1),
        # No span of the store tells its tokens: three of the four metrics have a value.
        ("tail", {"policy": "heddle"}, 3),
    ],
)
def test_filters_choose_exactly(store, name, filters, rows):
    assert ask(store, name, **filters)[0].height == rows


def test_every_order_names_a_row_by_columns_the_query_has(store):
    for query in QUERIES.values():
        if query.compute is None:
            needed = {query.needs[0]: ["t1"]} if query.needs else {}
            with store.reading() as cursor:
                assert query.answer(cursor, {**needed, "limit": ["2"]}).table.num_rows <= 2


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("17", 17),
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("1970-01-01T01:00:00.000001+01:00", 1_000),
        ("1970-01-02", 86_400_000_000_000),
    ],
)
def test_a_time_is_nanoseconds_or_iso(text, ns):
    assert instant(text) == ns


def test_what_is_no_time_is_said(store):
    with pytest.raises(QueryRefused, match="'noon' is no time"):
        ask(store, "steps", since="noon")


def test_a_named_trajectory_is_found_whole_though_its_sums_are_behind(tmp_path):
    """Where to look is read from the sums and from what is not summed up yet."""
    whose = {"run_id": "run", "rollout_id": "a"}
    with closing(Store(tmp_path / "h.duckdb")) as made:
        put(
            made, [span(n, 500 + n, 510 + n, op="chat", trajectory_id="x", **whose) for n in (1, 2)]
        )
        made.rollups.refresh()
        later = [(3, 900, "x"), (4, 20, "x"), (5, 700, "new"), (6, 10**9, "x")]
        put(made, [span(n, at, at + 5, op="chat", trajectory_id=t, **whose) for n, at, t in later])
        made.rollups.freshen = lambda: None
        with made.reading(fresh=False) as cursor:
            found = {
                t: QUERIES["steps"].answer(cursor, {"trajectory": t}).table["start_ns"].to_pylist()
                for t in (("x",), ("new",), ("x", "new"), ("nobody",))
            }
    assert found == {
        ("x",): [20, 501, 502, 900, 10**9],
        ("new",): [700],
        ("x", "new"): [20, 501, 502, 700, 900, 10**9],
        ("nobody",): [],
    }


def test_named_trajectories_are_the_lists_own_rows_in_every_rollout(store):
    everybody = ask(store, "trajectories")[0]
    names = sorted(set(everybody["trajectory_id"]))
    for asked in (*([name] for name in names), names[:3], ["nobody"]):
        for paging_ in ({}, {"limit": 100}):
            found = ask(store, "trajectories", trajectory=asked, **paging_)[0]
            assert found.equals(everybody.filter(pl.col("trajectory_id").is_in(asked)))


@pytest.mark.parametrize("name", [name for name, query in QUERIES.items() if query.of_spans])
def test_lists_without_an_open_span_are_those_of_all_views(name, tmp_path, monkeypatch):
    """Whoever asks for nothing that is open is answered from views without start markers."""
    ops = ("chat", "execute_tool", "heddle.move", "invoke_agent")
    with closing(Store(tmp_path / "h.duckdb")) as store:
        for number, op in enumerate(ops * 3):
            run = "open" if number >= 8 else "done"
            whose = {"run_id": run, "rollout_id": "a", "trajectory_id": f"t{number % 8 // 4}"}
            if run == "open":
                opens = {"starts_span_id": f"{number + 100:016x}", "starts_op": op}
                put(
                    store,
                    [span(number, 10 + number, 10 + number, op="heddle.start", **opens, **whose)],
                )
            put(store, [span(number + 50, 10 + number, 20 + number, op=op, **whose)])
        store.rollups.refresh()
        opened = {"of": "", "stated": "stated", "everything": "everything"}
        least = {"spans": {"rollout": "a"}}.get(name, {})
        seen = set()
        for filters in (
            {}, {"run": "done"}, {"run": "open"}, {"trajectory": "t0"}, {"trajectory": "t1"},
            {"run": "done", "trajectory": ["t0", "t1"]}, {"until": "15"},
            {"run": "done", "limit": "3"}, {"limit": "3"},
        ):  # fmt: skip
            answered = ask(store, name, **least, **filters)
            with monkeypatch.context() as patch:
                patch.setattr(query_module, "_ENDED", opened)
                assert answered[0].equals(ask(store, name, **least, **filters)[0])
            seen.add(answered[1])
        assert len(seen) > 2
        states = ask(store, "steps", run="open")[0]["state"].to_list()
        assert sorted(states) == ["finished", "running"]


def test_the_spread_of_a_group_is_that_of_its_finished_samples(tmp_path):
    tokens = "gen_ai.usage.output_tokens"
    whose = {"run_id": "run", "rollout_id": "ro", "heddle.group.id": "g"}
    spans = [
        span(n, 1, 2, op="chat", trajectory_id=name, **whose, **{tokens: count})
        for n, (name, count) in enumerate({"a": "10", "b": "30", "running": "500"}.items())
    ]
    ends = [
        span(9 + n, 1, 3, op="invoke_agent", trajectory_id=t, **whose) for n, t in enumerate("ab")
    ]
    with closing(Store(tmp_path / "h.duckdb")) as made:
        put(made, [*spans, *ends])
        groups, _, _ = ask(made, "spread", run="run")
    assert groups.select("samples", "max_tokens").rows() == [(2, 30)]
