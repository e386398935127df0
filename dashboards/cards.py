"""The pieces pages are made of: sentences, numbers, figures, tables and the three empty states.

Text that came from a span goes through `plain` wherever Streamlit would read Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final, Literal, cast

import plotly.graph_objects as go
import polars as pl
import streamlit as st

from heddle.dashboards import client, facts, presence
from heddle.dashboards.figures import base
from heddle.dashboards.theme import Mode

_LINKS: Final = re.compile(r"(:(?=//)|www(?=\.)|@|mailto)", re.IGNORECASE)
_MARKS: Final = re.compile(r"([\\`*_{}\[\]()#+\-.!|~$:<>&@/])")
REFRESH_S: Final = 3.0
PULSE_S: Final = 2.4
"""With the age of an answer (1.5 s) and the patience for one (1 s) the banner stands within 5 s."""
LONGEST: Final = 300
"""Characters of a cell; files hold the whole text."""
EXACT: Final = 2**53
"""Above it a browser's numbers are not exact: nanoseconds of a date are shown as text."""
ROWS: Final = 200
"""Of a list nobody reads to its end."""
WHOLE_ROWS: Final = 12
"""A table of at most as many is shown whole, not scrolled."""
LINES: Final = ((150, 88), (56, 70))
"""Characters of the longest cell from which rows have three lines, or two: their pixels.
Streamlit wraps from twice its own 35 pixels on."""
TABLE_BYTES: Final = 160_000
"""A page is 1 MB at most, and up to five tables are not all of it."""


def plain(text: object) -> str:
    """*text* so that Streamlit's Markdown shows exactly these characters."""
    # A word joiner (invisible, no width) is what keeps addresses from turning into links.
    apart = _LINKS.sub("\\1\u2060", str(text))
    return _MARKS.sub(r"\\\1", apart).replace("\n", " ")


def mode() -> Mode:
    """Light or dark, as the browser shows the page right now."""
    return "dark" if st.context.theme.type == "dark" else "light"


def _name(build: FunctionType) -> str:
    return f"{build.__module__}.{build.__qualname__}"


@st.cache_resource(
    ttl=client.SETTLED_S, max_entries=64, show_spinner=False, hash_funcs={FunctionType: _name}
)
def drawn(build: Callable[..., go.Figure], *data: Any, **look: Any) -> go.Figure:
    """What *build* draws of them, made once for all tabs and refreshes (plotly checks every mark:
    1,500 cost 0.1 s). Not to be changed afterwards."""
    return build(*data, **look)


def figure(drawn: go.Figure, key: str, says: str) -> None:
    """A figure in our own colours; *says* is what a screen reader reads."""
    st.plotly_chart(drawn, theme=None, key=key, config=base.config(), alt=says)


def halves(*, are_two: bool) -> Sequence[Any]:
    """Places beside each other; below each other where the second has no figure to show."""
    return st.columns(2, gap="medium") if are_two else (st.container(), st.container())


@dataclass(frozen=True, slots=True)
class Number:
    """One of the strip: `change` is said against the previous rollout of the run."""

    label: str
    value: str
    help: str
    change: str | None = None
    good: Literal["normal", "inverse", "off"] = "off"


def numbers(strip: Sequence[Number]) -> None:
    """The KPI strip: one row up to six; more wrap, and never leave one alone at 1280."""
    if len(strip) < 7:
        for place, one in zip(st.columns(max(len(strip), 1), gap="small"), strip, strict=False):
            with place:
                _number(one)
        return
    # Seven beside each other would cut `12 min 05 s` at 1280: two rows of at most four there. At
    # 1920 seven and eight have one row, which they fill.
    with st.grid(min_column_width=200 if len(strip) == 7 else 176, gap="small"):
        for one in strip:
            _number(one)


def _number(one: Number) -> None:
    st.metric(
        one.label,
        one.value,
        one.change,
        delta_color=one.good,
        help=one.help,
        border=True,
        height="stretch",
    )


def table(
    frame: pl.DataFrame,
    key: str,
    *,
    columns: dict[str, Any],
    pick: str | None = None,
    on_pick: Callable[[str], None] | None = None,
    height: int | Literal["auto", "content"] = "auto",
    spare: Sequence[str] = (),
) -> None:
    """*columns* of *frame* in that order; with *pick*, clicking a row hands that row's id over.

    The id is looked up in the rows that were on the screen, not in the ones that replaced them.
    What `light` leaves out is said below. Columns of *spare* are shown where they hold something.
    """
    unused = {name for name in spare if name in frame.columns and _is_blank(frame[name])}
    kept = [name for name in columns if name in frame.columns and name not in unused]
    shown = light(frame.select(kept))
    if height == "auto" and shown.height <= WHOLE_ROWS:
        height = "content"
    look: dict[str, Any] = {
        "hide_index": True,
        "column_config": columns,
        "height": height,
        "row_height": _row_height(shown),
        "key": key,
        "placeholder": "–",
    }
    if pick is None or on_pick is None:
        st.dataframe(shown, **look)
        _left_out(shown, frame)
        return

    def picked() -> None:
        state = cast("dict[str, Any]", st.session_state[key])
        rows = state["selection"]["rows"]
        if rows:
            on_pick(st.session_state[f"{key}_ids"][rows[0]])

    st.dataframe(shown, on_select=picked, selection_mode="single-row", **look)
    st.session_state[f"{key}_ids"] = [str(one) for one in frame[pick].head(shown.height)]
    _left_out(shown, frame)


def _is_blank(column: pl.Series) -> bool:
    return not any(column.drop_nulls().to_list())


def _row_height(shown: pl.DataFrame) -> int | None:
    """Higher where a sentence would be cut: its cell wraps then."""
    lengths = shown.select(pl.selectors.string().str.len_chars().max().fill_null(0))
    longest = max(lengths.row(0), default=0)
    return next((pixels for chars, pixels in LINES if longest > chars), None)


def _left_out(shown: pl.DataFrame, frame: pl.DataFrame) -> None:
    if shown.height < frame.height:
        st.caption(f"The first {shown.height:,} of {frame.height:,} rows.")


def who_and_why(key: str) -> tuple[str, str]:
    """The two fields of every change; what was typed, stripped. `token` asks for the third."""
    who_at, why_at = st.columns([1, 3])
    who = who_at.text_input("Who", key=f"{key}_who")
    why = why_at.text_input("Why", key=f"{key}_why", placeholder="kept in the audit trail")
    if not client.places().token:
        said = "heddle control --token-file"
        st.text_input("Token", key=f"{key}_token", type="password", help=said)
    return who.strip(), why.strip()


def token(key: str) -> str | None:
    """What opens changes: the dashboard's own, or the one typed beside who and why."""
    return client.places().token or st.session_state.get(f"{key}_token") or None


def done(deed: Callable[[], object], said: str) -> None:
    """Do it, then run the page again; a refusal is shown in the service's own words."""
    _, refused = client.attempt(deed)
    if refused is not None:
        st.error(plain(refused))
        return
    client.forget()
    st.toast(said)
    st.rerun()


def fleet_time(speeds: Iterable[float | None]) -> None:
    """Says that the times below are an emulated fleet's, where they are."""
    if said := facts.fleet_time(speeds):
        st.badge(plain(said), icon=":material/speed:", color="orange")


def light(frame: pl.DataFrame) -> pl.DataFrame:
    """*frame* as a table can show it: long text cut, huge integers as text, at most TABLE_BYTES."""
    counts = frame.select(pl.selectors.integer().abs().max() > EXACT)
    wide = [name for name, column in counts.to_dict().items() if column.any()]
    text = pl.selectors.string()
    cut = pl.when(text.str.len_chars() > LONGEST).then(text.str.head(LONGEST) + "…").otherwise(text)
    shown = frame.with_columns(cut.name.keep(), pl.col(wide).cast(pl.String))
    per_row = shown.estimated_size() / max(shown.height, 1)
    return shown.head(max(int(TABLE_BYTES / max(per_row, 1)), 1))


def empty(what: str, hint: str) -> None:
    """The answer has no rows, and that is the answer."""
    with st.container(border=True, key="empty_answer"):
        st.markdown(f"**{plain(what)}**")
        st.text(hint)


def no_data(what: str, hint: str) -> None:
    """Nothing has been recorded yet: say what would fill the page."""
    with st.container(border=True, key="empty_no_data"):
        st.markdown(f"**{plain(what)}**")
        st.text(hint)


def nothing_matches(what: str, clear: Sequence[str]) -> None:
    """There is data, but not under this selection: offer to drop the selection."""
    with st.container(border=True, key="empty_filtered"):
        st.markdown(f"**{plain(what)}**")
        st.text("There is data outside this selection.")
        if st.button("Clear the selection", key="empty_clear"):
            for name in clear:
                st.query_params.pop(name, None)
            st.rerun()


def unreachable(service: str, url: str, command: str) -> None:
    """A service does not answer: say which, where, and the command that starts it."""
    with st.container(border=True, key=f"down_{service}"):
        st.markdown(f"**The {service} does not answer**")
        st.text(f"Asked at {url}. Start it with:")
        st.code(command, language="bash")
        st.text("This page comes back by itself when it answers.")


def pulse() -> None:
    """Watches the collector on every page: a banner within seconds, and a rerun when it is back."""
    st.fragment(_pulse, run_every=presence.every(PULSE_S))()


def _pulse() -> None:
    alive = client.health() is not None
    was = st.session_state.get("pulse_alive", True)
    st.session_state["pulse_alive"] = alive
    if not alive:
        st.warning(
            f"The collector at {plain(client.places().collector)} does not answer: "
            f"what you see may be out of date. Start it with: {plain(client.START_COLLECTOR)}"
        )
    elif not was:
        st.rerun(scope="app")
