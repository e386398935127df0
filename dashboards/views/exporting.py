"""How do the trajectories of a page's filter leave as a file, however many they are?

`heddle report` and `heddle export` write it beside the pages, page by page of the collector, into a
folder of this dashboard; what is on the screen is never what limits it.
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import streamlit as st

from heddle.dashboards import cards, client
from heddle.dashboards.jobs import Job, jobs
from heddle.dashboards.views.replayed import POLL_S, progress

FORMATS: Final[dict[str, tuple[str, str, str]]] = {
    "Reports (HTML)": ("report", ".html", "text/html"),
    "Reports (JSON)": ("report", ".json", "application/json"),
    "Trajectories (CSV)": ("trajectories", ".csv", "text/csv"),
    "Trajectories (Parquet)": ("trajectories", ".parquet", "application/vnd.apache.parquet"),
    "Steps (CSV)": ("steps", ".csv", "text/csv"),
    "Steps (Parquet)": ("steps", ".parquet", "application/vnd.apache.parquet"),
    "Timeline (Perfetto)": ("steps", ".trace.json", "application/json"),
}
"""What is written, what its name ends with, and what a browser calls it."""
MOST_BYTES: Final = 200 << 20
"""A larger file is not sent through the page's memory; the page says where it lies."""


@st.cache_resource(show_spinner=False)
def _folder() -> Path:
    made = Path(tempfile.mkdtemp(prefix="heddle-exports-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def popover(asked: Mapping[str, str | None], key: str) -> None:
    """Choose a format, write the file, take it; *asked* names the filter by query filters."""
    filters = {name: value for name, value in asked.items() if value}
    with st.popover("Export"):
        said = ", ".join(f"{name} {value}" for name, value in filters.items())
        st.caption(cards.plain(f"Every trajectory of {said}."))
        name = st.selectbox("As", list(FORMATS), key=f"{key}_format")
        what, ending, mime = FORMATS[name or "Reports (HTML)"]
        words, path = command(what, ending, filters)
        mine = jobs().find(words)
        if mine is None or not mine.is_running:
            busy = jobs().running(words[0]) is not None
            if st.button("Write the file", key=f"{key}_write", disabled=busy, type="primary"):
                mine = jobs().start(words)
        if mine is not None:
            _state(mine, path, mime, key)


def command(what: str, ending: str, filters: Mapping[str, str]) -> tuple[list[str], Path]:
    """The command that writes that file, and where it writes it."""
    known = f"{what}{ending}{sorted(filters.items())}{client.places().collector}"
    stem = f"heddle-{what}-{hashlib.sha256(known.encode()).hexdigest()[:12]}"
    path = _folder() / f"{stem}{ending}"
    options = [f"--{name}={value}" for name, value in filters.items() if name != "run"]
    options.append(f"--collector={client.places().collector}")
    if what == "report":
        return ["report", f"--out={path}", *options, "--", filters["run"]], path
    return ["export", f"--run={filters['run']}", *options, "--", what, str(path)], path


def _state(mine: Job, path: Path, mime: str, key: str) -> None:
    if mine.is_running:
        st.fragment(progress, run_every=POLL_S)(mine, key)
    elif mine.failed or not path.exists():
        st.error(cards.plain(mine.failed or "The file is gone; write it again."))
    elif path.stat().st_size > MOST_BYTES:
        st.text(f"{path.stat().st_size >> 20:,} MB at {path}, on the dashboard's machine")
    else:
        st.download_button(
            f"Take {path.stat().st_size / 1024:,.0f} kB",
            path.read_bytes,
            file_name=path.name,
            mime=mime,
            key=f"{key}_take",
            on_click="ignore",
        )
