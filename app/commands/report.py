"""`heddle report`: everything about one trajectory, in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heddle.app.commands import options

TYPER = options.help_with(
    "heddle report exp-7 demo-0-g0003-e001-s004 --out slow.html",
    "heddle report exp-7 demo-0-g0003-e001-s004 --out slow.json",
)


def run(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run.")],
    trajectory: Annotated[str, typer.Argument(help="The trajectory.")],
    out: Annotated[
        Path | None, typer.Option(help="x.html or x.json; JSON on stdout when left out.")
    ] = None,
    collector: options.Collector = None,
) -> None:
    """Export the report of a trajectory.

    Self-contained HTML, or JSON.
    """
    from heddle.app import show
    from heddle.app.commands.connect import collector_client
    from heddle.app.errors import fail
    from heddle.dashboards.reports.trajectory import trajectory_report

    if out is not None and out.suffix not in (".html", ".json"):
        fail(f"{out} names no format; end it with .html or .json")
    with collector_client(collector) as client:
        report = trajectory_report(client, run_id, trajectory)
    if out is None:
        print(report.to_json())
        return
    text = report.to_html() if out.suffix == ".html" else report.to_json()
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{out} cannot be written: {error.strerror}")
    show.say(f"wrote {out} ({len(text) / 1024:,.0f} kB)")
