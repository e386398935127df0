"""`heddle delete`: one trajectory, everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

from heddle.app.commands import options

TYPER = options.help_with("heddle delete --run exp-7 --trajectory t-0042")


def run(
    run_id: Annotated[str, typer.Option("--run", help="The run.")],
    trajectory: Annotated[str, typer.Option(help="The trajectory.")],
    json: options.Json = False,
    collector: options.Collector = None,
) -> None:
    """Delete one trajectory, sealed files included.

    Its spans, and spans of its trace that name no trajectory. Exit code 1 when there were none.
    """
    from heddle.app import show
    from heddle.app.commands.connect import collector_client

    with collector_client(collector, "admin", timeout_s=600) as client:
        told = client.delete(run_id, trajectory)
    if json:
        show.as_json(told)
    else:
        show.say(f"deleted {told['spans']} spans; {told['files_rewritten']} sealed files rewritten")
    if not told["spans"]:
        raise typer.Exit(1)
