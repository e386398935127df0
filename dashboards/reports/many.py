"""How does the report of every trajectory of a filter become one file, however many there are?

Streamed: pages of trajectories in, text out, nothing cut off. HTML begins with what they have in
common (how long, the longest) and an index, then has a section each; JSON is one document of all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any, BinaryIO, Final

import polars as pl

from heddle.collector.client import CollectorClient
from heddle.collector.errors import CollectorError
from heddle.dashboards import facts, theme
from heddle.dashboards.figures.tail import survival
from heddle.dashboards.reports import drawing, page
from heddle.dashboards.reports.trajectory import FORMAT, reports_of

AT_ONCE: Final = 100
"""Trajectories of one question: their names go into its address."""
Seen = Callable[[int, int], None]


class NothingMatches(CollectorError):
    """No trajectory is in the filter."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        super().__init__(f"no trajectory matches {said(asked)}; drop a filter")


def said(asked: Mapping[str, Any]) -> str:
    """The filter in words: `run exp-7, task coding`."""
    return ", ".join(f"{name} {value}" for name, value in asked.items() if value) or "everything"


def write_html(
    client: CollectorClient, sink: BinaryIO, asked: Mapping[str, Any], seen: Seen
) -> int:
    """Every trajectory of the filter in one page; how many."""
    total = _total(client, asked)
    title = f"{total:,} trajectories: {said(asked)}"
    sink.write(f"{page.head(title)}<h1>{escape(title)}</h1>".encode())
    sink.writelines(part.encode() for part in _summary(client, asked))
    done = 0
    for frame in _pages(client, asked):
        for report in _reports(client, frame):
            sink.write(page.section(report, f"t{done}").encode())
            done += 1
        seen(done, total)
    sink.write(page.TAIL.encode())
    return done


def write_json(
    client: CollectorClient, sink: BinaryIO, asked: Mapping[str, Any], seen: Seen
) -> int:
    """The same facts as one document, nanoseconds as integers; how many trajectories."""
    total, done = _total(client, asked), 0
    whose = json.dumps({name: value for name, value in asked.items() if value})
    sink.write(f'{{"format":{FORMAT},"filter":{whose},"trajectories":['.encode())
    for frame in _pages(client, asked):
        for report in _reports(client, frame):
            one = json.dumps(report.facts, ensure_ascii=False, allow_nan=False)
            sink.write(f"{',' if done else ''}\n{one}".encode())
            done += 1
        seen(done, total)
    sink.write(b"\n]}\n")
    return done


def _total(client: CollectorClient, asked: Mapping[str, Any]) -> int:
    _, total = client.page("trajectories", **{**asked, "limit": 1})
    if not total:
        raise NothingMatches(asked)
    return total


def _pages(client: CollectorClient, asked: Mapping[str, Any]) -> Iterator[pl.DataFrame]:
    return client.pages("trajectories", limit=AT_ONCE, **asked)


def _reports(client: CollectorClient, frame: pl.DataFrame) -> Iterator[Any]:
    """A page may hold several runs, and a question is about one."""
    for (run,), rows in frame.group_by("run_id", maintain_order=True):
        yield from reports_of(client, str(run), rows)


def _summary(client: CollectorClient, asked: Mapping[str, Any]) -> Iterator[str]:
    """How long they were, and an index with a link to each section."""
    lengths: list[float] = []
    index: list[str] = []
    for frame in _pages(client, asked):
        # Sections follow in the same order: run by run within a page.
        for _, rows in frame.group_by("run_id", maintain_order=True):
            for row in rows.iter_rows(named=True):
                index.append(_entry(len(index), row))
                if row["duration_s"] is not None:
                    lengths.append(row["duration_s"])
    if lengths:
        xs, ys = survival(lengths)
        yield "<h2>Share of trajectories longer than x</h2>"
        yield drawing.survival(list(zip(xs, ys, strict=True)))
    heads = "".join(f"<th>{name}</th>" for name in ("trajectory", "time", "mostly", "state"))
    yield '<h2>Index</h2><div class="wide"><table><thead><tr>'
    yield f"{heads}</tr></thead><tbody>"
    yield from index
    yield "</tbody></table></div>"


def _entry(place: int, row: Mapping[str, Any]) -> str:
    cells = (theme.seconds(row["duration_s"]), facts.cause(row), row["state"])
    told = "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
    return f'<tr><td><a href="#t{place}">{escape(str(row["trajectory_id"]))}</a></td>{told}</tr>\n'
