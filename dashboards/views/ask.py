"""What does a SELECT of one's own say: a table, a chart, and which tables are there to ask?

Read-only: the collector's parser refuses everything else, and stops what takes too long. The text
lives in the address, so that a link is the question; names for texts live on a shelf.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.collector.errors import CollectorUnreachable, QueryRefused
from heddle.collector.exporters.files import csv_text, json_text
from heddle.collector.records import FRAMES
from heddle.dashboards import cards, client, evidence, nav, scope, shell
from heddle.dashboards.figures import chart
from heddle.dashboards.saved import shelf

EXAMPLES: Final = {
    "Tail by task": (
        "SELECT task, count(*) AS trajectories, quantile_cont(duration_s, 0.5) AS p50_s,\n"
        "       quantile_cont(duration_s, 0.99) AS p99_s, max(duration_s) AS max_s\n"
        "FROM trajectories GROUP BY task ORDER BY p99_s DESC"
    ),
    "Slowest tools": (
        "SELECT tool_name, count(*) AS calls, quantile_cont(duration_s, 0.99) AS p99_s,\n"
        "       sum(duration_s) AS total_s\n"
        "FROM tool_calls GROUP BY tool_name ORDER BY total_s DESC LIMIT 50"
    ),
    "Rollouts of every run": (
        "SELECT run_id, rollout_id, preset, makespan_s, trajectories, output_tokens\n"
        "FROM rollouts ORDER BY start_ns DESC LIMIT 100"
    ),
    "Where steps were queued": (
        "SELECT worker_id, count(*) AS steps, sum(queue_ns) / 1e9 AS queued_s,\n"
        "       quantile_cont(queue_ns, 0.99) / 1e9 AS p99_s\n"
        "FROM steps GROUP BY worker_id ORDER BY queued_s DESC"
    ),
}
SHOWN_ROWS: Final = 1_000
_TEXT: Final = "ask_sql"
_PICKED: Final = "ask_picked"
_COLUMN = st.column_config
SCHEMA: Final[dict[str, Any]] = {
    "column": _COLUMN.TextColumn("column", width=130),
    "type": _COLUMN.TextColumn("type", width=72),
    "meaning": _COLUMN.TextColumn("meaning", width=230),
}


def page() -> None:
    """The question, the schema, the answer."""
    shell.opened("Ask")
    try:
        tables = client.tables()
        editor, schema = st.columns(2, gap="medium")
        with editor:
            _editor()
        with schema:
            _schema(tables)
        _answer()
    except CollectorUnreachable:
        cards.unreachable("collector", client.places().collector, client.START_COLLECTOR)
    except QueryRefused as refused:
        st.error(cards.plain(refused))


def _editor() -> None:
    """The text as it is typed; the address holds the one that ran."""
    if st.session_state.get("ask_ran") != scope.get("sql"):
        st.session_state["ask_ran"] = st.session_state[_TEXT] = scope.get("sql")
    texts = EXAMPLES | shelf().all()
    st.selectbox(
        "Start from",
        list(texts),
        index=None,
        key=_PICKED,
        placeholder="an example or a saved query",
        on_change=_start_from,
        args=(texts,),
    )
    with st.form("ask_form", border=False):
        st.text_area("One SELECT, DuckDB's dialect", key=_TEXT, height=180, placeholder="SELECT …")
        st.form_submit_button("Run", type="primary", on_click=_run, help="Ctrl+Enter runs it too")
    _keep(texts)


def _start_from(texts: Mapping[str, str]) -> None:
    picked = st.session_state[_PICKED]
    if picked in texts:
        st.session_state[_TEXT] = texts[picked]
        _run()


def _run() -> None:
    text = st.session_state[_TEXT].strip()
    st.session_state["ask_ran"] = text
    scope.put("sql", text or None)
    for other in ("x", "y", "named"):
        scope.put(other, None)


def _keep(texts: Mapping[str, str]) -> None:
    """Save what ran under a name, or drop the saved one that was picked."""
    with st.popover("Save or delete"):
        name = st.text_input("Name", key="ask_name")
        said = None
        if st.button("Save what ran", key="ask_save", disabled=not scope.get("sql")):
            said = shelf().keep(name, scope.get("sql")) or "Saved."
        picked = st.session_state.get(_PICKED)
        ours = picked in texts and picked not in EXAMPLES
        if st.button("Delete the picked one", key="ask_drop", disabled=not ours):
            said = shelf().drop(str(picked)) or "Deleted."
        if shelf().path is None:
            st.caption("Kept until this dashboard stops; those of heddle dash stay.")
        if said:
            st.text(said)


def _schema(tables: Mapping[str, Mapping[str, str]]) -> None:
    if not tables:
        st.caption("The collector names no table.")
        return
    first = "trajectories" if "trajectories" in tables else min(tables)
    table = scope.choose("table", f"Tables ({len(tables)})", sorted(tables), default=first)
    known = {column.name: column for column in FRAMES.get(table, ())}
    rows = [
        {
            "column": name,
            "type": kind,
            "meaning": known[name].meaning if name in known else None,
        }
        for name, kind in tables.get(table, {}).items()
    ]
    cards.table(pl.DataFrame(rows), "ask_schema", columns=SCHEMA, height=330)


def _answer() -> None:
    if text := scope.get("sql"):
        frame, cut = client.select(text)
        if frame.is_empty():
            cards.empty("The SELECT gave no row.", f"Its columns: {', '.join(frame.columns)}")
        else:
            _shown(frame, cut)
    elif named := scope.get("named"):
        _named(named)
    else:
        cards.no_data(
            "Nothing has been asked yet.", "Pick an example, or write a SELECT and run it."
        )


def _named(text: str) -> None:
    """The rows a finding rests on: a query of the collector's own with its filters."""
    asked = evidence.read(text)
    if asked is None:
        cards.nothing_matches(f"There is no query {text} here.", ["named"])
        return
    st.subheader("The evidence of a finding", anchor=False)
    st.text(asked.said)
    if whose := evidence.trajectory(text):
        label = f"Open {cards.plain(whose)}"
        nav.link("trajectory", label, ":material/arrow_forward:", trajectory=whose)
    frame, total = client.page(asked, evidence.ROWS)
    if frame.is_empty():
        cards.empty("The query gave no row.", f"Its columns: {', '.join(frame.columns)}")
        return
    _shown(frame, f"The first {frame.height:,} of {total:,} rows." if total > frame.height else "")


def _shown(frame: pl.DataFrame, cut: str) -> None:
    shown = cards.light(frame.head(SHOWN_ROWS))
    st.caption(
        f"{shown.height:,} of {frame.height:,} rows shown; the files hold all of them."
        if shown.height < frame.height
        else f"{frame.height:,} row{'' if frame.height == 1 else 's'}."
    )
    if cut:
        st.warning(cards.plain(cut))
    table, drawn = scope.tabs("tab", ("Table", "Chart"))
    if table.open:
        with table:
            st.dataframe(shown, hide_index=True, key="ask_table", placeholder="–")
    if drawn.open:
        with drawn:
            _chart(frame)
    _files(frame)


def _chart(frame: pl.DataFrame) -> None:
    numbers = chart.numeric(frame)
    if not numbers:
        st.caption("A chart needs a column of numbers.")
        return
    kind_at, x_at, y_at = st.columns(3)
    with kind_at:
        kind = scope.choose("chart", "Drawn as", list(chart.KINDS), default="bars")
    with y_at:
        y = scope.choose("y", "Upright", numbers, default=numbers[-1])
    with x_at:
        others = [name for name in frame.columns if name != y] or [y]
        x = scope.choose("x", "Along", others, default=others[0])
    drawn = chart.chart(frame, x, y, kind, cards.mode())
    cards.figure(drawn, "ask_chart", f"{y} over {x}")
    if kind != "histogram" and frame.height > chart.base.MARKS:
        st.caption(f"At most {chart.base.MARKS:,} rows are drawn, the highest percent all of it.")


def _files(frame: pl.DataFrame) -> None:
    made: dict[str, tuple[Any, str]] = {
        "CSV": (lambda: csv_text(frame), "text/csv"),
        "JSON": (lambda: json_text(frame), "application/json"),
        "Parquet": (lambda: _parquet(frame), "application/vnd.apache.parquet"),
    }
    with st.container(horizontal=True):
        for name, (data, mime) in made.items():
            st.download_button(
                name,
                data,
                file_name=f"heddle.{name.lower()}",
                mime=mime,
                key=f"ask_{name}",
                on_click="ignore",
            )


def _parquet(frame: pl.DataFrame) -> bytes:
    sink = io.BytesIO()
    frame.write_parquet(sink)
    return sink.getvalue()
