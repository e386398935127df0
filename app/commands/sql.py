"""`heddle sql`: one SELECT of yours over everything the collector keeps."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from heddle.app.commands import options

TYPER = options.help_with(
    'heddle sql "SELECT task, quantile_cont(duration_s, 0.99) FROM trajectories GROUP BY task"',
    'heddle sql "FROM rollouts" --csv > rollouts.csv',
)


def run(
    text: Annotated[str, typer.Argument(metavar="SELECT", help="One SELECT, DuckDB's dialect.")],
    json: options.Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV on stdout.")] = False,
    collector: options.Collector = None,
) -> None:
    """Run a read-only SELECT in the collector."""
    from heddle.app import show
    from heddle.app.commands.connect import collector_client
    from heddle.app.errors import fail
    from heddle.collector.exporters.files import csv_text

    if not text.strip():
        fail('there is no SELECT; say one, as heddle sql "SELECT run_id, state FROM trajectories"')
    with collector_client(collector, "sql") as client:
        frame, truncated = client.sql_page(text)
    if json:
        show.as_json({"rows": frame.to_dicts(), "truncated": truncated})
    elif csv:
        sys.stdout.write(csv_text(frame))
    else:
        rows = [["" if v is None else str(v) for v in row] for row in frame.iter_rows()]
        show.table(frame.columns, rows)
    if truncated and not json:
        show.say(truncated)
