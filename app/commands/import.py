"""`heddle import`: traces from files into a running collector."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heddle.app.commands import options

TYPER = options.help_with(
    "heddle import otlp-json traces.json",
    "heddle import slime dump_7.pt --run exp-7 --trusted",
    "heddle import dcgm sm_active.csv --run exp-7",
)


def run(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT",
            help="otlp-json, tempo, jaeger-json, sglang-metrics, slime, verl, dcgm or parquet.",
        ),
    ],
    file: Annotated[Path, typer.Argument(help="The file.")],
    run_id: Annotated[
        str | None, typer.Option("--run", help="The run, where the file names none.")
    ] = None,
    trusted: Annotated[
        bool, typer.Option("--trusted", help="Load a pickle that may run code: only your own.")
    ] = False,
    json: options.Json = False,
    otlp: Annotated[
        str | None, typer.Option(help="Where the collector takes spans.", metavar="URL")
    ] = None,
) -> None:
    """Import traces from a file; twice is once.

    Exit code 1 when some spans were rejected.
    """
    from heddle.app import show
    from heddle.app.collecting import tokens
    from heddle.app.settings import load
    from heddle.collector.importers.documents import Source
    from heddle.collector.importers.send import send

    settings = load({"otlp": otlp})
    source = Source(file, run_id, trusted)
    with show.counter(f"importing {file.name}", "spans") as update:
        told = send(
            kind,
            source,
            settings.otlp_url,
            token=tokens(settings.collect).ingest,
            seen=lambda sent: update(sent.spans),
        )
    if json:
        show.as_json({"spans": told.spans, "rejected": told.rejected, "why": told.first_rejection})
    else:
        show.say(
            f"sent {told.spans} spans, {told.rejected} rejected {told.first_rejection}".rstrip()
        )
    if told.rejected:
        raise typer.Exit(1)
