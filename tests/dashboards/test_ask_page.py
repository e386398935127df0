"""Asking one's own question: the text runs, is refused, is saved, and is cut where it is long."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import polars as pl
import pytest
from browser.apptest import Gone, opened, said
from browser.fake_rollouts import RUN, START_NS, Story

from heddle.collector.exporters.files import csv_text, json_text
from heddle.dashboards import cards, evidence
from heddle.dashboards.figures import base, chart
from heddle.dashboards.saved import LONGEST_NAME, MOST, Shelf
from heddle.dashboards.views import ask

Answering = Callable[[Any], None]
BY_TASK = "SELECT task, count(*) AS n, max(start_ns) AS last_ns FROM trajectories GROUP BY task"


@pytest.fixture
def story(answering: Answering) -> Story:
    story = Story(("verl",), trajectories=12)
    answering(story)
    return story


def test_an_unasked_page_shows_the_schema_and_examples(story: Story) -> None:
    at = opened("ask")
    assert "Nothing has been asked yet" in said(at)
    assert "output_tokens" in at.dataframe[0].value["column"].tolist()
    assert at.selectbox(key="choose_table").value == "trajectories"


def test_the_question_of_the_address_is_answered(story: Story) -> None:
    at = opened("ask", sql=BY_TASK + " ORDER BY n DESC, task")
    assert at.text_area(key="ask_sql").value.startswith("SELECT task")
    shown = at.dataframe[1].value
    assert (shown["task"].tolist(), shown["n"].tolist()) == (["coding", "search"], [8, 4])
    latest = story.query("trajectories")["start_ns"].max()
    assert str(latest) in shown["last_ns"].tolist()


def test_the_tab_of_the_address_is_open_and_only_it_is_filled(story: Story) -> None:
    at = opened("ask", sql=BY_TASK, tab="Chart", chart="points")
    assert len(at.dataframe) == 1
    assert at.get("plotly_chart")
    at = opened("ask", sql=BY_TASK, tab="no such tab")
    assert len(at.dataframe) == 2
    assert not at.get("plotly_chart")


def test_what_runs_is_put_into_the_address(story: Story) -> None:
    at = opened("ask")
    at.text_area(key="ask_sql").input("SELECT count(*) AS n FROM steps")
    at.button(key="FormSubmitter:ask_form-Run").click().run()
    assert at.query_params["sql"] == "SELECT count(*) AS n FROM steps"
    assert at.dataframe[1].value["n"].tolist() == [story.query("steps").height]


def test_an_example_runs_as_soon_as_it_is_picked(story: Story) -> None:
    at = opened("ask")
    at.selectbox(key="ask_picked").select("Slowest tools").run()
    assert "tool_name" in at.dataframe[1].value.columns
    assert "FROM tool_calls" in at.query_params["sql"]


def test_a_refusal_is_said_as_text(story: Story) -> None:
    at = opened("ask", sql="SELECT * FROM no_such_table")
    assert "no\\_such\\_table" in at.error[0].value


def test_no_row_is_an_answer_of_its_own(story: Story) -> None:
    at = opened("ask", sql="SELECT task FROM trajectories WHERE false")
    assert "gave no row" in said(at)


def test_a_long_answer_is_shown_in_part_and_says_so(story: Story) -> None:
    at = opened("ask", sql="SELECT i, 'x' AS t FROM range(5000) r(i)")
    assert "1,000 of 5,000 rows shown" in said(at)
    assert len(at.dataframe[1].value) == 1_000


def test_a_findings_evidence_is_shown_by_its_own_query(story: Story) -> None:
    whose = story.query("trajectories")["trajectory_id"][3]
    asked = urlencode({"trajectory": whose, "run": RUN, "rollout": "rollout-1"})
    at = opened("ask", named=f"steps?{asked}")
    assert f"steps, trajectory {whose}" in said(at)
    expected = story.query("steps", trajectory=whose)
    shown = at.dataframe[1].value
    assert shown["step_index"].tolist() == expected["step_index"].to_list()
    assert shown["trajectory_id"].unique().tolist() == [whose]
    at.text_area(key="ask_sql").input("SELECT 7 AS n")
    at.button(key="FormSubmitter:ask_form-Run").click().run()
    assert "named" not in at.query_params
    assert at.dataframe[1].value["n"].tolist() == [7]


@pytest.mark.parametrize("named", ["no_such_query?run=a", "steps?a b=1", "", "?run=a"])
def test_evidence_that_is_no_query_asks_nothing(story: Story, named: str) -> None:
    at = opened("ask", named=named)
    assert len(at.dataframe) == 1
    expected = "There is no query" if named else "Nothing has been asked yet"
    assert expected in said(at)


def test_an_evidence_without_rows_and_one_too_long_say_so(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = opened("ask", named="steps?trajectory=nobody")
    assert "The query gave no row" in said(at)
    monkeypatch.setattr(evidence, "ROWS", 5)
    whole = story.query("steps").height
    at = opened("ask", named="steps?run=" + RUN)
    assert f"The first 5 of {whole:,} rows" in at.warning[0].value.replace("\\", "")


def test_a_name_with_signs_stays_one_value_of_an_evidence() -> None:
    found = evidence.read(f"steps?{urlencode({'trajectory': 'a&run=b=c d', 'run': 'r'})}")
    assert found is not None
    assert found.filters == {"trajectory": "a&run=b=c d", "run": "r"}
    assert evidence.trajectory("decomposition?by=rollout") is None


def test_a_saved_query_outlives_the_page(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEDDLE_SAVED", str(tmp_path / "queries.json"))
    at = opened("ask", sql=BY_TASK)
    at.text_input(key="ask_name").input("mine")
    at.button(key="ask_save").click().run()
    assert json.loads((tmp_path / "queries.json").read_text()) == {"mine": BY_TASK}
    again = opened("ask")
    again.selectbox(key="ask_picked").select("mine").run()
    assert again.query_params["sql"] == BY_TASK
    again.button(key="ask_drop").click().run()
    assert Shelf(tmp_path / "queries.json").all() == {}


def test_a_collector_that_is_gone_names_the_command(answering: Answering) -> None:
    answering(Gone())
    assert opened("ask").code[0].value == "heddle collect"


def test_the_shelf_refuses_what_it_could_not_show(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "queries.json")
    assert shelf.keep("", "SELECT 1") is not None
    assert shelf.keep("n" * (LONGEST_NAME + 1), "SELECT 1") is not None
    for number in range(MOST):
        assert shelf.keep(f"q{number}", "SELECT 1") is None
    assert "delete one" in (shelf.keep("one more", "SELECT 1") or "")
    assert shelf.keep("q0", "SELECT 2") is None
    (tmp_path / "queries.json").write_text("[not a shelf")
    assert shelf.all()["q0"] == "SELECT 2"


def test_thinning_keeps_the_highest_percent_and_the_order() -> None:
    values = [(i * 7919) % 100_003 for i in range(100_000)]
    frame = pl.DataFrame({"at": range(100_000), "v": values})
    kept = base.thinned(frame, "v")
    assert kept.height <= base.MARKS
    assert kept["at"].is_sorted()
    highest = set(sorted(values)[-1_000:])
    assert highest <= set(kept["v"])


def test_every_kind_of_chart_stays_within_its_marks() -> None:
    frame = pl.DataFrame({"x": [f"k{i}" for i in range(9_000)], "v": range(9_000)})
    for kind in chart.KINDS:
        figure = chart.chart(frame, "x", "v", kind, "light")
        assert sum(len(trace.x) for trace in figure.data) <= base.MARKS
        if kind != "histogram":
            assert max(figure.data[0].y) == 8_999
            assert figure.layout.xaxis.title.text == "x"
    assert chart.titled("queue_ns") == "queue_ns (ns)"
    assert chart.titled("tool_s") == "tool_s (s)"


def test_a_table_shows_huge_integers_exactly_and_no_more_than_its_bytes() -> None:
    frame = pl.DataFrame({"at_ns": [START_NS + 1], "n": [3], "t": ["y" * 5_000]})
    shown = cards.light(frame)
    assert shown.rows() == [(str(START_NS + 1), 3, "y" * cards.LONGEST + "…")]
    many = cards.light(pl.DataFrame({"t": ["z" * 200] * 50_000}))
    assert 500 < many.height < 50_000
    assert many.estimated_size() <= cards.TABLE_BYTES


def test_json_has_numbers_where_a_double_gives_their_digits_back_and_text_elsewhere() -> None:
    frame = pl.DataFrame(
        {
            "ns": [START_NS + 1],
            "price": [Decimal("12.50")],
            "long": [Decimal("1234567890.123456789")],
            "many": [[Decimal("0.1"), None]],
            "nothing": [float("nan")],
        }
    )
    text = json_text(frame).decode()
    assert f'"ns":{START_NS + 1},"price":12.50,' in text
    (row,) = json.loads(text)
    assert row == {
        "ns": START_NS + 1, "price": 12.5, "long": "1234567890.123456789",
        "many": [0.1, None], "nothing": None,
    }  # fmt: skip
    assert csv_text(frame).splitlines()[1].startswith(f"{START_NS + 1},12.50,1234567890.123456789,")


def test_the_pages_json_file_has_the_numbers_of_its_decimals(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(
        ask.st, "download_button", lambda name, data, **_: given.update({name: data})
    )
    opened("ask", sql="SELECT 1.5::DECIMAL(9, 2) AS price, sum(start_ns) AS ns FROM trajectories")
    (row,) = json.loads(given["JSON"]())
    assert row["price"] == 1.5


def test_csv_is_safe_in_names_too_and_keeps_numbers() -> None:
    frame = pl.DataFrame({"=cmd()": ["-1+2", "fine"], "v": [-5, 2**60], "l": [[1, 2], None]})
    rows = list(csv.reader(io.StringIO(csv_text(frame))))
    assert rows == [["'=cmd()", "v", "l"], ["'-1+2", "-5", "[1,2]"], ["fine", str(2**60), ""]]
