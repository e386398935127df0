"""`heddle export`: any named query, all of its rows, into a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heddle.app.commands import options

TYPER = options.help_with(
    "heddle export spans traces.jsonl --run exp-7 --rollout r12",
    "heddle export trajectories t.csv --run exp-7 --task coding",
    "heddle export steps r12.trace.json --run exp-7 --rollout r12",
)


def run(
    query: Annotated[
        str,
        typer.Argument(
            help="trajectories, steps, rollouts ...; spans of a --rollout or --trajectory."
        ),
    ],
    file: Annotated[
        Path,
        typer.Argument(
            help="x.csv, x.parquet, x.json; x.jsonl (OTLP/JSON lines) of spans, x.trace.json"
            " (Perfetto) of steps."
        ),
    ],
    run_id: options.Run = None,
    rollout: options.Rollout = None,
    group: options.Group = None,
    task: options.Task = None,
    worker: options.Worker = None,
    state: options.State = None,
    trajectory: Annotated[str | None, typer.Option(help="The trajectory.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="CSV without the ' before cells a sheet would run.")
    ] = False,
    collector: options.Collector = None,
) -> None:
    """Export a query: CSV, Parquet, JSON, OTLP or Perfetto.

    Every row of the filter. What explains GPU time (partition, strips, blame ...) needs --rollout.
    """
    from heddle.app import show
    from heddle.app.commands.connect import collector_client
    from heddle.collector.exporters.files import export

    asked = {"run": run_id, "rollout": rollout, "trajectory": trajectory}
    asked |= {"group": group, "task": task, "worker": worker, "state": state}
    _check(query, {name for name, value in asked.items() if value}, set(asked))
    asked = {name: value for name, value in asked.items() if value}
    unit = "spans" if query == "spans" else "rows"
    with (
        collector_client(collector) as client,
        show.counter(f"exporting {query}", unit) as update,
    ):
        made = export(client, query, file, asked, raw=raw, seen=update)
    left = f"; {made.left_out:,} that have not ended are left out" if made.left_out else ""
    show.say(f"wrote {file}: {made.rows:,} {made.of}{left}")


def _check(query: str, given: set[str], known: set[str]) -> None:
    """Say which option a query needs, before it is asked."""
    from heddle.app.errors import fail
    from heddle.collector.queries.catalog import QUERIES

    needs = [name for name in QUERIES[query].needs if name in known] if query in QUERIES else []
    if needs and not given & set(needs):
        fail(f"{query} needs {' or '.join(f'--{name}' for name in needs)}: say of which")
