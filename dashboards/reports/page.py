"""A trajectory's report as one HTML page: no network, no script, light, dark and paper.

Every value passes through `_t`; there is no other way into the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

from heddle.dashboards import facts, theme
from heddle.dashboards.reports import drawing

if TYPE_CHECKING:
    from heddle.dashboards.reports.trajectory import Report

_STYLE: Final = """
:root{color-scheme:light dark;--t:#1f2328;--s:#5b636d;--g:#e3e6ea;--p:#fff;--c:#f5f6f8}
@media screen and (prefers-color-scheme:dark){
:root{--t:#e6e8eb;--s:#a3abb5;--g:#31373f;--p:#14171b;--c:#1d2127}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1040px;padding:32px 24px 64px;background:var(--p);color:var(--t);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:24px;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:17px;margin:32px 0 8px}
p{margin:4px 0}.soft{color:var(--s)}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:12px;margin:20px 0}
dl div{border:1px solid var(--g);border-radius:8px;padding:10px 14px}
dt{color:var(--s);font-size:13px}dd{margin:0;font-size:20px}
svg{width:100%;height:auto;display:block}
text{font:12px system-ui,sans-serif;fill:var(--s)}.lane{text-anchor:end;fill:var(--t)}
.tick{text-anchor:middle}.grid{stroke:var(--g)}.line{fill:none;stroke:#0072b2;stroke-width:2}.dot{fill:#0072b2}
section{border-top:2px solid var(--g);margin-top:40px}a{color:#0072b2}summary{cursor:pointer}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:8px 0;font-size:13px}
.legend svg{width:12px;height:12px;display:inline-block;vertical-align:-1px;margin-right:6px}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13px}
th{text-align:left;color:var(--s);font-weight:500}
th,td{padding:5px 10px 5px 0;border-bottom:1px solid var(--g);vertical-align:top}
td{overflow-wrap:anywhere}
.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
@page{margin:14mm}
@media print{body{padding:0;max-width:none}tr,svg,dl,.legend{break-inside:avoid}
h1,h2,summary{break-after:avoid}
thead{display:table-header-group}
details::details-content{content-visibility:visible;height:auto}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
SECTION_MARKS: Final = 300
"""Of one waterfall among many: ten thousand of them are one file."""
_STEPS: Final = (
    ("step", "step_index"),
    ("worker", "worker_id"),
    ("held", "held_ns"),
    ("queue", "queue_ns"),
    ("prefill", "prefill_ns"),
    ("decode", "decode_ns"),
    ("in", "input_tokens"),
    ("cached", "cached_tokens"),
    ("out", "output_tokens"),
    ("left, predicted", "predicted_p50"),
    ("ended by", "finish_reason"),
    ("error", "error_type"),
)
_TOOLS: Final = (
    ("after step", "step_index"),
    ("tool", "tool_name"),
    ("state", "state"),
    ("took", "duration_s"),
    ("seen as a gap", "inferred"),
    ("error", "error_type"),
)
_MOVES: Final = (
    ("before step", "step_index"),
    ("from", "move_source"),
    ("to", "move_target"),
    ("method", "move_method"),
    ("tokens", "move_tokens"),
    ("hit on arrival", "move_hit_tokens"),
    ("hidden", "hidden_s"),
    ("exposed", "exposed_s"),
    ("because", "because"),
)


def render(report: Report) -> str:
    """The whole document of one trajectory."""
    title = f"Trajectory {report.trajectory}"
    return f"{head(title)}<h1>{_t(title)}</h1>{''.join(body(report))}{TAIL}"


def head(title: str) -> str:
    """Up to the first thing to read."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{_t(title)}</title><style>{_STYLE}{_colours()}</style></head><body>"
    )


TAIL: Final = "</body></html>"


def section(report: Report, anchor: str) -> str:
    """One trajectory of many: its tables are closed until somebody opens them."""
    return (
        f'<section id="{_t(anchor)}"><h1>{_t(report.trajectory)}</h1>'
        f"{''.join(body(report, marks=SECTION_MARKS, closed=True))}</section>\n"
    )


def body(report: Report, *, marks: int = drawing.MARKS, closed: bool = False) -> Iterable[str]:
    """What is said of one trajectory, below its title."""
    row = report.summary
    yield f'<p class="soft">{_t(_whose(report))}</p>'
    yield f"<p>{_t(_finding(report))}</p>"
    yield _figures(report)
    yield from _drawn(report, marks)
    tables = "".join(_tables(report))
    yield f"<details><summary>Steps, tools, moves</summary>{tables}</details>" if closed else tables
    yield f'<p class="soft">start_ns {_t(row["start_ns"])} · end_ns {_t(row["end_ns"])}</p>'


def _drawn(report: Report, marks: int) -> Iterable[str]:
    yield "<h2>Where its time went</h2>"
    if not report.pieces:
        yield '<p class="soft">No step of it has been seen.</p>'
        return
    parts_ns = report.parts_ns
    yield drawing.parts(parts_ns) + _legend(parts_ns)
    yield "<h2>Moment by moment</h2>" + drawing.waterfall(report.pieces, marks)
    if len(report.pieces) > marks:
        left = len(report.pieces) - marks
        yield f'<p class="soft">{left} shorter pieces are not drawn; the tables hold them.</p>'


def _tables(report: Report) -> Iterable[str]:
    yield table(f"Steps ({report.steps.height})", _STEPS, report.steps.to_dicts())
    yield table(f"Tool calls ({report.tools.height})", _TOOLS, report.tools.to_dicts())
    yield table(f"Moves ({report.moves.height})", _MOVES, report.moves.to_dicts())
    decided = [
        {"at": theme.nanoseconds(one.since_ns), "what": one.what, "because": one.because}
        for one in report.decisions
    ]
    heads = (("after", "at"), ("decision", "what"), ("because", "because"))
    yield table(f"Decisions ({len(decided)})", heads, decided)


def _whose(report: Report) -> str:
    row = report.summary
    named = [("run", report.run), ("rollout", row["rollout_id"]), ("group", row["group_id"])]
    named += [("sample", row["sample_index"]), ("task", row["task"])]
    said = " · ".join(f"{name} {value}" for name, value in named if value is not None)
    emulated = facts.fleet_time([report.clock_speed])
    said += f" · {theme.moment(row['start_ns'])}"
    return f"{said} ({emulated})" if emulated else said


def _finding(report: Report) -> str:
    row = report.summary
    took = theme.seconds(row["duration_s"])
    said = f"{took}, {row['state']}: {facts.cause(row)}."
    if row["truncated"]:
        said += " It was truncated by a limit."
    return said


def _figures(report: Report) -> str:
    row = report.summary
    cells = [
        ("Steps", row["steps"] or 0),
        ("Output tokens", theme.count(row["output_tokens"])),
        ("Peak context", theme.count(row["peak_context_tokens"])),
        ("Prompt cached", theme.percent(report.cached_share)),
        ("In tools", theme.seconds(row["tool_s"])),
        ("Moves", row["moves"] or 0),
        ("Retractions", theme.count(row["retractions"])),
        ("Errors", row["errors"] or 0),
    ]
    if row["reward"] is not None:
        cells.append(("Reward", f"{row['reward']:g}"))
    inner = "".join(f"<div><dt>{_t(name)}</dt><dd>{_t(value)}</dd></div>" for name, value in cells)
    return f"<dl>{inner}</dl>"


def _legend(parts_ns: dict[str, int]) -> str:
    keys = [
        f'<span><svg viewBox="0 0 12 12"><rect class="p-{phase}" width="12" height="12"/></svg>'
        f"{_t(of.label)} {_t(theme.nanoseconds(parts_ns[phase]))}</span>"
        for phase, of in theme.PHASES.items()
        if parts_ns.get(phase)
    ]
    return f'<div class="legend">{"".join(keys)}</div>'


def table(title: str, columns: Sequence[tuple[str, str]], rows: Sequence[dict[str, Any]]) -> str:
    """Every row; empty where there is none."""
    if not rows:
        return ""
    heads = "".join(f"<th{_side(name)}>{_t(head)}</th>" for head, name in columns)
    body = "".join(
        "<tr>"
        + "".join(f"<td{_side(name)}>{_cell(name, row[name])}</td>" for _, name in columns)
        + "</tr>"
        for row in rows
    )
    return (
        f'<h2>{_t(title)}</h2><div class="wide"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _side(name: str) -> str:
    numeric = name.endswith(("_ns", "_s", "_tokens", "_index", "_p50"))
    return ' class="n"' if numeric else ""


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "–" if _side(name) else ""
    if name.endswith("_ns"):
        return f'<span title="{_t(value)} ns">{_t(theme.nanoseconds(value))}</span>'
    if name.endswith("_s"):
        return _t(theme.seconds(value))
    if isinstance(value, float):
        return _t(theme.count(value))
    if isinstance(value, bool):
        return "yes" if value else ""
    return _t(f"{value:,}" if isinstance(value, int) else value)


def _colours() -> str:
    """Fills of the phases; the report follows the reader's light or dark."""
    light = "".join(f".p-{name}{{fill:{of.light}}}" for name, of in theme.PHASES.items())
    dark = "".join(f".p-{name}{{fill:{of.dark}}}" for name, of in theme.PHASES.items())
    return f"{light}@media screen and (prefers-color-scheme:dark){{{dark}}}"


def _t(value: object) -> str:
    return escape(str(value), quote=True)
