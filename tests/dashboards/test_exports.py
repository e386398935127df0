"""Files of a whole filter: everything is in them, integers whole, text never markup."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from browser.fake_rollouts import HOSTILE, RUN, Story
from typer.testing import CliRunner

from heddle.app import cli
from heddle.app.commands import connect
from heddle.collector.errors import CollectorError
from heddle.collector.exporters.files import export
from heddle.collector.exporters.perfetto import write_trace
from heddle.dashboards.reports import many
from heddle.dashboards.reports.trajectory import trajectory_report
from heddle.dashboards.views import exporting

BAD = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def story() -> Story:
    story = Story(("verl", "heddle"), trajectories=130, hostile=True)
    for row in story.rows["steps"][:3]:
        row["because"] = BAD
    story.rows["trajectories"][0]["group_id"] = BAD
    return story


def _ns(text: str) -> int:
    whole, _, rest = text.partition(".")
    return int(whole) * 1000 + int(rest)


def test_a_filters_html_has_every_trajectory_and_no_markup_of_spans(story: Story) -> None:
    sink, seen = io.BytesIO(), list[Any]()
    asked = {"run": RUN, "rollout": "rollout-1"}
    assert many.write_html(story, sink, asked, lambda *told: seen.append(told)) == 130
    text = sink.getvalue().decode()
    names = story.query("trajectories", **asked)["trajectory_id"]
    assert all(f">{name}</a>" in text and f"<h1>{name}</h1>" in text for name in names)
    assert text.count("<section id=") == 130
    assert seen == [(100, 130), (130, 130)]
    assert "<img" not in text
    assert "<script" not in text
    assert "&lt;/script&gt;" in text
    assert "http" not in text.replace("http-equiv", "")


def test_index_links_lead_to_their_sections(story: Story) -> None:
    sink = io.BytesIO()
    many.write_html(story, sink, {"run": RUN}, lambda *_: None)
    text = sink.getvalue().decode()
    for place in (0, 99, 100, 259):
        name = text.split(f'href="#t{place}">')[1].split("<")[0]
        assert text.split(f'<section id="t{place}"><h1>')[1].split("<")[0] == name


def test_a_filters_json_equals_the_reports_one_by_one(story: Story) -> None:
    sink = io.BytesIO()
    asked = {"run": RUN, "task": "search", "rollout": "rollout-2"}
    many.write_json(story, sink, asked, lambda *_: None)
    body = json.loads(sink.getvalue())
    assert body["filter"] == asked
    wanted = story.query("trajectories", **asked).sort("start_ns")["trajectory_id"].to_list()
    assert [one["trajectory"] for one in body["trajectories"]] == wanted
    alone = json.loads(trajectory_report(story, RUN, wanted[3]).to_json())
    assert body["trajectories"][3] == alone


def test_a_filter_without_trajectories_is_said(story: Story) -> None:
    with pytest.raises(CollectorError, match=r"no trajectory matches run .*, task none"):
        many.write_html(story, io.BytesIO(), {"run": RUN, "task": "none"}, lambda *_: None)


def test_a_trace_keeps_every_nanosecond_and_every_slice(story: Story) -> None:
    sink = io.BytesIO()
    asked = {"run": RUN, "rollout": "rollout-1"}
    rows = write_trace(story, sink, asked)
    body = json.loads(sink.getvalue(), parse_float=str)
    tables = {name: story.query(name, **asked) for name in ("steps", "tool_calls", "moves")}
    assert rows == sum(frame.height for frame in tables.values())
    origin = int(body["otherData"]["origin_ns"])
    steps = [e for e in body["traceEvents"] if e["ph"] == "X" and e["name"].startswith("step ")]
    starts = sorted(origin + _ns(event["ts"]) for event in steps)
    assert starts == tables["steps"]["start_ns"].sort().to_list()
    ends = sorted(origin + _ns(event["ts"]) + _ns(event["dur"]) for event in steps)
    assert ends == tables["steps"]["end_ns"].sort().to_list()
    assert HOSTILE in {event["name"] for event in body["traceEvents"]}


def test_a_trace_calls_what_no_step_told_unknown_and_ends_no_phase_after_its_step() -> None:
    story = Story(("verl",), trajectories=8)
    whose = next(row for row in story.rows["steps"] if row["step_index"] == 1)["trajectory_id"]
    story.rows["steps"] = [row for row in story.rows["steps"] if row["trajectory_id"] == whose]
    blind, long = story.rows["steps"][:2]
    blind.update(held_ns=0, queue_ns=5, prefill_ns=None, decode_ns=None, retractions=None)
    long.update(held_ns=0, queue_ns=0, prefill_ns=7, decode_ns=10**12)
    sink = io.BytesIO()
    write_trace(story, sink, {"run": RUN})
    events = json.loads(sink.getvalue(), parse_float=str)["traceEvents"]
    slices = [(e["name"], _ns(e["dur"])) for e in events if e["ph"] == "X"]
    at = slices.index(("step 0", blind["end_ns"] - blind["start_ns"]))
    rest = blind["end_ns"] - blind["start_ns"] - 5
    assert slices[at + 1 : at + 3] == [("queue", 5), ("unknown", rest)]
    at = slices.index(("step 1", long["end_ns"] - long["start_ns"]))
    assert slices[at + 2] == ("decode", long["end_ns"] - long["start_ns"] - 7)
    told = [e["args"] for e in events if e["name"] == "step 0"]
    assert "retractions" not in told[0]


def test_counters_of_a_trace_go_up_and_come_back_to_nothing(story: Story) -> None:
    sink = io.BytesIO()
    write_trace(story, sink, {"run": RUN, "rollout": "rollout-1"})
    events = json.loads(sink.getvalue())["traceEvents"]
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    loads = [event for event in events if event["ph"] == "C"]
    assert max(event["args"]["running"] for event in loads) > 1
    assert min(min(event["args"].values()) for event in loads) == 0
    last = {event["pid"]: event["args"] for event in loads}
    assert last == {pid: {"running": 0, "queued": 0} for pid in last}
    assert {named[pid] for pid in last} == {f"w{i}" for i in range(8)}


def test_threads_of_a_trace_are_trajectories_on_workers(story: Story) -> None:
    sink = io.BytesIO()
    write_trace(story, sink, {"run": RUN, "rollout": "rollout-2"})
    events = json.loads(sink.getvalue())["traceEvents"]
    threads = Counter(
        (event["pid"], event["args"]["name"]) for event in events if event["name"] == "thread_name"
    )
    assert set(threads.values()) == {1}


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".json"])
def test_a_table_of_a_filter_is_whole_and_exact(story: Story, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"t{ending}"
    written = export(story, "trajectories", path, {"run": RUN, "task": "coding"})
    assert written == (132, "rows", 0)
    wanted = story.query("trajectories", run=RUN, task="coding").sort("start_ns")
    if ending == ".parquet":
        found = pl.read_parquet(path)["start_ns"].to_list()
    elif ending == ".json":
        found = [row["start_ns"] for row in json.loads(path.read_text())]
    else:
        found = [int(row["start_ns"]) for row in csv.DictReader(path.read_text().splitlines())]
    assert found == wanted["start_ns"].to_list()


def test_a_trace_takes_steps_alone_and_a_file_must_name_its_format(
    story: Story, tmp_path: Path
) -> None:
    with pytest.raises(CollectorError, match="takes steps"):
        export(story, "spans", tmp_path / "x.trace.json", {})
    with pytest.raises(CollectorError, match="names no format"):
        export(story, "steps", tmp_path / "x.txt", {})
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def command(story: Story, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`heddle WORDS` against the story."""
    story.__class__.__enter__ = lambda self: self
    story.__class__.__exit__ = lambda *_: None
    monkeypatch.setattr(connect, "collector_client", lambda *_, **__: story)
    runner = CliRunner()
    return lambda *words: runner.invoke(cli.build(), list(words))


def test_the_command_writes_what_the_page_asks_for(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "_folder", lambda: tmp_path)
    filters = {"run": RUN, "rollout": "rollout-1", "task": "coding"}
    for what, ending, _ in exporting.FORMATS.values():
        words, path = exporting.command(what, ending, filters)
        told = command(*words)
        assert told.exit_code == 0, told.output
        assert path.stat().st_size > 1_000
    assert len(list(tmp_path.iterdir())) == len(exporting.FORMATS)


def test_an_export_says_what_it_wrote_and_what_it_left_out(command: Any, tmp_path: Path) -> None:
    of = ("--run", RUN, "--rollout", "rollout-1")
    wanted = {name: len(_rows(name)) for name in ("spans", "steps", "tool_calls", "moves")}
    told = command("export", "spans", str(tmp_path / "s.csv"), *of).output
    assert f"{wanted['spans']:,} spans\n" in told
    told = command("export", "steps", str(tmp_path / "s.trace.json"), *of).output
    drawn = wanted["steps"] + wanted["tool_calls"] + wanted["moves"]
    assert f"{drawn:,} steps, tool calls and moves\n" in told


def _rows(table: str) -> list[dict[str, Any]]:
    story = Story(("verl", "heddle"), trajectories=130, hostile=True)
    return [row for row in story.rows[table] if row["rollout_id"] == "rollout-1"]


def test_spans_without_an_end_are_counted_as_left_out(tmp_path: Path) -> None:
    story = Story(("verl",), trajectories=2)
    for place, row in enumerate(story.rows["spans"]):
        row.update(trace_id="a" * 32, events="[]")
        if place < 3:
            row["end_ns"] = None
    written = export(story, "spans", tmp_path / "s.jsonl", {"run": RUN})
    assert written == (len(story.rows["spans"]) - 3, "spans", 3)
    lines = (tmp_path / "s.jsonl").read_text().splitlines()
    sent = [s for line in lines for r in json.loads(line)["resourceSpans"]
            for scope in r["scopeSpans"] for s in scope["spans"]]  # fmt: skip
    assert len(sent) == written.rows


@pytest.mark.parametrize(
    ("query", "needs"),
    [("spans", "--trajectory or --rollout"), ("partition", "--rollout"), ("drift", "--run")],
)
def test_an_export_names_the_option_that_a_query_needs(
    command: Any, tmp_path: Path, query: str, needs: str
) -> None:
    given = () if query == "drift" else ("--run", RUN)
    told = command("export", query, str(tmp_path / "x.csv"), *given)
    assert told.exit_code == 1
    assert f"{query} needs {needs}:" in str(told.exception)
    assert not list(tmp_path.iterdir())
    asked = command("export", "--help").output
    assert "spans of a --rollout or" in " ".join(asked.split())


def test_a_filters_report_needs_a_file(command: Any) -> None:
    told = command("report", RUN, "--task", "coding")
    assert told.exit_code != 0
