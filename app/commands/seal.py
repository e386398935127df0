"""`heddle seal`: finished rollouts to Parquet, now."""

from __future__ import annotations

from typing import Annotated

import typer

from heddle.app.commands import options

TYPER = options.help_with("heddle seal", "heddle seal --run exp-7 --rollout r12")


def run(
    run_id: options.Run = None,
    rollout: Annotated[str | None, typer.Option(help="The rollout; all when left out.")] = None,
    json: options.Json = False,
    collector: options.Collector = None,
) -> None:
    """Seal finished rollouts to Parquet.

    Each file is read back and compared before anything is dropped from the database.
    """
    from heddle.app import show
    from heddle.app.commands.connect import collector_client

    with collector_client(collector, "admin", timeout_s=600) as client, show.spinner("sealing"):
        told = client.seal(run=run_id, rollout=rollout)
    if json:
        show.as_json(told)
        return
    for file in told["sealed"]:
        show.say(f"{file['url']}: {file['spans']} spans, {file['bytes'] / 1024:,.0f} kB")
    none = "" if told["sealed"] else ": none that has ended still lies in the database"
    show.say(f"sealed {len(told['sealed'])} rollouts{none}")
