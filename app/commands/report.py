"""`heddle report`: everything about one trajectory, or about all of a filter, in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from heddle.app.commands import options

if TYPE_CHECKING:
    from heddle.collector.client import CollectorClient

TYPER = options.help_with(
    "heddle report exp-7 demo-0-g0003-e001-s004 --out slow.html",
    "heddle report exp-7 --rollout r12 --task coding --out coding.html",
    "heddle report exp-7 --rollout r12 --out r12.trace.json",
)
STEPS: Final = (".csv", ".parquet", ".trace.json")
"""Formats that hold the steps of the trajectories, as `heddle export steps` writes them."""


def run(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run.")],
    trajectory: Annotated[
        str | None, typer.Argument(help="The trajectory; when left out all of the filter.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="x.html, x.json, x.csv, x.parquet, x.trace.json; else JSON on stdout."),
    ] = None,
    rollout: options.Rollout = None,
    group: options.Group = None,
    task: options.Task = None,
    worker: options.Worker = None,
    collector: options.Collector = None,
) -> None:
    """Export the report of one trajectory, or of many.

    Self-contained HTML or JSON; CSV, Parquet and a Perfetto trace hold their steps.
    """
    from heddle.app import show
    from heddle.app.commands.connect import collector_client
    from heddle.app.errors import fail
    from heddle.dashboards.reports.trajectory import trajectory_report

    if out is None and trajectory is None:
        fail("the report of a filter needs --out FILE; it is written as it is read")
    narrower = {"trajectory": trajectory, "rollout": rollout, "group": group, "task": task}
    asked = {"run": run_id, **narrower, "worker": worker}
    with collector_client(collector) as client:
        if out is None:
            print(trajectory_report(client, run_id, str(trajectory)).to_json())
            return
        _write(client, out, {name: value for name, value in asked.items() if value})
    show.say(f"wrote {out} ({out.stat().st_size / 1024:,.0f} kB)")


def _write(client: CollectorClient, out: Path, asked: dict[str, Any]) -> None:
    from heddle.app import show
    from heddle.collector.exporters.files import ending_of, export, replacing
    from heddle.dashboards.reports.many import write_html, write_json
    from heddle.dashboards.reports.trajectory import trajectory_report

    ending = ending_of(out, (".html", ".json", *STEPS))
    if ending in STEPS:
        with show.counter("reporting steps", "rows") as update:
            export(client, "steps", out, asked, seen=update)
        return
    if "trajectory" in asked:
        report = trajectory_report(client, asked["run"], asked["trajectory"])
        with replacing(out) as sink:
            sink.write((report.to_html() if ending == ".html" else report.to_json()).encode())
        return
    with show.steps("reporting", "trajectories") as update, replacing(out) as sink:
        (write_html if ending == ".html" else write_json)(client, sink, asked, update)
