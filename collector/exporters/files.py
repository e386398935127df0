"""How does a named query, however long, become a file that other programs read?

All rows of the filter, page by page, never only what a page shows. CSV cells that a spreadsheet
would run as a formula get a leading apostrophe; numbers stay numbers, times integer nanoseconds.
Spans can also leave as OTLP/JSON lines, which Jaeger, Phoenix and `heddle import` take; steps as a
trace for Perfetto (perfetto.py).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import orjson
import polars as pl
import pyarrow.parquet as pq

from heddle.collector.client import CollectorClient
from heddle.collector.errors import CollectorError
from heddle.collector.exporters.perfetto import write_trace
from heddle.collector.exporters.values import json_of
from heddle.collector.importers.documents import Document, Found, attributes, request, span

_FORMULA: Final = r"^[=+\-@\t\r]"
_PAGE: Final = 20_000


class Written(NamedTuple):
    """How many rows, of what, are in the file, and for how many it has no word."""

    rows: int
    of: str
    left_out: int = 0


def export(
    client: CollectorClient,
    query: str,
    path: Path,
    asked: Mapping[str, Any],
    *,
    raw: bool = False,
    seen: Callable[[int], None] = lambda _: None,
) -> Written:
    """Write every row of the query to *path*, in the format its name ends with; what it holds."""
    ending = ending_of(path, ENDINGS)
    only = {".jsonl": "spans", TRACE: "steps"}.get(ending, query)
    if query != only:
        message = f"{ending} takes {only}; end {path} with .csv, .parquet or .json"
        raise CollectorError(message)
    with replacing(path) as sink:
        if ending == TRACE:
            return Written(write_trace(client, sink, asked, seen), "steps, tool calls and moves")
        told = 0
        pages = client.pages(query, limit=_PAGE, **asked)

        def count(rows: int) -> None:
            nonlocal told
            told = rows
            seen(rows)

        kept = _WRITERS[ending](_counted(pages, count), sink, raw)
        return Written(kept, "spans" if query == "spans" else "rows", told - kept)


def ending_of(path: Path, known: Collection[str]) -> str:
    """The format that the file's name ends with; CollectorError names the ones there are."""
    for ending in sorted(known, key=len, reverse=True):
        if path.name.endswith(ending):
            return ending
    message = f"{path} names no format; end it with {', '.join(known)}"
    raise CollectorError(message)


@contextmanager
def replacing(path: Path) -> Generator[BinaryIO]:
    """A file beside *path* that takes its place when the block ends well, and else is gone."""
    aside = path.with_name(path.name + ".part")
    try:
        with aside.open("wb") as sink:
            yield sink
        aside.replace(path)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}"
        raise CollectorError(message) from error
    finally:
        aside.unlink(missing_ok=True)


def csv_text(frame: pl.DataFrame, *, raw: bool = False, header: bool = True) -> str:
    """CSV, safe to open in a spreadsheet unless *raw*; lists and structs as JSON text."""
    flat = frame.with_columns(
        pl.Series(name, [_json(row) for row in column.to_list()], dtype=pl.String)
        for name, column in frame.select(pl.selectors.nested()).to_dict().items()
    )
    return (flat if raw else _safe(flat)).write_csv(include_header=header)


def json_text(frame: pl.DataFrame) -> bytes:
    """One JSON array, a row a line; what JSON has no word for is as values.py says."""
    sink = io.BytesIO()
    _rows(iter([frame]), sink, False)
    return sink.getvalue()


def otlp_lines(frame: pl.DataFrame) -> Iterator[bytes]:
    """One request a service, as the collector's file exporter writes them."""
    for key, rows in frame.group_by("service", maintain_order=True):
        resource = {"service.name": key[0]}
        found = Found([_span(row) for row in rows.iter_rows(named=True)], "", resource)
        yield request([found]) + b"\n"


def _json(value: Any) -> str | None:
    return None if value is None else json_of(value).decode()


def _safe(frame: pl.DataFrame) -> pl.DataFrame:
    """An apostrophe before text that a sheet would run, in cells and in names of columns."""
    text = pl.selectors.string()
    risky = text.str.contains(_FORMULA)
    quoted = pl.when(risky).then(pl.lit("'") + text).otherwise(text).name.keep()
    return frame.with_columns(quoted).rename(
        {name: f"'{name}" for name in frame.columns if re.match(_FORMULA, name)}
    )


def _counted(pages: Iterator[pl.DataFrame], seen: Callable[[int], None]) -> Iterator[pl.DataFrame]:
    rows = 0
    for page in pages:
        yield page
        rows += page.height
        seen(rows)


def _csv(pages: Iterator[pl.DataFrame], sink: BinaryIO, raw: bool) -> int:  # noqa: FBT001
    rows = 0
    for number, page in enumerate(pages):
        sink.write(csv_text(page, raw=raw, header=number == 0).encode())
        rows += page.height
    return rows


def _parquet(pages: Iterator[pl.DataFrame], sink: BinaryIO, _raw: bool) -> int:  # noqa: FBT001
    first = next(pages).to_arrow()
    rows = first.num_rows
    with pq.ParquetWriter(sink, first.schema, compression="zstd") as writer:
        writer.write_table(first)
        for page in pages:
            writer.write_table(page.to_arrow().cast(first.schema))
            rows += page.height
    return rows


def _rows(pages: Iterator[pl.DataFrame], sink: BinaryIO, _raw: bool) -> int:  # noqa: FBT001
    """One JSON array, a row a line."""
    rows, joint = 0, b"[\n"
    for page in pages:
        for row in page.iter_rows(named=True):
            sink.write(joint + json_of(row))
            joint = b",\n"
        rows += page.height
    sink.write(b"\n]\n" if rows else b"[]\n")
    return rows


def _otlp(pages: Iterator[pl.DataFrame], sink: BinaryIO, _raw: bool) -> int:  # noqa: FBT001
    rows = 0
    for page in pages:
        # A start marker's row stands for a span that has no end yet; OTLP has no word for it.
        ended = page.filter(pl.col("end_ns").is_not_null())
        sink.writelines(otlp_lines(ended))
        rows += ended.height
    return rows


def _span(row: dict[str, Any]) -> Document:
    given: dict[str, Any] = orjson.loads(row["attrs"] or "{}")
    events: list[Document] = orjson.loads(row["events"] or "[]")
    return span(
        row["trace_id"],
        row["span_id"],
        row["name"],
        row["start_ns"],
        row["end_ns"],
        given,
        parent=row["parent_span_id"] or "",
        failed=row["status"] == "error",
        events=[_event(event) for event in events],
    )


def _event(event: Document) -> Document:
    return {
        "name": event.get("name", ""),
        "timeUnixNano": str(event.get("time_ns", 0)),
        "attributes": attributes(event.get("attributes") or {}),
    }


TRACE: Final = ".trace.json"
_WRITERS: Final = {".csv": _csv, ".parquet": _parquet, ".json": _rows, ".jsonl": _otlp}
ENDINGS: Final = (*_WRITERS, TRACE)
"""Of the files that `export` can write."""
